//! A copy of all objects at one moment, and a data directory that begins with such a copy.
//!
//! The copy is text: a line with the revision, then a line per object. It holds Secrets.

use std::path::Path;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures::stream;
use http::header::CONTENT_TYPE;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::ops::Api;
use crate::{Error, store};

/// Where a running server answers with the copy.
pub const PATH: &str = "/asb/v1/objects";

/// One object of a copy.
#[derive(Debug, Serialize, Deserialize)]
pub struct Stored {
    /// `COLLECTION/NAMESPACE/NAME`, e.g. `pods/default/web`; without a namespace `COLLECTION//NAME`.
    pub key: String,
    pub object: Value,
}

/// The first line of a copy.
#[derive(Debug, Serialize, Deserialize)]
pub struct Head {
    pub revision: u64,
    /// How many lines follow.
    pub objects: usize,
}

/// Answers with a copy of everything that is stored.
pub(crate) fn answer(api: &Api) -> Response {
    let (revision, objects) = api.store.everything();
    let head = json!(Head { revision, objects: objects.len() }).to_string() + "\n";
    // Objects are text already; they are sent as they are.
    let lines = objects.into_iter().flat_map(|(key, entry)| {
        let begin = format!("{{\"key\":{},\"object\":", json!(key));
        [begin.into(), entry.bytes.clone(), Bytes::from_static(b"}\n")]
    });
    let parts = std::iter::once(Bytes::from(head)).chain(lines).map(Ok::<_, std::convert::Infallible>);
    let mut response = Response::new(Body::from_stream(stream::iter(parts)));
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/x-ndjson"));
    response
}

/// Makes the store of a new data directory from a copy. Returns how many objects it has.
pub fn restore(data_dir: &Path, revision: u64, objects: impl Iterator<Item = Stored>) -> Result<u64, Error> {
    let path = data_dir.join("store.redb");
    let rows = objects.map(|stored| (stored.key, stored.object));
    store::make(&path, revision, rows).map_err(|source| Error::Store { path, source })
}

/// The number of the store of a data directory, which is made if it has none. By chance: no other store has it.
///
/// An error for a store that is not readable, or that is older than what its directory had before. No engine may have
/// the directory.
pub fn identify(data_dir: &Path) -> Result<u64, Error> {
    let path = data_dir.join("store.redb");
    match store::identify(&path) {
        Ok((store, Ok(_))) => Ok(store),
        Ok((_, Err(unfit))) => Err(Error::Unfit { path, unfit }),
        Err(source) => Err(Error::Store { path, source }),
    }
}
