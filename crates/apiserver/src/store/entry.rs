//! One stored object: its bytes as they go over the wire and the few facts the server looks at.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

/// Where an object lives. `path` is `namespace/name`, with an empty namespace for cluster-wide kinds.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pub collection: Arc<str>,
    pub path: Box<str>,
}

/// What the server needs to know about an object without parsing it again.
#[derive(Debug, Clone, Default)]
pub(crate) struct Meta {
    pub namespace: Box<str>,
    pub name: Box<str>,
    pub uid: Box<str>,
    pub labels: Vec<(Box<str>, Box<str>)>,
    pub owners: Vec<Owner>,
    pub finalizers: Vec<Box<str>>,
    pub deleting: bool,
    /// Values of the collection's selectable fields, in the order of its field table.
    pub fields: Vec<Box<str>>,
}

#[derive(Debug, Clone)]
pub(crate) struct Owner {
    pub uid: Box<str>,
    pub blocks_deletion: bool,
}

/// An object at one revision.
#[derive(Debug)]
pub(crate) struct Entry {
    pub revision: u64,
    pub bytes: Bytes,
    pub meta: Meta,
    /// Where the digits of the resourceVersion stand in `bytes`.
    revision_at: u32,
}

/// An object ready to be written, waiting for its resourceVersion.
#[derive(Debug)]
pub(crate) struct Draft {
    head: Vec<u8>,
    tail: Bytes,
    meta: Meta,
}

impl Key {
    pub fn new(collection: &Arc<str>, namespace: &str, name: &str) -> Self {
        Self { collection: collection.clone(), path: format!("{namespace}/{name}").into() }
    }

    pub fn name(&self) -> &str {
        self.path.split_once('/').map_or(&self.path, |(_, name)| name)
    }
}

impl Meta {
    pub fn of(object: &Value, fields: &[&str]) -> Self {
        let meta = &object["metadata"];
        let text = |field: &str| meta[field].as_str().unwrap_or_default().into();
        let list = |field: &str| meta[field].as_array().map(Vec::as_slice).unwrap_or_default();
        Self {
            namespace: text("namespace"),
            name: text("name"),
            uid: text("uid"),
            labels: meta["labels"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(k, v)| (k.as_str().into(), v.as_str().unwrap_or_default().into()))
                .collect(),
            owners: list("ownerReferences")
                .iter()
                .map(|owner| Owner {
                    uid: owner["uid"].as_str().unwrap_or_default().into(),
                    blocks_deletion: owner["blockOwnerDeletion"] == true,
                })
                .collect(),
            finalizers: list("finalizers").iter().filter_map(Value::as_str).map(Into::into).collect(),
            deleting: meta["deletionTimestamp"].is_string(),
            fields: fields.iter().map(|field| dotted(object, field)).collect(),
        }
    }
}

/// The text at a dotted path, empty when there is none.
fn dotted(object: &Value, path: &str) -> Box<str> {
    match path.split('.').fold(object, |at, part| &at[part]) {
        Value::String(text) => text.as_str().into(),
        Value::Null => "".into(),
        other => other.to_string().into(),
    }
}

