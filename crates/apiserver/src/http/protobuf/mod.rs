//! Kubernetes' protobuf, read only: kubectl and other Go programs send built-in kinds that way.
//!
//! Answers are always JSON, which those programs read too. Kinds that `registry/messages.txt` does not know are refused with 415.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use crate::registry::messages::{self, Field, Kind, Shape};

/// Messages inside messages. No kind that is read here has more.
const MAX_DEPTH: usize = 24;

/// Why an object could not be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    Malformed,
    /// Its kind is none of those that are read.
    Kind,
}

/// Reads an object: four magic bytes, then an envelope that names the kind and holds the message.
pub(super) fn parse(raw: &[u8]) -> Result<Value, Unreadable> {
    let (api_version, kind, message) = envelope(raw).ok_or(Unreadable::Malformed)?;
    let described = messages::of_kind(&api_version, &kind).ok_or(Unreadable::Kind)?;
    let mut object = Map::new();
    read(message, described, &mut object, 0).ok_or(Unreadable::Malformed)?;
    object.insert("apiVersion".into(), api_version.into());
    object.insert("kind".into(), kind.into());
    Ok(object.into())
}

/// The API version, the kind and the message.
fn envelope(raw: &[u8]) -> Option<(String, String, &[u8])> {
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
    Some((api_version, kind, message?))
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

/// Reads a message into the fields of an object.
fn read(mut input: &[u8], message: &str, object: &mut Map<String, Value>, depth: usize) -> Option<()> {
    if depth > MAX_DEPTH {
        return None;
    }
    let fields = messages::fields(message);
    while let Some((number, wire)) = next(&mut input)? {
        let Some(field) = fields.iter().find(|field| field.number == number) else { continue };
        match field.shape {
            Shape::One => {
                if let Some(value) = value(&wire, field, depth)? {
                    object.insert(field.name.into(), value);
                }
            }
            Shape::List => {
                let list = object.entry(field.name).or_insert(Value::Array(Vec::new()));
                if let (Some(list), Some(value)) = (list.as_array_mut(), value(&wire, field, depth)?) {
                    list.push(value);
                }
            }
            Shape::Map => {
                let (key, entry) = map_entry(wire.bytes()?)?;
                let map = object.entry(field.name).or_insert(Value::Object(Map::new()));
                if let (Some(map), Some(value)) =
                    (map.as_object_mut(), value(&Wire::Bytes(entry), field, depth)?)
                {
                    map.insert(key, value);
                }
            }
            Shape::Inline => {
                if let Kind::Message(inner) = field.kind {
                    read(wire.bytes()?, inner, object, depth + 1)?;
                }
            }
        }
    }
    Some(())
}

/// A value, or none when JSON would not have it.
#[allow(clippy::option_option)]
fn value(wire: &Wire<'_>, field: &Field, depth: usize) -> Option<Option<Value>> {
    let value: Value = match field.kind {
        Kind::Text => wire.text()?.into(),
        Kind::Bytes => STANDARD.encode(wire.bytes()?).into(),
        Kind::Int32 | Kind::Int64 => wire.number()?.into(),
        Kind::Flag => (wire.number()? != 0).into(),
        Kind::Time => return time(wire.bytes()?, false),
        Kind::MicroTime => return time(wire.bytes()?, true),
        Kind::IntOrText => int_or_text(wire.bytes()?)?,
        Kind::Quantity => quantity(wire.bytes()?)?.into(),
        Kind::Json => match embedded(wire.bytes()?)? {
            [] => return Some(None),
            json => serde_json::from_slice(json).ok()?,
        },
        Kind::Message(inner) => {
            let mut object = Map::new();
            read(wire.bytes()?, inner, &mut object, depth + 1)?;
            object.into()
        }
    };
    let empty = matches!(&value, Value::Bool(false)) || value == 0 || value == "";
    Some(Some(value).filter(|_| !(field.drops_empty && empty)))
}

/// A quantity is a message with a text in it.
fn quantity(mut input: &[u8]) -> Option<String> {
    let mut text = String::new();
    while let Some((number, wire)) = next(&mut input)? {
        if number == 1 {
            text = wire.text()?;
        }
    }
    Some(if text.is_empty() { "0".to_owned() } else { text })
}

/// JSON is a message with bytes in it.
fn embedded(mut input: &[u8]) -> Option<&[u8]> {
    let mut json: &[u8] = &[];
    while let Some((number, wire)) = next(&mut input)? {
        if let (1, Wire::Bytes(bytes)) = (number, wire) {
            json = bytes;
        }
    }
    Some(json)
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

fn int_or_text(mut input: &[u8]) -> Option<Value> {
    let (mut is_text, mut number, mut text) = (false, 0, String::new());
    while let Some((field, wire)) = next(&mut input)? {
        match field {
            1 => is_text = wire.number()? == 1,
            2 => number = wire.number()?,
            3 => text = wire.text()?,
            _ => {}
        }
    }
    Some(if is_text { text.into() } else { number.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        let mut size = content.len();
        let mut head = vec![number << 3 | 2];
        while size > 127 {
            head.push((size & 127) as u8 | 128);
            size >>= 7;
        }
        head.push(size as u8);
        [&head, content].concat()
    }

    fn enveloped(kind: &str, message: &[u8]) -> Vec<u8> {
        let names = [field(1, b"v1"), field(2, kind.as_bytes())].concat();
        [b"k8s\0".to_vec(), field(1, &names), field(2, message)].concat()
    }

    #[test]
    fn a_config_map_is_read() {
        let entry = [field(1, b"key"), field(2, b"value")].concat();
        let message = [field(1, &[field(1, b"name"), field(2, b"")].concat()), field(2, &entry)].concat();
        assert_eq!(
            parse(&enveloped("ConfigMap", &message)),
            Ok(
                json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "name" }, "data": { "key": "value" } })
            )
        );
    }

    #[test]
    fn a_pod_is_read() {
        let text = |number: u8, text: &str| field(number, text.as_bytes());
        let number = |number: u8, value: u8| match number {
            ..16 => vec![number << 3, value],
            _ => vec![number << 3 | 128, number >> 4, value],
        };
        let entry = |key: &str, value: &[u8]| [field(1, key.as_bytes()), field(2, value)].concat();
        let port = [text(1, ""), number(2, 0), number(3, 80), text(4, "TCP"), text(5, "")].concat();
        let key_ref = [field(1, &text(1, "settings")), text(2, "key")].concat();
        let variable = [text(1, "A"), text(2, ""), field(3, &field(3, &key_ref))].concat();
        let limits = field(1, &entry("cpu", &text(1, "500m")));
        let request = [text(1, "/"), field(2, &[number(1, 0), number(2, 80), text(3, "")].concat())].concat();
        let probe = [field(1, &field(2, &request)), number(2, 0), number(3, 1)].concat();
        let container = [
            text(1, "main"),
            text(2, "app:1"),
            field(6, &port),
            field(7, &variable),
            field(8, &limits),
            field(10, &probe),
            number(16, 0),
        ];
        let volume = [text(1, "v"), field(2, &field(2, &text(1, "Memory")))].concat();
        let spec =
            [field(1, &volume), field(2, &container.concat()), text(3, "Never"), number(21, 0)].concat();
        let message =
            [field(1, &[text(1, "p"), text(2, ""), field(8, b"")].concat()), field(2, &spec), field(3, b"")];
        assert_eq!(
            parse(&enveloped("Pod", &message.concat())),
            Ok(json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p" }, "status": {},
                "spec": {
                    "volumes": [{ "name": "v", "emptyDir": { "medium": "Memory" } }],
                    "containers": [{
                        "name": "main", "image": "app:1", "ports": [{ "containerPort": 80, "protocol": "TCP" }],
                        "env": [{ "name": "A", "valueFrom": { "configMapKeyRef": { "name": "settings", "key": "key" } } }],
                        "resources": { "limits": { "cpu": "500m" } },
                        "livenessProbe": { "httpGet": { "path": "/", "port": 80 }, "timeoutSeconds": 1 },
                    }],
                    "restartPolicy": "Never", "automountServiceAccountToken": false,
                },
            }))
        );
    }

    #[test]
    fn other_kinds_and_broken_messages_are_refused() {
        assert_eq!(parse(&enveloped("ReplicationController", b"")), Err(Unreadable::Kind));
        for broken in [
            enveloped("ConfigMap", &[0x0a, 0x7f]),
            b"{}".to_vec(),
            [b"k8s\0".as_slice(), &[0xff; 12]].concat(),
        ] {
            assert_eq!(parse(&broken), Err(Unreadable::Malformed));
        }
    }
}
