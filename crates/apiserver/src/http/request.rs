//! What a request is about, read from its path, query and headers.

use http::HeaderMap;

use crate::ops::{FieldValidation, WriteOptions};
use crate::status::ApiError;

/// A path below `/api/v1` or `/apis/GROUP/VERSION`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ResourcePath {
    pub group: String,
    pub version: String,
    pub namespace: String,
    pub plural: String,
    pub name: Option<String>,
    pub subresource: Option<String>,
}

/// The query parameters, decoded.
#[derive(Debug, Default)]
pub(super) struct Query(Vec<(String, String)>);

/// In which shape objects are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    Full,
    Metadata,
    Table,
}

impl ResourcePath {
    pub fn parse(path: &str) -> Option<Self> {
        let mut parts: Vec<String> = path.trim_matches('/').split('/').map(decode).collect();
        let (group, version) = match parts.first()?.as_str() {
            "api" if parts.len() > 2 => (String::new(), parts[1].clone()),
            "apis" if parts.len() > 3 => (parts[1].clone(), parts[2].clone()),
            _ => return None,
        };
        parts.drain(..if group.is_empty() { 2 } else { 3 });
        let own = parts.len() == 3 && matches!(parts[2].as_str(), "status" | "finalize");
        let namespace = if parts[0] == "namespaces" && parts.len() > 2 && !own {
            let namespace = parts[1].clone();
            parts.drain(..2);
            namespace
        } else {
            String::new()
        };
        // The part after `proxy` is a path of the program in the Pod.
        if parts.get(2).is_some_and(|part| part == "proxy") {
            parts.truncate(3);
        }
        if parts.len() > 3 || parts.iter().any(String::is_empty) {
            return None;
        }
        let mut parts = parts.into_iter();
        let plural = parts.next()?;
        Some(Self { group, version, namespace, plural, name: parts.next(), subresource: parts.next() })
    }
}

impl Query {
    pub fn parse(query: &str) -> Self {
        let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(&name.replace('+', " ")), decode(&value.replace('+', " ")))
        });
        Self(pairs.collect())
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, value)| key == name && !value.is_empty()).map(|(_, value)| value.as_str())
    }

    pub fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    pub fn flag(&self, name: &str) -> bool {
        matches!(self.get(name), Some("true" | "1" | "True"))
    }

    pub fn number(&self, name: &str) -> Result<Option<u64>, ApiError> {
        self.get(name)
            .map(|text| {
                let wrong =
                    || ApiError::bad_request(format!("invalid {name} {text:?}: want a non-negative number"));
                text.parse().map_err(|_| wrong())
            })
            .transpose()
    }

    pub fn dry_run(&self) -> Result<bool, ApiError> {
        match self.get("dryRun") {
            None => Ok(false),
            Some("All") => Ok(true),
            Some(other) => {
                Err(ApiError::bad_request(format!("invalid dryRun {other:?}: only All is supported")))
            }
        }
    }

    pub fn write_options(&self, duplicates: Vec<String>) -> Result<WriteOptions, ApiError> {
        let validation = match self.get("fieldValidation") {
            None | Some("Warn") => FieldValidation::Warn,
            Some("Strict") => FieldValidation::Strict,
            Some("Ignore") => FieldValidation::Ignore,
            Some(other) => {
                return Err(ApiError::bad_request(format!(
                    "invalid fieldValidation {other:?}: want Ignore, Warn or Strict"
                )));
            }
        };
        Ok(WriteOptions { dry_run: self.dry_run()?, validation, duplicates })
    }
}

impl View {
    /// The first shape in `Accept` that the server knows; whatever else is asked for is answered with plain JSON.
    pub fn of(headers: &HeaderMap) -> Self {
        let accept =
            headers.get(http::header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        for choice in accept.split(',') {
            let mut parts = choice.split(';').map(str::trim);
            if !matches!(parts.next(), Some("application/json" | "*/*" | "application/*")) {
                continue;
            }
            let parameters: Vec<_> = parts.filter_map(|part| part.split_once('=')).collect();
            let parameter =
                |name: &str| parameters.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
            match (parameter("as"), parameter("v")) {
                (None, _) => return View::Full,
                (Some("Table"), Some("v1") | None) => return View::Table,
                (Some("PartialObjectMetadata" | "PartialObjectMetadataList"), Some("v1") | None) => {
                    return View::Metadata;
                }
                _ => {}
            }
        }
        View::Full
    }
}

fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        match (bytes[at], hex.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(byte)) => {
                out.push(byte);
                at += 3;
            }
            (byte, _) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_namespace_resource_and_subresource() {
        let path = ResourcePath::parse("/apis/g.io/v1/namespaces/ns/things/x/status").expect("a resource");
        assert_eq!(
            (path.group.as_str(), path.namespace.as_str(), path.plural.as_str()),
            ("g.io", "ns", "things")
        );
        assert_eq!((path.name.as_deref(), path.subresource.as_deref()), (Some("x"), Some("status")));
        let own = ResourcePath::parse("/api/v1/namespaces/ns/status").expect("a namespace's status");
        assert_eq!((own.plural.as_str(), own.name.as_deref()), ("namespaces", Some("ns")));
        let list = ResourcePath::parse("/api/v1/namespaces/ns/pods").expect("a list");
        assert_eq!((list.namespace.as_str(), list.name), ("ns", None));
        assert_eq!(ResourcePath::parse("/api/v1"), None);
        let proxy = ResourcePath::parse("/api/v1/nodes/n/proxy/stats/summary").expect("a node's proxy");
        assert_eq!((proxy.name.as_deref(), proxy.subresource.as_deref()), (Some("n"), Some("proxy")));
        assert_eq!(ResourcePath::parse("/api/v1/nodes/n/status/stats/summary"), None);
    }

    #[test]
    fn queries_are_decoded() {
        let query = Query::parse("labelSelector=a%3Db%2Cc&fieldSelector=metadata.name+%3D%20x&watch=true");
        assert_eq!(query.text("labelSelector"), "a=b,c");
        assert_eq!(query.text("fieldSelector"), "metadata.name = x");
        assert!(query.flag("watch"));
    }

    #[test]
    fn protobuf_only_clients_get_json() {
        let mut headers = HeaderMap::new();
        headers.insert("accept", "application/vnd.kubernetes.protobuf".parse().expect("valid"));
        assert_eq!(View::of(&headers), View::Full);
        headers.insert(
            "accept",
            "application/json;as=Table;v=v1;g=meta.k8s.io,application/json".parse().expect("valid"),
        );
        assert_eq!(View::of(&headers), View::Table);
    }
}
