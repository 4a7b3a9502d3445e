//! The Go types of the built-in kinds, which are also the messages of Kubernetes' protobuf: read from `messages.txt`.
//!
//! That file is data: a message, its fields (number in protobuf, JSON name, type), and at the end which kind is which
//! message. It describes Kubernetes 1.36. A `?` marks a scalar that JSON leaves out when it is empty, a `!` a list that it
//! shows although it is empty; the fields of an `inline` message belong to the one around it.

use std::collections::HashMap;
use std::sync::LazyLock;

static MESSAGES: LazyLock<Messages> = LazyLock::new(|| Messages::parse(include_str!("messages.txt")));

struct Messages {
    fields: HashMap<&'static str, Vec<Field>>,
    /// The same by JSON name, with those of inline messages.
    by_name: HashMap<&'static str, HashMap<&'static str, Field>>,
    kinds: Vec<(&'static str, &'static str, &'static str)>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Field {
    pub number: u64,
    pub name: &'static str,
    pub shape: Shape,
    pub kind: Kind,
    /// Not in JSON when it is empty: a Go program that was not given it sends it all the same.
    pub drops_empty: bool,
    /// A list that is in JSON also when it is empty.
    pub always: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    One,
    List,
    /// By text.
    Map,
    Inline,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    /// In base64 in JSON.
    Bytes,
    Int32,
    Int64,
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
pub(crate) fn of_kind(api_version: &str, kind: &str) -> Option<&'static str> {
    let mut kinds = MESSAGES.kinds.iter();
    kinds.find(|(v, k, _)| (*v == "*" || *v == api_version) && *k == kind).map(|(_, _, message)| *message)
}

/// The field of a message that JSON calls by this name.
pub(crate) fn by_name(message: &str, name: &str) -> Option<&'static Field> {
    MESSAGES.by_name.get(message)?.get(name)
}

pub(crate) fn fields(message: &str) -> &'static [Field] {
    MESSAGES.fields.get(message).map(Vec::as_slice).unwrap_or_default()
}

impl Messages {
    fn parse(text: &'static str) -> Self {
        let mut messages = Self { fields: HashMap::new(), by_name: HashMap::new(), kinds: Vec::new() };
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
        messages.by_name = messages.fields.keys().map(|name| (*name, messages.flat(name))).collect();
        messages
    }

    fn flat(&self, message: &str) -> HashMap<&'static str, Field> {
        let mut flat = HashMap::new();
        for field in self.fields.get(message).into_iter().flatten() {
            match (field.shape, field.kind) {
                (Shape::Inline, Kind::Message(inner)) => flat.extend(self.flat(inner)),
                _ => drop(flat.insert(field.name, *field)),
            }
        }
        flat
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
        let (drops_empty, always) = (kind.ends_with('?'), kind.ends_with('!'));
        let kind = match kind.trim_end_matches(['?', '!']) {
            "string" => Kind::Text,
            "bytes" => Kind::Bytes,
            "int32" => Kind::Int32,
            "int64" => Kind::Int64,
            "bool" => Kind::Flag,
            "time" => Kind::Time,
            "microtime" => Kind::MicroTime,
            "intorstring" => Kind::IntOrText,
            "quantity" => Kind::Quantity,
            "json" => Kind::Json,
            message => Kind::Message(message),
        };
        Some(Self { number, name, shape, kind, drops_empty, always })
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
        assert!(by_name("core.Volume", "emptyDir").is_some() && by_name("core.Volume", "inline").is_none());
        assert!(by_name("core.PodSpec", "containers").is_some_and(|field| field.always));
        assert_eq!(of_kind("apps/v1", "DeleteOptions"), Some("meta.DeleteOptions"));
        assert_eq!(of_kind("apps/v1", "Deployment"), None);
    }
}
