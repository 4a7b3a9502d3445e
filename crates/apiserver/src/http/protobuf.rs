//! Kubernetes' protobuf, read only, for the small kinds that kubectl and Go clients insist on sending that way.
//!
//! Answers are always JSON, which those clients read too. Kinds without a table are refused with 415.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

/// A field's number, its JSON name and how to read it.
type Field = (u64, &'static str, Kind);

#[derive(Clone, Copy)]
enum Kind {
    Text,
    Texts,
    Number,
    Flag,
    /// `map<string, string>`.
    TextMap,
    /// `map<string, bytes>`, base64 in JSON.
    BytesMap,
    Time,
    MicroTime,
    IntOrText,
    Message(&'static [Field]),
    Messages(&'static [Field]),
}
use Kind::{BytesMap, Flag, IntOrText, Message, Messages, MicroTime, Number, Text, TextMap, Texts, Time};

const OWNER: &[Field] = &[
    (1, "kind", Text),
    (3, "name", Text),
    (4, "uid", Text),
    (5, "apiVersion", Text),
    (6, "controller", Flag),
    (7, "blockOwnerDeletion", Flag),
];
const META: &[Field] = &[
    (1, "name", Text),
    (2, "generateName", Text),
    (3, "namespace", Text),
    (5, "uid", Text),
    (6, "resourceVersion", Text),
    (11, "labels", TextMap),
    (12, "annotations", TextMap),
    (13, "ownerReferences", Messages(OWNER)),
    (14, "finalizers", Texts),
];
const NAMED: &[Field] = &[(1, "name", Text)];
const REFERENCE: &[Field] = &[
    (1, "kind", Text),
    (2, "namespace", Text),
    (3, "name", Text),
    (4, "uid", Text),
    (5, "apiVersion", Text),
    (6, "resourceVersion", Text),
    (7, "fieldPath", Text),
];
const SOURCE: &[Field] = &[(1, "component", Text), (2, "host", Text)];
const SERIES: &[Field] = &[(1, "count", Number), (2, "lastObservedTime", MicroTime)];
const PORT: &[Field] = &[
    (1, "name", Text),
    (2, "protocol", Text),
    (3, "port", Number),
    (4, "targetPort", IntOrText),
    (6, "appProtocol", Text),
];
const SERVICE: &[Field] = &[
    (1, "ports", Messages(PORT)),
    (2, "selector", TextMap),
    (3, "clusterIP", Text),
    (4, "type", Text),
    (7, "sessionAffinity", Text),
    (10, "externalName", Text),
    (13, "publishNotReadyAddresses", Flag),
];
const LEASE: &[Field] = &[
    (1, "holderIdentity", Text),
    (2, "leaseDurationSeconds", Number),
    (3, "acquireTime", MicroTime),
    (4, "renewTime", MicroTime),
    (5, "leaseTransitions", Number),
];
const RESOURCE_ATTRIBUTES: &[Field] = &[
    (1, "namespace", Text),
    (2, "verb", Text),
    (3, "group", Text),
    (4, "version", Text),
    (5, "resource", Text),
    (6, "subresource", Text),
    (7, "name", Text),
];
const PATH_ATTRIBUTES: &[Field] = &[(1, "path", Text), (2, "verb", Text)];
const REVIEW: &[Field] = &[
    (1, "resourceAttributes", Message(RESOURCE_ATTRIBUTES)),
    (2, "nonResourceAttributes", Message(PATH_ATTRIBUTES)),
];
const PRECONDITIONS: &[Field] = &[(1, "uid", Text), (2, "resourceVersion", Text)];

/// The kinds that are understood, by apiVersion and kind; `DeleteOptions` comes under many versions.
fn table(api_version: &str, kind: &str) -> Option<&'static [Field]> {
    Some(match (api_version, kind) {
        (_, "DeleteOptions") => &[
            (1, "gracePeriodSeconds", Number),
            (2, "preconditions", Message(PRECONDITIONS)),
            (3, "orphanDependents", Flag),
            (4, "propagationPolicy", Text),
            (5, "dryRun", Texts),
        ],
        ("v1", "Namespace") => {
            &[(1, "metadata", Message(META)), (2, "spec", Message(&[(1, "finalizers", Texts)]))]
        }
        ("v1", "ConfigMap") => &[
            (1, "metadata", Message(META)),
            (2, "data", TextMap),
            (3, "binaryData", BytesMap),
            (4, "immutable", Flag),
        ],
        ("v1", "Secret") => &[
            (1, "metadata", Message(META)),
            (2, "data", BytesMap),
            (3, "type", Text),
            (4, "stringData", TextMap),
            (5, "immutable", Flag),
        ],
        ("v1", "ServiceAccount") => &[
            (1, "metadata", Message(META)),
            (3, "imagePullSecrets", Messages(NAMED)),
            (4, "automountServiceAccountToken", Flag),
        ],
        ("v1", "Service") => &[(1, "metadata", Message(META)), (2, "spec", Message(SERVICE))],
        ("v1", "Event") => &[
            (1, "metadata", Message(META)),
            (2, "involvedObject", Message(REFERENCE)),
            (3, "reason", Text),
            (4, "message", Text),
            (5, "source", Message(SOURCE)),
            (6, "firstTimestamp", Time),
            (7, "lastTimestamp", Time),
            (8, "count", Number),
            (9, "type", Text),
            (10, "eventTime", MicroTime),
            (11, "series", Message(SERIES)),
            (12, "action", Text),
            (13, "related", Message(REFERENCE)),
            (14, "reportingComponent", Text),
            (15, "reportingInstance", Text),
        ],
        ("events.k8s.io/v1", "Event") => &[
            (1, "metadata", Message(META)),
            (2, "eventTime", MicroTime),
            (3, "series", Message(SERIES)),
            (4, "reportingController", Text),
            (5, "reportingInstance", Text),
            (6, "action", Text),
            (7, "reason", Text),
            (8, "regarding", Message(REFERENCE)),
            (9, "related", Message(REFERENCE)),
            (10, "note", Text),
            (11, "type", Text),
        ],
        ("coordination.k8s.io/v1", "Lease") => &[(1, "metadata", Message(META)), (2, "spec", Message(LEASE))],
        ("authorization.k8s.io/v1", "SelfSubjectAccessReview") => {
            &[(1, "metadata", Message(META)), (2, "spec", Message(REVIEW))]
        }
        _ => return None,
    })
}

/// Reads an object: four magic bytes, then an envelope that names the kind and holds the message.
pub(super) fn parse(raw: &[u8]) -> Option<Value> {
    let mut envelope = raw.strip_prefix(b"k8s\0")?;
    let (mut api_version, mut kind, mut message) = (String::new(), String::new(), None);
    while let Some((number, value)) = next(&mut envelope)? {
        match (number, value) {
            (1, Wire::Bytes(mut names)) => {
                while let Some((number, value)) = next(&mut names)? {
                    match number {
                        1 => api_version = value.text()?,
                        2 => kind = value.text()?,
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => message = Some(bytes),
            _ => {}
        }
    }
    let mut object = read(message?, table(&api_version, &kind)?, 0)?;
    object.insert("apiVersion".into(), api_version.into());
    object.insert("kind".into(), kind.into());
    Some(object.into())
}

enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl Wire<'_> {
    fn text(&self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }

    fn bytes(&self) -> Option<&[u8]> {
        if let Wire::Bytes(bytes) = self { Some(bytes) } else { None }
    }

    fn number(&self) -> Option<i64> {
        if let Wire::Number(number) = self { Some(*number as i64) } else { None }
    }
}

fn varint(input: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = input.split_first()?;
        *input = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// The next field: `Some(None)` at the end, `None` when the message is malformed.
#[allow(clippy::option_option)]
fn next<'a>(input: &mut &'a [u8]) -> Option<Option<(u64, Wire<'a>)>> {
    if input.is_empty() {
        return Some(None);
    }
    let tag = varint(input)?;
    let fixed = |input: &mut &'a [u8], size: usize| {
        let (bytes, rest) = input.split_at_checked(size)?;
        *input = rest;
        Some(bytes)
    };
    let value = match tag & 7 {
        0 => Wire::Number(varint(input)?),
        1 => Wire::Bytes(fixed(input, 8)?),
        2 => {
            let size = usize::try_from(varint(input)?).ok()?;
            Wire::Bytes(fixed(input, size)?)
        }
        5 => Wire::Bytes(fixed(input, 4)?),
        _ => return None,
    };
    Some(Some((tag >> 3, value)))
}

fn read(mut input: &[u8], fields: &[Field], depth: usize) -> Option<Map<String, Value>> {
    let mut object = Map::new();
    while let Some((number, wire)) = next(&mut input)? {
        let Some((_, name, kind)) = fields.iter().find(|(known, _, _)| *known == number) else { continue };
        let mut push = |value: Value| {
            if let Value::Array(list) = object.entry(*name).or_insert(Value::Array(Vec::new())) {
                list.push(value);
            }
        };
        let value = match kind {
            // Go writes empty strings out; in JSON they are left out.
            Text => Some(wire.text()?).filter(|text| !text.is_empty()).map(Value::from),
            Number => Some(wire.number()?.into()),
            Flag => Some((wire.number()? != 0).into()),
            Time => time(wire.bytes()?, false)?,
            MicroTime => time(wire.bytes()?, true)?,
            IntOrText => int_or_text(wire.bytes()?)?,
            Message(fields) if depth < 8 => Some(read(wire.bytes()?, fields, depth + 1)?.into()),
            Message(_) => return None,
            Texts => {
                push(wire.text()?.into());
                None
            }
            Messages(fields) => {
                push(read(wire.bytes()?, fields, depth + 1)?.into());
                None
            }
            TextMap | BytesMap => {
                let (key, value) = map_entry(wire.bytes()?)?;
                let value: Value = match kind {
                    TextMap => String::from_utf8(value.to_vec()).ok()?.into(),
                    _ => STANDARD.encode(value).into(),
                };
                if let Value::Object(map) = object.entry(*name).or_insert(Value::Object(Map::new())) {
                    map.insert(key, value);
                }
                None
            }
        };
        if let Some(value) = value {
            object.insert((*name).into(), value);
        }
    }
    Some(object)
}

fn map_entry(mut input: &[u8]) -> Option<(String, &[u8])> {
    let (mut key, mut value): (String, &[u8]) = (String::new(), &[]);
    while let Some((number, wire)) = next(&mut input)? {
        match (number, wire) {
            (1, wire) => key = wire.text()?,
            (2, Wire::Bytes(bytes)) => value = bytes,
            _ => {}
        }
    }
    Some((key, value))
}

#[allow(clippy::option_option)]
fn time(mut input: &[u8], micro: bool) -> Option<Option<Value>> {
    let (mut seconds, mut nanos) = (0, 0);
    while let Some((number, wire)) = next(&mut input)? {
        match number {
            1 => seconds = wire.number()?,
            2 => nanos = wire.number()?,
            _ => {}
        }
    }
    if seconds == 0 && nanos == 0 {
        return Some(None);
    }
    let time = jiff::Timestamp::new(seconds, i32::try_from(nanos).ok()?).ok()?;
    let format = if micro { "%Y-%m-%dT%H:%M:%S%.6fZ" } else { "%Y-%m-%dT%H:%M:%SZ" };
    Some(Some(time.strftime(format).to_string().into()))
}

#[allow(clippy::option_option)]
fn int_or_text(mut input: &[u8]) -> Option<Option<Value>> {
    let (mut is_text, mut number, mut text) = (false, 0, String::new());
    while let Some((field, wire)) = next(&mut input)? {
        match field {
            1 => is_text = wire.number()? == 1,
            2 => number = wire.number()?,
            3 => text = wire.text()?,
            _ => {}
        }
    }
    Some(match (is_text, number) {
        (true, _) => Some(text.into()),
        (false, 0) => None,
        (false, number) => Some(number.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, u8::try_from(content.len()).expect("short")], content].concat()
    }

    fn envelope(kind: &str, message: &[u8]) -> Vec<u8> {
        let names = [field(1, b"v1"), field(2, kind.as_bytes())].concat();
        [b"k8s\0".to_vec(), field(1, &names), field(2, message)].concat()
    }

    #[test]
    fn a_config_map_is_read() {
        let entry = [field(1, b"key"), field(2, b"value")].concat();
        let message = [field(1, &[field(1, b"name"), field(2, b"")].concat()), field(2, &entry)].concat();
        assert_eq!(
            parse(&envelope("ConfigMap", &message)),
            Some(
                json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "name" }, "data": { "key": "value" } })
            )
        );
    }

    #[test]
    fn other_kinds_and_broken_messages_are_refused() {
        assert_eq!(parse(&envelope("Pod", b"")), None);
        assert_eq!(parse(&envelope("ConfigMap", &[0x0a, 0x7f])), None);
        assert_eq!(parse(b"{}"), None);
        assert_eq!(parse(&[b"k8s\0".as_slice(), &[0xff; 12]].concat()), None);
    }
}
