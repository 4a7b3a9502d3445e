//! The name, label and annotation rules of Kubernetes, each with a message that says what is allowed.

use serde_json::Value;

use crate::status::FieldError;

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const LABEL_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

const CONFIG_KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";

/// All annotations of an object together.
const ANNOTATION_BYTES: usize = 256 << 10;

/// Which rule the names of a kind follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    Subdomain,
    Label,
    Label1035,
    /// A DNS label with a reason that is worth telling.
    LabelBecause(&'static str),
}

/// Kinds whose names must follow a narrower rule than the subdomain rule.
const NARROW: &[(&str, &str, Rule)] = &[
    ("", "Namespace", Rule::Label),
    ("", "Service", Rule::Label),
    (
        "agents.x-k8s.io",
        "Sandbox",
        Rule::LabelBecause("a Sandbox's name becomes its host name, its Service's name and a label value"),
    ),
];

impl Rule {
    pub fn of(group: &str, kind: &str) -> Self {
        NARROW
            .iter()
            .find(|(g, k, _)| *g == group && *k == kind)
            .map_or(Rule::Subdomain, |(_, _, rule)| *rule)
    }

    /// What is wrong with `name`, if anything.
    pub fn check(self, name: &str) -> Option<String> {
        match self {
            Rule::Subdomain if name.len() > 253 => Some("must be no more than 253 characters".into()),
            Rule::Subdomain => (!name.split('.').all(dns_label)).then(|| SUBDOMAIN.to_owned()),
            Rule::Label | Rule::Label1035 if name.len() > 63 => {
                Some("must be no more than 63 characters".into())
            }
            Rule::Label => (!dns_label(name)).then(|| LABEL.to_owned()),
            Rule::Label1035 => {
                let valid = dns_label(name) && name.starts_with(|c: char| c.is_ascii_lowercase());
                (!valid).then(|| LABEL_1035.to_owned())
            }
            Rule::LabelBecause(why) if name.len() > 63 => {
                Some(format!("must be no more than 63 characters, this one has {}: {why}", name.len()))
            }
            Rule::LabelBecause(why) => (!dns_label(name)).then(|| format!("{LABEL}; {why}")),
        }
    }
}

pub(crate) fn dns_label(text: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    edge(text.as_bytes().first())
        && edge(text.as_bytes().last())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// What is wrong with the name of a port.
pub(crate) fn port(name: &str) -> Vec<&'static str> {
    let letter = |b: u8| b.is_ascii_lowercase();
    let rules = [
        (name.len() <= 15, "must be no more than 15 characters"),
        (
            !name.is_empty() && name.bytes().all(|b| letter(b) || b.is_ascii_digit() || b == b'-'),
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
        ),
        (name.bytes().any(letter), "must contain at least one letter (a-z)"),
        (!name.contains("--"), "must not contain consecutive hyphens"),
        (!name.starts_with('-') && !name.ends_with('-'), "must not begin or end with a hyphen"),
    ];
    rules.into_iter().filter(|(holds, _)| !holds).map(|(_, why)| why).collect()
}

/// What is wrong with a key of a ConfigMap or Secret.
pub(crate) fn config_key(key: &str) -> Vec<&'static str> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let rules = [
        (key.len() <= 253, "must be no more than 253 characters"),
        (!key.is_empty() && key.bytes().all(allowed), CONFIG_KEY),
        (key != ".", "must not be '.'"),
        (key != "..", "must not be '..'"),
        (!key.starts_with("..") || key == "..", "must not start with '..'"),
    ];
    rules.into_iter().filter(|(holds, _)| !holds).map(|(_, why)| why).collect()
}

/// What is wrong with the name of an environment variable, if anything.
pub(crate) fn variable(name: &str) -> Option<&'static str> {
    let printable = |c: char| matches!(c, ' '..='~') && c != '=';
    (!name.chars().all(printable)).then_some(
        "a valid environment variable name must consist only of printable ASCII characters other than '='",
    )
}

fn qualified_part(text: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    edge(text.as_bytes().first())
        && edge(text.as_bytes().last())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// What is wrong with a label or annotation key, if anything.
pub(crate) fn label_key(key: &str) -> Option<String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    if prefix.is_some_and(|prefix| prefix.is_empty() || Rule::Subdomain.check(prefix).is_some()) {
        return Some(format!("prefix part {SUBDOMAIN}"));
    }
    if name.is_empty() {
        return Some("name part must be non-empty".into());
    }
    if name.len() > 63 {
        return Some("name part must be no more than 63 bytes".into());
    }
    (!qualified_part(name)).then(|| QUALIFIED.to_owned())
}

