//! Watches: a stream of events from a revision on.
//!
//! ```text
//! resourceVersion   sendInitialEvents   starts with
//! "" or "0"         –                   everything there is, as ADDED
//! N                 –                   what happened after N, or 410
//! any               true                everything there is, then a bookmark that says so
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::list::check_not_ahead;
use super::table::{Include, Table, metadata_only};
use super::{Context, View};
use crate::selector::Selector;
use crate::status::{ApiError, FieldError};
use crate::store::{Change, Compacted, Cursor, Entry};

/// How often an idle watcher is told the current revision.
const BOOKMARK_EVERY: Duration = Duration::from_secs(30);
/// For clients that name no timeout.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(3600);
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

struct Watch {
    context: Context,
    selector: Selector,
    prefix: String,
    cursor: Cursor,
    /// Objects still to be sent before the changes.
    initial: VecDeque<Arc<Entry>>,
    /// Whether a bookmark closes the initial objects.
    announce_end: bool,
    bookmarks: bool,
    next_bookmark: Instant,
    told: u64,
    ends: Instant,
    columns_sent: bool,
    finished: bool,
}

impl Context {
    pub(super) fn watch(self) -> Result<Response, ApiError> {
        let selector = self.selector()?;
        let asked = self.query.number("resourceVersion")?.unwrap_or(0);
        let send_initial = self.query.flag("sendInitialEvents");
        self.check_watch_options()?;
        let store = &self.api.store;
        check_not_ahead(asked, store.revision())?;
        let (collection, prefix) = (self.target.resource.collection.clone(), self.prefix());
        let without_initial = self.query.get("sendInitialEvents") == Some("false");
        let (initial, from) = if send_initial || (asked == 0 && !without_initial) {
            let snapshot = match self.at {
                Some(revision) => {
                    store.list_at(&collection, &prefix, revision).map_err(|_| too_old(revision))?
                }
                None => store.list(&collection, &prefix),
            };
            let chosen = snapshot.entries.into_iter().filter(|entry| selector.matches(entry));
            (chosen.collect(), snapshot.revision)
        } else {
            (VecDeque::new(), if asked == 0 { self.at.unwrap_or_else(|| store.revision()) } else { asked })
        };
        let cursor = store.watch(&collection, from, self.ahead);
        if cursor.is_compacted() {
            return Err(too_old(from));
        }
        let timeout = self
            .query
            .number("timeoutSeconds")?
            .filter(|seconds| *seconds > 0)
            .map_or(DEFAULT_TIMEOUT, Duration::from_secs);
        let bookmarks = self.query.flag("allowWatchBookmarks");
        let watch = Watch {
            announce_end: send_initial && bookmarks,
            told: cursor.revision(),
            context: self,
            selector,
            prefix,
            cursor,
            initial,
            bookmarks,
            next_bookmark: Instant::now() + BOOKMARK_EVERY,
            ends: Instant::now() + timeout.min(Duration::from_secs(86_400)),
            columns_sent: false,
            finished: false,
        };
        let stream = futures::stream::unfold(watch, |mut watch| async move {
            let chunk = watch.next().await?;
            Some((Ok::<_, std::convert::Infallible>(chunk), watch))
        });
        let mut response = Response::new(Body::from_stream(stream));
        *response.status_mut() = StatusCode::OK;
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(response)
    }

    fn check_watch_options(&self) -> Result<(), ApiError> {
        let (initial, matching) =
            (self.query.get("sendInitialEvents"), self.query.get("resourceVersionMatch"));
        match (initial, matching) {
            (Some(_), Some("NotOlderThan")) | (None, None) => Ok(()),
            (Some(_), _) => {
                Err(forbidden("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"))
            }
            (None, Some(_)) => Err(forbidden(
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            )),
        }
    }
}

