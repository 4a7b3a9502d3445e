//! The messages of Kubernetes' protobuf, read from `messages.txt`.
//!
//! That file is data: a message, its fields (number, JSON name, type), and at the end which kind is which message. Its
//! numbers are those of Kubernetes 1.36. A `?` marks a field that JSON leaves out when it is empty; the fields of an
//! `inline` message belong to the one around it.

use std::collections::HashMap;
use std::sync::LazyLock;

static MESSAGES: LazyLock<Messages> = LazyLock::new(|| Messages::parse(include_str!("messages.txt")));

struct Messages {
    fields: HashMap<&'static str, Vec<Field>>,
    kinds: Vec<(&'static str, &'static str, &'static str)>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Field {
    pub number: u64,
    pub name: &'static str,
    pub shape: Shape,
    pub kind: Kind,
    /// Not in JSON when it is empty: a Go program that was not given it sends it all the same.
    pub drops_empty: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    One,
    List,
    /// By text.
    Map,
    Inline,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    /// In base64 in JSON.
    Bytes,
    Number,
    Flag,
    Time,
    MicroTime,
    IntOrText,
    Quantity,
    /// JSON as bytes.
    Json,
    Message(&'static str),
}

/// The message of a kind. `DeleteOptions` come under many versions.
pub(super) fn of_kind(api_version: &str, kind: &str) -> Option<&'static str> {
    let mut kinds = MESSAGES.kinds.iter();
    kinds.find(|(v, k, _)| (*v == "*" || *v == api_version) && *k == kind).map(|(_, _, message)| *message)
}

pub(super) fn fields(message: &str) -> &'static [Field] {
    MESSAGES.fields.get(message).map(Vec::as_slice).unwrap_or_default()
}

impl Messages {
    fn parse(text: &'static str) -> Self {
        let mut messages = Self { fields: HashMap::new(), kinds: Vec::new() };
        let mut name = "";
        for line in text.lines() {
            let mut words = line.split_whitespace();
            if line.starts_with("  ") {
                let field = Field::parse(words).expect("messages.txt is well-formed");
                messages.fields.entry(name).or_default().push(field);
            } else if let Some(kind) = line.strip_prefix("= ") {
                let mut kind = kind.split(' ');
                if let (Some(version), Some(kind), Some(message)) = (kind.next(), kind.next(), kind.next()) {
                    messages.kinds.push((version, kind, message));
                }
            } else {
                name = words.next().unwrap_or_default();
                messages.fields.entry(name).or_default();
            }
        }
        messages
    }
}

impl Field {
    fn parse(mut words: std::str::SplitWhitespace<'static>) -> Option<Self> {
        let (number, name, kind) = (words.next()?.parse().ok()?, words.next()?, words.next()?);
        let (shape, kind) = match (name, kind, kind.strip_prefix("[]")) {
            ("inline", kind, _) => (Shape::Inline, kind),
            (_, "map", _) => (Shape::Map, words.next()?),
            (_, _, Some(item)) => (Shape::List, item),
            (_, kind, None) => (Shape::One, kind),
        };
        let drops_empty = kind.ends_with('?');
        let kind = match kind.trim_end_matches('?') {
            "string" => Kind::Text,
            "bytes" => Kind::Bytes,
            "int32" | "int64" => Kind::Number,
            "bool" => Kind::Flag,
            "time" => Kind::Time,
            "microtime" => Kind::MicroTime,
            "intorstring" => Kind::IntOrText,
            "quantity" => Kind::Quantity,
            "json" => Kind::Json,
            message => Kind::Message(message),
        };
        Some(Self { number, name, shape, kind, drops_empty })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_that_is_named_is_there() {
        let named = MESSAGES.fields.values().flatten().filter_map(|field| match field.kind {
            Kind::Message(name) => Some(name),
            _ => None,
        });
        for name in named.chain(MESSAGES.kinds.iter().map(|(_, _, name)| *name)) {
            assert!(MESSAGES.fields.contains_key(name), "{name}");
        }
        assert_eq!(of_kind("v1", "Pod"), Some("core.Pod"));
        assert_eq!(of_kind("apps/v1", "DeleteOptions"), Some("meta.DeleteOptions"));
        assert_eq!(of_kind("apps/v1", "Deployment"), None);
    }
}
