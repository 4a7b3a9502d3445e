//! Durations the way Go programs write them: `10s`, `1m30s`, `1.5h`.

use std::time::Duration;

/// Also keeps absurd numbers out of the timers.
pub const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

pub fn parse(flag: &str, text: &str) -> Result<Duration, String> {
    seconds(text)
        .filter(|seconds| (0.0..=LONGEST.as_secs_f64()).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("`{flag} {text}` is not a duration such as 10s or 1m30s"))
}

fn seconds(text: &str) -> Option<f64> {
    if text == "0" {
        return Some(0.0);
    }
    let mut rest = text;
    let mut sum = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|character: char| !character.is_ascii_digit() && character != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit =
            rest.find(|character: char| character.is_ascii_digit() || character == '.').unwrap_or(rest.len());
        sum += number
            * match &rest[..unit] {
                "ns" => 1e-9,
                "us" | "µs" | "μs" => 1e-6,
                "ms" => 1e-3,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                _ => return None,
            };
        rest = &rest[unit..];
    }
    (!text.is_empty()).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_in_go() {
        for (text, milliseconds) in
            [("10s", 10_000), ("1m30s", 90_000), ("1.5h", 5_400_000), ("250ms", 250), ("0", 0), ("2000µs", 2)]
        {
            assert_eq!(parse("--x", text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "10", "s", "-1s", "1x", "1e9h", "1.2.3s", "99999999h"] {
            assert!(parse("--x", text).is_err(), "{text}");
        }
    }
}