impl Watch {
    /// The next bytes for the client, or the end of the stream.
    async fn next(&mut self) -> Option<Bytes> {
        if self.finished {
            return None;
        }
        loop {
            let mut out = Vec::new();
            if !self.initial.is_empty() || self.announce_end {
                self.send_initial(&mut out);
                if !out.is_empty() {
                    return Some(out.into());
                }
            }
            match self.cursor.poll() {
                Err(Compacted) => {
                    self.finished = true;
                    let error = too_old(self.told).to_status();
                    return Some(format!("{{\"type\":\"ERROR\",\"object\":{error}}}\n").into());
                }
                Ok(changes) => {
                    let busy = !changes.is_empty();
                    changes.iter().for_each(|change| self.send_change(change, &mut out));
                    if !out.is_empty() {
                        self.told = self.cursor.revision();
                        return Some(out.into());
                    }
                    if busy {
                        continue;
                    }
                }
            }
            tokio::select! {
                () = self.cursor.changed() => {}
                () = tokio::time::sleep_until(self.next_bookmark), if self.bookmarks => {
                    self.next_bookmark = Instant::now() + BOOKMARK_EVERY;
                    if self.cursor.revision() > self.told {
                        self.send_bookmark(false, &mut out);
                        return Some(out.into());
                    }
                }
                () = tokio::time::sleep_until(self.ends) => {
                    self.finished = true;
                    if !self.bookmarks {
                        return None;
                    }
                    self.send_bookmark(false, &mut out);
                    return Some(out.into());
                }
                () = self.context.api.stopping.cancelled() => return None,
            }
        }
    }

    fn send_initial(&mut self, out: &mut Vec<u8>) {
        for _ in 0..128 {
            let Some(entry) = self.initial.pop_front() else { break };
            self.send("ADDED", &entry, out);
        }
        if self.initial.is_empty() && self.announce_end {
            self.announce_end = false;
            self.send_bookmark(true, out);
        }
    }

    /// For a watch with a selector, an object that begins to match is added, and one that no longer matches is deleted.
    fn send_change(&mut self, change: &Change, out: &mut Vec<u8>) {
        if !change.key.path.starts_with(&self.prefix) {
            return;
        }
        let is = self.selector.matches(&change.entry);
        let was = change.previous.as_ref().is_some_and(|previous| self.selector.matches(previous));
        let kind = match (change.deleted, was, is) {
            (true, true, _) | (false, true, false) => "DELETED",
            (false, false, true) => "ADDED",
            (false, true, true) => "MODIFIED",
            (_, false, _) => return,
        };
        self.send(kind, &change.entry, out);
    }

    fn send(&mut self, kind: &str, entry: &Entry, out: &mut Vec<u8>) {
        let target = &self.context.target;
        let object: Bytes = match self.context.view {
            View::Full => target.render(entry),
            View::Metadata => metadata_only(&target.present(entry)).to_string().into(),
            View::Table => {
                let include = Include::parse(self.context.query.text("includeObject"));
                let metadata = json!({ "resourceVersion": entry.revision.to_string() });
                let row = std::iter::once(target.present(entry));
                Table::new(target, include).render(metadata, row, !self.columns_sent).to_string().into()
            }
        };
        self.columns_sent = true;
        frame(kind, &object, out);
    }

    fn send_bookmark(&mut self, end_of_initial: bool, out: &mut Vec<u8>) {
        self.told = self.cursor.revision();
        let mut metadata = json!({ "resourceVersion": self.told.to_string(), "creationTimestamp": null });
        if end_of_initial {
            metadata["annotations"] = json!({ INITIAL_EVENTS_END: "true" });
        }
        let target = &self.context.target;
        let object: Value = match self.context.view {
            View::Full => {
                json!({ "kind": &*target.resource.kind, "apiVersion": target.api_version(), "metadata": metadata })
            }
            View::Metadata => {
                json!({ "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata })
            }
            View::Table => {
                json!({ "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": null, "rows": [] })
            }
        };
        frame("BOOKMARK", object.to_string().as_bytes(), out);
    }
}

fn forbidden(why: &str) -> ApiError {
    let error = FieldError::forbidden("resourceVersionMatch", why);
    ApiError::invalid("meta.k8s.io", "ListOptions", "", &[error])
}

fn frame(kind: &str, object: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(b"\",\"object\":");
    out.extend_from_slice(object);
    out.extend_from_slice(b"}\n");
}

fn too_old(revision: u64) -> ApiError {
    ApiError::expired(format!("too old resource version: {revision}"))
}
