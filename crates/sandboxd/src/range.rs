//! Which bytes of a file a request asks for.

use hyper::header::{HeaderMap, HeaderValue, IF_RANGE, RANGE};

#[derive(Debug, PartialEq, Eq)]
pub enum Wanted {
    All,
    /// Both ends included.
    Part {
        from: u64,
        to: u64,
    },
    Nothing,
}

/// Several ranges at once, and ranges we do not understand, get the whole file, as HTTP allows.
pub fn wanted(headers: &HeaderMap, length: u64, tag: &str, modified: &str) -> Wanted {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    if text(IF_RANGE).is_some_and(|condition| condition != tag && condition != modified) {
        return Wanted::All;
    }
    let Some((first, last)) = text(RANGE)
        .and_then(|range| range.trim().strip_prefix("bytes="))
        .filter(|range| !range.contains(','))
        .and_then(|range| range.split_once('-'))
    else {
        return Wanted::All;
    };
    match (first.trim().parse::<u64>(), last.trim().parse::<u64>(), last.trim().is_empty()) {
        (Ok(from), _, true) if from < length => Wanted::Part { from, to: length - 1 },
        (Ok(from), Ok(to), _) if from <= to && from < length => Wanted::Part { from, to: to.min(length - 1) },
        (Ok(from), Ok(to), _) if from > to => Wanted::All,
        (Err(_), Ok(count @ 1..), _) if first.trim().is_empty() && length > 0 => {
            Wanted::Part { from: length.saturating_sub(count), to: length - 1 }
        }
        (Ok(_), Ok(_), _) | (Ok(_), _, true) => Wanted::Nothing,
        (Err(_), Ok(_), _) if first.trim().is_empty() => Wanted::Nothing,
        _ => Wanted::All,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_is_honoured_and_anything_odd_gets_the_whole_file() {
        let part = |from, to| Wanted::Part { from, to };
        for (range, answer) in [
            ("bytes=0-3", part(0, 3)),
            ("bytes=4-", part(4, 9)),
            ("bytes=-3", part(7, 9)),
            ("bytes=-30", part(0, 9)),
            ("bytes=5-500", part(5, 9)),
            ("bytes=10-", Wanted::Nothing),
            ("bytes=10-12", Wanted::Nothing),
            ("bytes=-0", Wanted::Nothing),
            ("bytes=5-4", Wanted::All),
            ("bytes=0-1,3-4", Wanted::All),
            ("lines=1-2", Wanted::All),
            ("bytes=x-y", Wanted::All),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(RANGE, range.parse().unwrap());
            assert_eq!(wanted(&headers, 10, "\"t\"", "then"), answer, "{range}");
        }
    }

    #[test]
    fn a_range_of_another_version_gets_the_whole_file() {
        let mut headers = HeaderMap::new();
        headers.insert(RANGE, "bytes=0-1".parse().unwrap());
        headers.insert(IF_RANGE, "\"old\"".parse().unwrap());
        assert_eq!(wanted(&headers, 10, "\"new\"", "then"), Wanted::All);
        assert_eq!(wanted(&headers, 10, "\"old\"", "then"), Wanted::Part { from: 0, to: 1 });
    }

    proptest::proptest! {
        #[test]
        fn a_range_never_reaches_beyond_the_file(text in "bytes=[0-9 ,-]{0,45}|.*", length: u64) {
            let mut headers = HeaderMap::new();
            if let Ok(value) = HeaderValue::from_str(&text) {
                headers.insert(RANGE, value);
            }
            if let Wanted::Part { from, to } = wanted(&headers, length, "", "") {
                proptest::prop_assert!(from <= to && to < length, "{text} of {length}: {from}-{to}");
            }
        }
    }
}
