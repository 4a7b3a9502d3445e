//! The REST API below `/v1`: files, health and metadata. Never a redirect: clients treat one as a failure.

mod delete;
mod files;
mod listing;
pub mod metadata;
mod problem;
mod put;
mod query;
mod transfer;
mod tree;
mod watch;

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{ALLOW, HeaderValue};
use hyper::{Method, Request, StatusCode};
use serde::Serialize;
use tokio::task::spawn_blocking;

use self::problem::Problem;
use crate::paths;
use crate::reply::{self, Reply};
use crate::routes::State;

#[derive(Serialize)]
struct Health {
    status: &'static str,
    uptime_seconds: u64,
}

#[derive(Serialize)]
struct Metadata<'a> {
    env: &'a std::collections::BTreeMap<String, String>,
}

pub async fn answer(state: Arc<State>, request: Request<Incoming>) -> Reply {
    let (kind, rest) = split(request.uri().path());
    let path = paths::decode(rest);
    let answered = match (kind, request.method()) {
        ("health", &Method::GET | &Method::HEAD) => Ok(health(&state)),
        ("metadata", &Method::GET | &Method::HEAD) => {
            Ok(reply::json_line(StatusCode::OK, &Metadata { env: &state.metadata }))
        }
        ("files", &Method::GET) => files::get(&state, path, request.headers(), true).await,
        ("files", &Method::HEAD) => files::get(&state, path, request.headers(), false).await,
        ("files", &Method::PUT) => put::put(&state, path, request).await,
        ("files", &Method::DELETE) => delete::delete(&state, path, request.uri().query()).await,
        ("move", &Method::POST) => transfer::relocate(&state, request, transfer::Kind::Move).await,
        ("copy", &Method::POST) => transfer::relocate(&state, request, transfer::Kind::Copy).await,
        ("directories", &Method::POST) => transfer::make_directories(&state, path).await,
        ("watch", &Method::GET) => watch::watch(&state, path, request.uri().query()).await,
        ("health" | "metadata", _) => Ok(not_allowed("GET, HEAD")),
        ("files", _) => Ok(not_allowed("DELETE, GET, HEAD, PUT")),
        ("move" | "copy" | "directories", _) => Ok(not_allowed("POST")),
        ("watch", _) => Ok(not_allowed("GET")),
        _ => Ok(reply::error(StatusCode::NOT_FOUND, "NOT_FOUND", "no such route")),
    };
    answered.unwrap_or_else(Problem::reply)
}

/// `/v1/files` and `/v1/files/` are the same; only `files`, `directories` and `watch` take a path.
fn split(path: &str) -> (&str, &str) {
    let below = path.strip_prefix("/v1/").unwrap_or_default();
    match below.split_once('/') {
        None => (below, ""),
        Some((kind @ ("files" | "directories" | "watch"), rest)) => (kind, rest),
        Some(_) => ("", ""),
    }
}

fn health(state: &State) -> Reply {
    if state.table.is_closing() {
        return reply::error(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", "sandboxd is shutting down");
    }
    let uptime_seconds = state.started.elapsed().as_secs();
    reply::json_line(StatusCode::OK, &Health { status: "ok", uptime_seconds })
}

fn not_allowed(allow: &'static str) -> Reply {
    let mut reply = reply::error(
        StatusCode::METHOD_NOT_ALLOWED,
        "METHOD_NOT_ALLOWED",
        &format!("allowed methods: {allow}"),
    );
    reply.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    reply
}

/// Work on files happens off the event loop: a disk may be slow.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    spawn_blocking(work).await.map_err(|_| Problem::Internal("the call was interrupted".to_owned()))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_everything_after_the_kind() {
        for (path, wanted) in [
            ("/v1/files", ("files", "")),
            ("/v1/files/", ("files", "")),
            ("/v1/files/a/b", ("files", "a/b")),
            ("/v1/files//a", ("files", "/a")),
            ("/v1/health", ("health", "")),
            ("/v1/health/x", ("", "")),
            ("/v1", ("", "")),
        ] {
            assert_eq!(split(path), wanted, "{path}");
        }
    }
}