/// What is wrong with a label value, if anything.
pub(crate) fn label_value(value: &str) -> Option<String> {
    if value.len() > 63 {
        return Some("must be no more than 63 bytes".into());
    }
    (!value.is_empty() && !qualified_part(value)).then(|| VALUE.to_owned())
}

/// Checks `metadata`: name, labels, annotations, owner references and finalizers.
pub(crate) fn metadata(rule: Rule, object: &Value, errors: &mut Vec<FieldError>) {
    let meta = &object["metadata"];
    let name = meta["name"].as_str().unwrap_or_default();
    if name.is_empty() {
        errors.push(FieldError::required("metadata.name", "name or generateName is required"));
    } else if let Some(wrong) = rule.check(name) {
        errors.push(FieldError::invalid("metadata.name", &meta["name"], wrong));
    }
    string_map(meta, "labels", errors);
    for (key, value) in meta["labels"].as_object().into_iter().flatten() {
        if let Some(wrong) = label_key(key) {
            errors.push(FieldError::invalid("metadata.labels", &key.as_str().into(), wrong));
        }
        if let Some(wrong) = label_value(value.as_str().unwrap_or_default()) {
            errors.push(FieldError::invalid("metadata.labels", value, wrong));
        }
    }
    string_map(meta, "annotations", errors);
    let mut total = 0;
    for (key, value) in meta["annotations"].as_object().into_iter().flatten() {
        total += key.len() + value.as_str().map_or(0, str::len);
        if let Some(wrong) = label_key(&key.to_lowercase()) {
            errors.push(FieldError::invalid("metadata.annotations", &key.as_str().into(), wrong));
        }
    }
    if total > ANNOTATION_BYTES {
        errors.push(FieldError::too_long("metadata.annotations", ANNOTATION_BYTES));
    }
    owners(meta, errors);
    for finalizer in meta["finalizers"].as_array().into_iter().flatten() {
        if let Some(wrong) = label_key(finalizer.as_str().unwrap_or_default()) {
            errors.push(FieldError::invalid("metadata.finalizers", finalizer, wrong));
        }
    }
}

fn string_map(meta: &Value, field: &str, errors: &mut Vec<FieldError>) {
    let path = format!("metadata.{field}");
    match &meta[field] {
        Value::Null => {}
        Value::Object(map) => {
            for (key, value) in map.iter().filter(|(_, value)| !value.is_string()) {
                errors.push(FieldError::type_invalid(format!("{path}.{key}"), value, "must be a string"));
            }
        }
        other => errors.push(FieldError::type_invalid(path, other, "must be a map of strings")),
    }
}

fn owners(meta: &Value, errors: &mut Vec<FieldError>) {
    let mut controllers = 0;
    for owner in meta["ownerReferences"].as_array().into_iter().flatten() {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if owner[field].as_str().unwrap_or_default().is_empty() {
                let path = format!("metadata.ownerReferences.{field}");
                let what =
                    if field == "apiVersion" { "version must not be empty" } else { "must not be empty" };
                errors.push(FieldError::invalid(path, &"".into(), what));
            }
        }
        controllers += usize::from(owner["controller"] == true);
    }
    if controllers > 1 {
        errors.push(FieldError::invalid(
            "metadata.ownerReferences",
            &meta["ownerReferences"],
            "Only one reference can have Controller set to true",
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_sandbox_name_is_a_label_and_the_message_says_why() {
        let rule = Rule::of("agents.x-k8s.io", "Sandbox");
        let wrong = rule.check(&"a".repeat(64)).expect("too long");
        assert!(wrong.contains("no more than 63 characters") && wrong.contains("host name"), "{wrong}");
        assert!(rule.check("a.b").is_some());
        assert!(rule.check(&"a".repeat(63)).is_none());
        assert!(Rule::of("", "ConfigMap").check("a.b").is_none());
        assert!(Rule::of("", "Service").check("1a").is_none(), "since Kubernetes 1.36");
        assert!(Rule::of("", "Service").check("a.b").is_some());
    }

    #[test]
    fn metadata_errors_name_the_field() {
        let object = json!({ "metadata": {
            "name": "UPPER", "labels": { "ok": "not valid!" }, "annotations": { "/x": "" },
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Pod", "name": "p" }],
        }});
        let mut errors = Vec::new();
        metadata(Rule::Subdomain, &object, &mut errors);
        let fields: Vec<_> = errors.iter().map(|e| e.field.as_str()).collect();
        assert_eq!(
            fields,
            ["metadata.name", "metadata.labels", "metadata.annotations", "metadata.ownerReferences.uid"]
        );
    }
}
