//! Lists: selectors, pages, and lists at an exact revision.

use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::StatusCode;
use serde_json::{Value, json};

use super::table::{Include, Table, metadata_only};
use super::{Context, View};
use crate::status::{ApiError, raw_response};
use crate::store::{Compacted, Snapshot};

/// Where the next page starts.
struct Continue {
    revision: u64,
    after: String,
}

impl Context {
    pub(super) fn list(&self) -> Result<Response, ApiError> {
        let selector = self.selector()?;
        let limit = self.query.number("limit")?.filter(|limit| *limit > 0);
        let page = self.query.get("continue").map(Continue::decode).transpose()?;
        let snapshot = self.snapshot(page.as_ref())?;
        let revision = snapshot.revision;
        let after = page.map(|page| page.after).unwrap_or_default();
        let path = |entry: &crate::store::Entry| format!("{}/{}", entry.meta.namespace, entry.meta.name);
        let mut entries: Vec<_> = snapshot
            .entries
            .into_iter()
            .filter(|entry| selector.matches(entry) && (after.is_empty() || path(entry) > after))
            .collect();
        let mut metadata = json!({ "resourceVersion": revision.to_string() });
        if let Some(limit) = limit.map(|limit| limit as usize).filter(|limit| *limit < entries.len()) {
            if selector.is_empty() {
                metadata["remainingItemCount"] = (entries.len() - limit).into();
            }
            entries.truncate(limit);
            let after = entries.last().map(|entry| path(entry)).unwrap_or_default();
            metadata["continue"] = Continue { revision, after }.encode().into();
        }
        let body = match self.view {
            View::Table => {
                let include = Include::parse(self.query.text("includeObject"));
                let objects = entries.iter().map(|entry| self.target.present(entry));
                Table::new(&self.target, include).render(metadata, objects, true).to_string().into()
            }
            View::Metadata => {
                let items: Vec<Value> =
                    entries.iter().map(|entry| metadata_only(&self.target.present(entry))).collect();
                let list = json!({ "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "items": items });
                list.to_string().into()
            }
            View::Full => {
                let head = format!(
                    "{{\"kind\":{},\"apiVersion\":{},\"metadata\":{metadata},\"items\":[",
                    Value::from(&*self.target.resource.list_kind),
                    Value::from(self.target.api_version())
                );
                let size: usize = entries.iter().map(|entry| entry.bytes.len() + 1).sum();
                let mut body = Vec::with_capacity(head.len() + size + 2);
                body.extend_from_slice(head.as_bytes());
                for (at, entry) in entries.iter().enumerate() {
                    if at > 0 {
                        body.push(b',');
                    }
                    body.extend_from_slice(&self.target.render(entry));
                }
                body.extend_from_slice(b"]}");
                body.into()
            }
        };
        Ok(raw_response(StatusCode::OK, body))
    }

    /// The objects as they are now, or as they were at the revision that was asked for.
    fn snapshot(&self, page: Option<&Continue>) -> Result<Snapshot, ApiError> {
        let store = &self.api.store;
        let (collection, prefix) = (&self.target.resource.collection, self.prefix());
        let asked = self.query.number("resourceVersion")?;
        let exact = match (page, self.query.get("resourceVersionMatch"), asked) {
            (Some(page), _, _) => Some(page.revision),
            (None, Some("Exact"), Some(revision)) => Some(revision),
            (None, None | Some("NotOlderThan" | "Exact"), _) => None,
            (None, Some(other), _) => {
                return Err(ApiError::bad_request(format!(
                    "invalid resourceVersionMatch {other:?}: want Exact or NotOlderThan"
                )));
            }
        };
        check_not_ahead(exact.or(asked).unwrap_or(0), store.revision())?;
        let Some(revision) = exact.or(self.at) else { return Ok(store.list(collection, &prefix)) };
        store.list_at(collection, &prefix, revision).map_err(|Compacted| {
            ApiError::expired(match page {
                Some(_) => "The provided continue parameter is too old to display a consistent list result. You must start a new list without the continue parameter.".to_owned(),
                None => format!("The resourceVersion for the provided list is too old: {revision}"),
            })
        })
    }
}

/// A revision that does not exist yet cannot be served.
pub(super) fn check_not_ahead(asked: u64, current: u64) -> Result<(), ApiError> {
    if asked <= current {
        return Ok(());
    }
    let mut error =
        ApiError::new(504, "Timeout", format!("Too large resource version: {asked}, current: {current}"));
    error.details = Some(
        json!({ "retryAfterSeconds": 1, "causes": [{ "reason": "ResourceVersionTooLarge", "message": "Too large resource version" }] }),
    );
    Err(error)
}

impl Continue {
    fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(json!({ "v": 1, "rv": self.revision, "after": self.after }).to_string())
    }

    fn decode(text: &str) -> Result<Self, ApiError> {
        let parse = || {
            let raw = URL_SAFE_NO_PAD.decode(text).ok()?;
            let token: Value = serde_json::from_slice(&raw).ok()?;
            Some(Self { revision: token["rv"].as_u64()?, after: token["after"].as_str()?.to_owned() })
        };
        parse()
            .ok_or_else(|| ApiError::bad_request("continue key is not valid: use the one of the page before"))
    }
}
