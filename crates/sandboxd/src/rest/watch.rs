//! `GET /v1/watch/{path}`: changes below a path as server-sent events, an extension of this daemon.
//!
//! The kernel's queue is the only one that can fill up: we read from it no faster than the client reads from us, and an
//! `overflow` event reports that the kernel has dropped some.

mod changes;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use self::changes::{Change, Watcher};
use super::{Problem, blocking, query};
use crate::body::Body;
use crate::paths::{self, Root};
use crate::process;
use crate::reply::Reply;
use crate::routes::{State, stopped};

/// Events between the kernel's queue and the connection.
const QUEUE: usize = 64;
/// A client that went away is noticed when this cannot be sent.
const PING: Duration = Duration::from_secs(15);

pub async fn watch(state: &Arc<State>, path: Vec<u8>, query: Option<&str>) -> Result<Reply, Problem> {
    let recursive = query::recursive(query)?;
    let permit = state.watches.clone().try_acquire_owned();
    let permit = permit.map_err(|_| Problem::TooMany("too many watches are open; close one and retry"))?;
    if state.table.is_closing() {
        return Err(Problem::Unavailable("sandboxd is shutting down"));
    }
    let root = state.root();
    let watcher = blocking(move || {
        let root = Root::open(&root)?;
        let path = paths::clean(&path, &root)?;
        Watcher::new(root, path, recursive)
    })
    .await?;
    let (sender, receiver) = mpsc::channel(QUEUE);
    let stopping = state.stopping.subscribe();
    tokio::spawn(follow(watcher, sender, stopping, permit));
    let mut reply = Response::new(Body::Events(receiver));
    *reply.status_mut() = StatusCode::OK;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    reply.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(reply)
}

async fn follow(
    watcher: Watcher,
    sender: mpsc::Sender<Bytes>,
    mut stopping: watch::Receiver<bool>,
    _permit: OwnedSemaphorePermit,
) {
    tokio::select! {
        _ = pass_on(watcher, &sender) => {}
        () = sender.closed() => {}
        () = stopped(&mut stopping) => {}
    }
}

async fn pass_on(mut watcher: Watcher, sender: &mpsc::Sender<Bytes>) -> Option<()> {
    let queue = process::register(watcher.queue().ok()?).ok()?;
    sender.send(Bytes::from_static(b"event: ready\ndata: {}\n\n")).await.ok()?;
    loop {
        let Ok(ready) = timeout(PING, queue.readable()).await else {
            sender.send(Bytes::from_static(b": ping\n\n")).await.ok()?;
            continue;
        };
        let mut ready = ready.ok()?;
        let changes;
        // New directories are entered, which may take a while.
        (watcher, changes) = spawn_blocking(move || {
            let changes = watcher.changes();
            (watcher, changes)
        })
        .await
        .ok()?;
        let Some(changes) = changes else {
            ready.clear_ready();
            continue;
        };
        for change in changes {
            sender.send(event(&change)).await.ok()?;
            if change == Change::Gone {
                return Some(());
            }
        }
    }
}

fn event(change: &Change) -> Bytes {
    let data = serde_json::to_string(change).expect("changes are plain data and always serialise");
    format!("event: {}\ndata: {data}\n\n", change.name()).into()
}