impl Draft {
    /// Serialises `object` with `apiVersion`, `kind` and `metadata` first and a gap for the resourceVersion.
    pub fn of(object: &Value, fields: &[&str]) -> Self {
        let mut head = Vec::with_capacity(512);
        let mut tail = Vec::with_capacity(512);
        let write = |out: &mut Vec<u8>, name: &str, value: &Value| {
            serde_json::to_writer(&mut *out, name).expect("writing to memory cannot fail");
            out.push(b':');
            serde_json::to_writer(&mut *out, value).expect("writing to memory cannot fail");
        };
        head.push(b'{');
        for name in ["apiVersion", "kind"] {
            write(&mut head, name, &object[name]);
            head.push(b',');
        }
        head.extend_from_slice(b"\"metadata\":{");
        for (name, value) in object["metadata"].as_object().into_iter().flatten() {
            if name != "resourceVersion" {
                write(&mut head, name, value);
                head.push(b',');
            }
        }
        head.extend_from_slice(b"\"resourceVersion\":\"");
        tail.extend_from_slice(b"\"}");
        for (name, value) in object.as_object().into_iter().flatten() {
            if !matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
                tail.push(b',');
                write(&mut tail, name, value);
            }
        }
        tail.push(b'}');
        Self { head, tail: tail.into(), meta: Meta::of(object, fields) }
    }

    /// The draft as if written, for dry runs.
    pub fn preview(self, revision: u64) -> Entry {
        self.seal(revision)
    }

    pub(super) fn seal(self, revision: u64) -> Entry {
        let Self { head: mut bytes, tail, meta } = self;
        let revision_at = bytes.len() as u32;
        bytes.extend_from_slice(revision.to_string().as_bytes());
        bytes.extend_from_slice(&tail);
        bytes.shrink_to_fit();
        Entry { revision, bytes: bytes.into(), meta, revision_at }
    }
}

impl Entry {
    /// The same object under a later revision.
    pub(super) fn reseal(&self, revision: u64) -> Entry {
        let at = self.revision_at as usize;
        let digits = self.bytes[at..].iter().take_while(|b| b.is_ascii_digit()).count();
        let tail = self.bytes.slice(at + digits..);
        Draft { head: self.bytes[..at].to_vec(), tail, meta: self.meta.clone() }.seal(revision)
    }

    pub fn parse(&self) -> Value {
        serde_json::from_slice(&self.bytes).expect("the store holds only JSON that it wrote")
    }

    /// As kept on disk: where the revision is, how long the key is, the key, the JSON.
    pub(super) fn to_disk(&self, key: &Key) -> Vec<u8> {
        let key = format!("{}/{}", key.collection, key.path);
        let length = key.len() as u32;
        [&self.revision_at.to_le_bytes(), &length.to_le_bytes(), key.as_bytes(), self.bytes.as_ref()].concat()
    }

    pub(super) fn from_disk(raw: &[u8], fields: super::Fields) -> Option<(Key, Entry)> {
        let (at, rest) = raw.split_first_chunk::<4>()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (key, json) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let (collection, path) = std::str::from_utf8(key).ok()?.split_once('/')?;
        let object: Value = serde_json::from_slice(json).ok()?;
        let revision = object["metadata"]["resourceVersion"].as_str()?.parse().ok()?;
        let entry = Entry {
            revision,
            bytes: Bytes::copy_from_slice(json),
            meta: Meta::of(&object, fields(collection)),
            revision_at: u32::from_le_bytes(*at),
        };
        Some((Key { collection: collection.into(), path: path.into() }, entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_the_objects_own_resource_version_is_set() {
        let object = json!({
            "apiVersion": "v1", "kind": "Event",
            "involvedObject": { "resourceVersion": "1" },
            "metadata": { "name": "e", "resourceVersion": "5" },
        });
        let entry = Draft::of(&object, &[]).seal(41);
        assert_eq!(entry.parse()["metadata"]["resourceVersion"], "41");
        let later = entry.reseal(1000).parse();
        assert_eq!(later["metadata"]["resourceVersion"], "1000");
        assert_eq!(later["involvedObject"]["resourceVersion"], "1");
    }

    #[test]
    fn an_entry_survives_the_disk() {
        let object = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p", "labels": { "a": "b" } },
            "spec": { "nodeName": "n" } });
        let entry = Draft::of(&object, &["spec.nodeName"]).seal(7);
        let key = Key::new(&"pods".into(), "ns", "p");
        let (read, back) = Entry::from_disk(&entry.to_disk(&key), |_| &["spec.nodeName"]).expect("readable");
        assert_eq!(read, key);
        assert_eq!((back.revision, &back.bytes), (7, &entry.bytes));
        assert_eq!(&*back.meta.fields[0], "n");
        assert_eq!(back.reseal(8).revision, 8);
    }
}
