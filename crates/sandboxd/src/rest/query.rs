//! The query parameters of the REST API.

use super::problem::Problem;
use crate::paths;

const DEFAULT_MODE: u32 = 0o644;

/// The first parameter of that name.
fn find(query: Option<&str>, name: &str) -> Option<String> {
    let pairs = query.unwrap_or_default().split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let value = pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value.replace('+', " "));
    value.map(|value| String::from_utf8_lossy(&paths::decode(&value)).into_owned())
}

/// `mode=0755`: exactly four digits, so never a set-user-id bit.
pub fn mode(query: Option<&str>) -> Result<u32, Problem> {
    let Some(text) = find(query, "mode").filter(|text| !text.is_empty()) else { return Ok(DEFAULT_MODE) };
    let is_mode =
        text.len() == 4 && text.starts_with('0') && text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    let mode = is_mode.then(|| u32::from_str_radix(&text, 8).ok()).flatten();
    mode.ok_or_else(|| Problem::Invalid(format!("mode {text:?} must match ^0[0-7]{{3}}$")))
}

pub fn recursive(query: Option<&str>) -> Result<bool, Problem> {
    match find(query, "recursive").unwrap_or_default().as_str() {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "" | "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        other => Err(Problem::Invalid(format!("recursive {other:?} must be a boolean"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_has_four_octal_digits_and_begins_with_zero() {
        assert_eq!(mode(None).unwrap(), 0o644);
        assert_eq!(mode(Some("x=1&mode=0755")).unwrap(), 0o755);
        for wrong in ["0999", "777", "abcd", "01777", "1777", "-755"] {
            let problem = mode(Some(&format!("mode={wrong}"))).unwrap_err();
            assert!(
                matches!(problem, Problem::Invalid(text) if text == format!("mode \"{wrong}\" must match ^0[0-7]{{3}}$"))
            );
        }
    }

    #[test]
    fn recursive_is_a_boolean_as_go_writes_it() {
        for text in ["1", "t", "T", "TRUE", "true", "True"] {
            assert!(recursive(Some(&format!("recursive={text}"))).unwrap());
        }
        for text in ["0", "f", "F", "FALSE", "false", "False"] {
            assert!(!recursive(Some(&format!("recursive={text}"))).unwrap());
        }
        assert!(!recursive(None).unwrap());
        assert!(recursive(Some("recursive=yes")).is_err());
    }
}
