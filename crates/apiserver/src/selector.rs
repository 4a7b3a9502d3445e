//! Label and field selectors: parsing, and matching against an entry's header.

use crate::status::ApiError;
use crate::store::{Entry, Meta};
use serde_json::Value;

#[derive(Debug, Clone, Default)]
pub(crate) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<FieldRequirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
}

#[derive(Debug, Clone)]
struct FieldRequirement {
    field: Field,
    value: String,
    equal: bool,
}

#[derive(Debug, Clone)]
enum Field {
    Name,
    Namespace,
    /// Position in the collection's field table.
    Indexed(usize),
    /// A field that a definition makes selectable, read from the object.
    Path(Box<str>),
}

impl Selector {
    /// `known` are the collection's selectable fields besides name and namespace, `own` those of a definition.
    pub fn parse(labels: &str, fields: &str, known: &[&str], own: &[Box<str>]) -> Result<Self, ApiError> {
        Ok(Self { labels: parse_labels(labels)?, fields: parse_fields(fields, known, own)? })
    }

    pub fn matches(&self, entry: &Entry) -> bool {
        let by_path = self.fields.iter().any(|requirement| matches!(requirement.field, Field::Path(_)));
        self.accepts(&entry.meta, &if by_path { entry.parse() } else { Value::Null })
    }

    /// Whether an object is selected whose header is `meta`.
    pub fn accepts(&self, meta: &Meta, object: &Value) -> bool {
        self.labels.iter().all(|requirement| requirement.matches(meta))
            && self.fields.iter().all(|requirement| requirement.matches(meta, object))
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }
}

impl Requirement {
    fn matches(&self, meta: &Meta) -> bool {
        let value = meta.labels.iter().find(|(key, _)| **key == *self.key).map(|(_, value)| &**value);
        match &self.test {
            Test::In(values) => value.is_some_and(|value| values.iter().any(|v| v == value)),
            Test::NotIn(values) => value.is_none_or(|value| values.iter().all(|v| v != value)),
            Test::Exists => value.is_some(),
            Test::Absent => value.is_none(),
        }
    }
}

impl FieldRequirement {
    fn matches(&self, meta: &Meta, object: &Value) -> bool {
        let is = match &self.field {
            Field::Name => *meta.name == *self.value,
            Field::Namespace => *meta.namespace == *self.value,
            Field::Indexed(index) => meta.fields.get(*index).map_or("", |value| value) == self.value,
            Field::Path(path) => match path.split('.').fold(object, |at, part| &at[part]) {
                Value::Null => self.value.is_empty(),
                Value::String(text) => *text == self.value,
                other => *other.to_string() == *self.value,
            },
        };
        is == self.equal
    }
}

fn parse_labels(text: &str) -> Result<Vec<Requirement>, ApiError> {
    let wrong = || {
        ApiError::bad_request(format!(
            "unable to parse label selector {text:?}: want terms like `a=b`, `a!=b`, `a in (b,c)`, `a notin (b)`, `a` or `!a`"
        ))
    };
    split_terms(text).ok_or_else(wrong)?.into_iter().map(|term| parse_term(term).ok_or_else(wrong)).collect()
}

/// Splits at commas that are not inside parentheses.
fn split_terms(text: &str) -> Option<Vec<&str>> {
    let (mut terms, mut depth, mut start) = (Vec::new(), 0i32, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                terms.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
        if !(0..=1).contains(&depth) {
            return None;
        }
    }
    if !text[start..].trim().is_empty() {
        terms.push(text[start..].trim());
    } else if !terms.is_empty() {
        return None;
    }
    (depth == 0).then_some(terms)
}

fn parse_term(term: &str) -> Option<Requirement> {
    let valid = |key: &str| crate::names::label_key(key).is_none().then(|| key.to_owned());
    let value = |text: &str| crate::names::label_value(text).is_none().then(|| text.to_owned());
    let requirement = |key: &str, test| Some(Requirement { key: valid(key)?, test });
    if let Some(key) = term.strip_prefix('!') {
        return requirement(key.trim(), Test::Absent);
    }
    if let Some((key, text)) = term.split_once("!=") {
        return requirement(key.trim(), Test::NotIn(vec![value(text.trim())?]));
    }
    if let Some((key, text)) = term.split_once("==").or_else(|| term.split_once('=')) {
        return requirement(key.trim(), Test::In(vec![value(text.trim())?]));
    }
    if let Some((front, list)) = term.strip_suffix(')').and_then(|front| front.split_once('(')) {
        let values = list.split(',').map(|text| value(text.trim())).collect::<Option<Vec<_>>>()?;
        let mut words = front.split_whitespace();
        return match (words.next()?, words.next()?, words.next()) {
            (key, "in", None) => requirement(key, Test::In(values)),
            (key, "notin", None) => requirement(key, Test::NotIn(values)),
            _ => None,
        };
    }
    requirement(term, Test::Exists)
}

fn parse_fields(text: &str, known: &[&str], own: &[Box<str>]) -> Result<Vec<FieldRequirement>, ApiError> {
    text.split(',')
        .filter(|term| !term.trim().is_empty())
        .map(|term| {
            let (name, value, equal) = if let Some((name, value)) = term.split_once("!=") {
                (name, value, false)
            } else if let Some((name, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
                (name, value, true)
            } else {
                return Err(ApiError::bad_request(format!(
                    "invalid field selector {term:?}: want `field=value`"
                )));
            };
            let field =
                match name.trim() {
                    "metadata.name" => Field::Name,
                    "metadata.namespace" => Field::Namespace,
                    other if own.iter().any(|field| **field == *other) => Field::Path(other.into()),
                    other => Field::Indexed(known.iter().position(|k| *k == other).ok_or_else(|| {
                        ApiError::bad_request(format!("field label not supported: {other}"))
                    })?),
                };
            Ok(FieldRequirement { field, value: value.trim().to_owned(), equal })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(labels: &[(&str, &str)]) -> Meta {
        let labels = labels.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        Meta { name: "web".into(), labels, fields: vec!["node-1".into()], ..Meta::default() }
    }

    #[test]
    fn label_operators_match_as_in_kubernetes() {
        let object = meta(&[("app", "web"), ("tier", "front")]);
        for (text, want) in [
            ("app=web", true),
            ("app==web,tier=front", true),
            ("app!=web", false),
            ("missing!=x", true),
            ("app in (db, web)", true),
            ("app notin (db,web)", false),
            ("missing notin (a)", true),
            ("app", true),
            ("!app", false),
            ("!missing", true),
            ("", true),
        ] {
            let selector = Selector::parse(text, "", &[], &[]).expect(text);
            assert_eq!(selector.accepts(&object, &Value::Null), want, "{text}");
        }
    }

    #[test]
    fn malformed_selectors_are_refused() {
        for text in ["a in b", "=x", "a in (b", "a=b,", "a=b c"] {
            assert!(Selector::parse(text, "", &[], &[]).is_err(), "{text}");
        }
    }

    #[test]
    fn fields_match_by_table() {
        let known = ["spec.nodeName"];
        let selector =
            Selector::parse("", "spec.nodeName=node-1,metadata.name!=db", &known, &[]).expect("valid");
        assert!(selector.accepts(&meta(&[]), &Value::Null));
        let error = Selector::parse("", "spec.color=red", &known, &[]).expect_err("not in the table");
        assert_eq!(error.message, "field label not supported: spec.color");
    }
}
