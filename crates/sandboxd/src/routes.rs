//! Which request is answered by what. Never a redirect: clients treat one as a failure.

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use serde::Serialize;
use tokio::sync::Semaphore;

use crate::reply::{self, Reply};
use crate::{download, execute, listing, paths, upload, validation};

const MAX_EXECUTE_BODY: usize = 1024 * 1024;
/// Each may hold twice the output limit in memory.
const MAX_COMMANDS: usize = 64;

pub struct Routes {
    commands: Semaphore,
}

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

impl Default for Routes {
    fn default() -> Self {
        Self { commands: Semaphore::new(MAX_COMMANDS) }
    }
}

impl Routes {
    pub async fn answer(&self, request: Request<Incoming>) -> Reply {
        let Some(route) = Route::of(request.uri().path()) else { return reply::not_found() };
        if request.method() != route.method() {
            return reply::method_not_allowed(if route.method() == Method::GET { "GET" } else { "POST" });
        }
        match route {
            Route::Health => {
                reply::json(StatusCode::OK, &Health { status: "ok", message: "Sandbox Runtime is active." })
            }
            Route::Execute => self.execute(request).await,
            Route::Upload => upload::upload(request).await,
            Route::Download(path) => download::download(paths::decode(path), request.headers()).await,
            Route::List(path) => listing::list(paths::decode(path)).await,
            Route::Exists(path) => listing::exists(paths::decode(path)).await,
        }
    }

    async fn execute(&self, request: Request<Incoming>) -> Reply {
        let (head, body) = request.into_parts();
        let Ok(body) = Limited::new(body, MAX_EXECUTE_BODY).collect().await else {
            return reply::message(
                StatusCode::PAYLOAD_TOO_LARGE,
                "The body is larger than 1 MiB; upload a script and run that",
            );
        };
        let wanted = match validation::execute(&head.headers, &body.to_bytes()) {
            Ok(wanted) => wanted,
            Err(problem) => return reply::invalid(problem),
        };
        // Nothing has run yet, so a client may safely send this again.
        let Ok(_permit) = self.commands.try_acquire() else {
            return reply::message(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("{MAX_COMMANDS} commands are running already; try again when one has ended"),
            );
        };
        reply::json(StatusCode::OK, &execute::execute(wanted).await)
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
