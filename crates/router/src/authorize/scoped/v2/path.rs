//! Whether a request's path is within a token's path.
//!
//! The router forwards paths as they came, and the server inside decides what they mean. A prefix is therefore only
//! compared with paths that every server reads alike: `/public/../admin` begins with `/public/` and is somewhere else.

use crate::authorize::Refusal;

/// `allowed` is an exact path, or a prefix when it ends with `*`.
pub fn check(allowed: &str, path: &str) -> Result<(), Refusal> {
    let Some(prefix) = allowed.strip_suffix('*') else {
        return if allowed == path { Ok(()) } else { Err(Refusal::OtherPath) };
    };
    if !path.starts_with(prefix) {
        return Err(Refusal::OtherPath);
    }
    if is_plain(path) { Ok(()) } else { Err(Refusal::AmbiguousPath) }
}

/// No dot segments, no empty segments, no backslashes, and no encoded bytes that could become any of these.
fn is_plain(path: &str) -> bool {
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        // Some servers drop what follows `;` before they look for dots.
        let name = segment.split(';').next().unwrap_or_default();
        let is_dots = matches!(name, "." | "..");
        let is_empty = name.is_empty() && !(is_last && segment.is_empty());
        if is_dots || is_empty || segment.contains('\\') || !encoding_is_plain(segment) {
            return false;
        }
    }
    true
}

/// Every `%` starts a valid escape of a byte that has no meaning in paths.
fn encoding_is_plain(segment: &str) -> bool {
    let mut escapes = segment.split('%').skip(1);
    escapes.all(|escape| {
        let byte = escape.get(..2).filter(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
        match byte.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(b'/' | b'\\' | b'.' | b'%' | b';' | b'?' | b'#' | 0x7f) | None => false,
            Some(byte) => byte >= b' ',
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_exact_path_is_compared_byte_for_byte() {
        assert_eq!(check("/a/../b", "/a/../b"), Ok(()));
        for other in ["/b", "/a/../b/", "/a/..%2fb", "/A/../b"] {
            assert_eq!(check("/a/../b", other), Err(Refusal::OtherPath), "{other}");
        }
    }

    #[test]
    fn a_prefix_allows_what_is_below_it() {
        for good in ["/pub/", "/pub/a", "/pub/a/b.txt", "/pub/a%20b", "/pub/%C3%A9", "/pub/...", "/pub/a;v=1"]
        {
            assert_eq!(check("/pub/*", good), Ok(()), "{good}");
        }
        for other in ["/pub", "/public", "/", "/x/pub/"] {
            assert_eq!(check("/pub/*", other), Err(Refusal::OtherPath), "{other}");
        }
        assert_eq!(check("/*", "/x"), Ok(()));
    }

    #[test]
    fn a_path_that_could_lead_out_of_the_prefix_is_refused() {
        for bad in [
            "/pub/../admin",
            "/pub/..",
            "/pub/./x",
            "/pub/%2e%2e/admin",
            "/pub/.%2E/admin",
            "/pub/%252e%252e/admin",
            "/pub/..%2fadmin",
            "/pub/..%5cadmin",
            "/pub/..\\admin",
            "/pub/..;/admin",
            "/pub/..;x=y/admin",
            "/pub/%3b",
            "/pub//admin",
            "/pub/;/x",
            "/pub/%00",
            "/pub/%0a",
            "/pub/%",
            "/pub/%2",
            "/pub/%+2",
            "/pub/%zz",
        ] {
            assert_eq!(check("/pub/*", bad), Err(Refusal::AmbiguousPath), "{bad}");
        }
    }

    proptest! {
        #![proptest_config(crate::fuzz::config())]

        #[test]
        fn an_allowed_path_stays_below_its_prefix_when_it_is_decoded_and_resolved(path in "(/|\\.|\\.\\.|%2e|%2F|%25|;|a|\\\\|%5c){0,10}") {
            let path = format!("/pub/{path}");
            if check("/pub/*", &path).is_ok() {
                let decoded = path.replace("%25", "%").replace("%2e", ".").replace("%2F", "/").replace("%5c", "\\");
                let mut resolved = Vec::new();
                for segment in decoded.split(['/', '\\']).map(|segment| segment.split(';').next().unwrap()) {
                    match segment {
                        ".." => { resolved.pop(); }
                        "" | "." => {}
                        other => resolved.push(other),
                    }
                }
                prop_assert_eq!(resolved.first(), Some(&"pub"), "{}", path);
            }
        }

        #[test]
        fn any_path_gets_an_answer(allowed in "/[ -~]{0,20}\\*?", path in "/[ -~]{0,40}") {
            let _ = check(&allowed, &path);
        }
    }
}
