//! Yes and no in a query, in every spelling that Kubernetes reads: clients of other languages write `True`.

use serde::{Deserialize, Deserializer};

/// What a flag says; `None` when it is neither.
pub fn parse(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" | "" => Some(false),
        _ => None,
    }
}

/// The same for a field of a query.
pub fn field<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse(&text).ok_or_else(|| serde::de::Error::custom(format!("{text:?} is neither true nor false")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_kubernetes_is_read() {
        assert_eq!(["true", "True", "1"].map(parse), [Some(true); 3]);
        assert_eq!(["false", "False", "0", ""].map(parse), [Some(false); 4]);
        assert_eq!(parse("yes"), None);
    }
}
