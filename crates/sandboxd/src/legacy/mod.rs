//! The legacy API, which every published client speaks by default. Never a redirect: clients treat one as a failure.

mod download;
mod execute;
mod listing;
mod upload;
mod validation;
mod words;

use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use serde::Serialize;

use crate::process::{MAX_PROCESSES, Refused, Table};
use crate::reply::{self, Reply};
use crate::{body, paths};

const MAX_EXECUTE_BODY: usize = 1024 * 1024;

#[derive(Serialize)]
struct Health {
    status: &'static str,
    message: &'static str,
}

enum Route<'a> {
    Health,
    Execute,
    Upload,
    Download(&'a str),
    List(&'a str),
    Exists(&'a str),
}

pub async fn answer(request: Request<Incoming>, table: &Table) -> Reply {
    let Some(route) = Route::of(request.uri().path()) else { return reply::not_found() };
    if request.method() != route.method() {
        return reply::method_not_allowed(if route.method() == Method::GET { "GET" } else { "POST" });
    }
    match route {
        Route::Health => {
            reply::json(StatusCode::OK, &Health { status: "ok", message: "Sandbox Runtime is active." })
        }
        Route::Execute => execute(request, table).await,
        Route::Upload => upload::upload(request).await,
        Route::Download(path) => download::download(paths::decode(path), request.headers()).await,
        Route::List(path) => listing::list(paths::decode(path)).await,
        Route::Exists(path) => listing::exists(paths::decode(path)).await,
    }
}

async fn execute(request: Request<Incoming>, table: &Table) -> Reply {
    let (head, body) = request.into_parts();
    let body = match body::collect(body, MAX_EXECUTE_BODY).await {
        Ok(body) => body,
        Err(body::Problem::TooLarge) => {
            return reply::message(
                StatusCode::PAYLOAD_TOO_LARGE,
                "The body is larger than 1 MiB; upload a script and run that",
            );
        }
        Err(body::Problem::TooSlow) => {
            return reply::message(StatusCode::REQUEST_TIMEOUT, "The body did not arrive in time");
        }
        Err(body::Problem::Broken) => {
            return reply::message(StatusCode::BAD_REQUEST, "The body is incomplete");
        }
    };
    let wanted = match validation::execute(&head.headers, &body) {
        Ok(wanted) => wanted,
        Err(problem) => return reply::invalid(problem),
    };
    // Nothing has run where this refuses, so a client may safely send the request again.
    match execute::execute(wanted, table).await {
        Ok(outcome) => {
            let mut reply = reply::json(StatusCode::OK, &outcome);
            reply::keep(&mut reply, outcome.held);
            reply
        }
        Err(Refused::Closing) => reply::message(StatusCode::SERVICE_UNAVAILABLE, "sandboxd is shutting down"),
        Err(_) => reply::message(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("{MAX_PROCESSES} processes are running already; try again when one has ended"),
        ),
    }
}

// === impl Route ===

impl<'a> Route<'a> {
    fn of(path: &'a str) -> Option<Self> {
        match path {
            "/" => return Some(Self::Health),
            "/execute" => return Some(Self::Execute),
            "/upload" => return Some(Self::Upload),
            _ => {}
        }
        // Both `/list` and `/list/`: some clients drop the slash.
        let (kind, rest) = path.strip_prefix('/')?.split_once('/').unwrap_or((&path[1..], ""));
        match kind {
            "download" => Some(Self::Download(rest)),
            "list" => Some(Self::List(rest)),
            "exists" => Some(Self::Exists(rest)),
            _ => None,
        }
    }

    fn method(&self) -> Method {
        match self {
            Self::Execute | Self::Upload => Method::POST,
            Self::Health | Self::Download(_) | Self::List(_) | Self::Exists(_) => Method::GET,
        }
    }
}
