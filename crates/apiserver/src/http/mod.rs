//! The HTTP surface: paths to operations, entries to responses.

pub(crate) mod body;
mod columns;
mod describe;
mod discovery;
pub(crate) mod jsonpath;
mod kubelet;
mod list;
mod live;
mod objects;
mod openapi;
mod origin;
mod placement;
mod protobuf;
mod proxy;
mod request;
mod review;
mod scale;
mod swagger;
mod table;
mod watch;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use futures::FutureExt as _;
use http::{HeaderValue, Method, StatusCode};
use serde_json::json;

use crate::backup;
use crate::ops::{Api, Part, storage_error};
use crate::registry::{Form, Target, absent};
use crate::status::{ApiError, json_response};
use request::{Query, ResourcePath, View};

/// The whole API.
pub(crate) fn router(api: Arc<Api>) -> axum::Router {
    axum::Router::new().fallback(serve).with_state(api)
}

/// Marks a request of a controller, which may see changes that are not on disk yet. It cannot come over the network.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ahead;

/// Marks a read while the disk takes nothing: it sees what is on disk, which is all of this revision.
#[derive(Debug, Clone, Copy)]
struct Stuck(u64);

async fn serve(State(api): State<Arc<Api>>, mut request: Request) -> Response {
    let head = request.method() == Method::HEAD;
    let ahead = request.extensions().get::<Ahead>().is_some();
    let stuck = api.store.stuck().filter(|_| !ahead && (head || request.method() == Method::GET));
    if let Some(revision) = stuck {
        request.extensions_mut().insert(Stuck(revision));
    }
    // A mistake of ours costs one request, not the caller's task or connection.
    let answered = AssertUnwindSafe(dispatch(api.clone(), request)).catch_unwind().await;
    let mut answered =
        answered.unwrap_or_else(|_| Err(ApiError::internal("the request made the server stumble")));
    if !ahead && stuck.is_none() {
        // Whatever the answer tells of is on disk before it leaves.
        let settled = api.store.settled(api.store.revision()).await;
        answered = settled.map_err(storage_error).and(answered);
    }
    let mut response = answered.unwrap_or_else(IntoResponse::into_response);
    if head {
        *response.body_mut() = axum::body::Body::empty();
    }
    response
}

async fn dispatch(api: Arc<Api>, request: Request) -> Result<Response, ApiError> {
    let path = request.uri().path();
    let Some(resource) = ResourcePath::parse(path) else {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Err(ApiError::method_not_allowed());
        }
        return fixed(&api, path, &request);
    };
    let target = api
        .registry
        .find(&resource.group, &resource.version, &resource.plural)
        .ok_or_else(ApiError::no_resource)?;
    if !target.resource.namespaced && !resource.namespace.is_empty() {
        return Err(ApiError::no_resource());
    }
    let is_proxy = resource.subresource.as_deref() == Some("proxy")
        && (target.resource.is("", "pods") || target.resource.is("", "services"));
    if !is_proxy && origin::acts(&request) && origin::is_foreign(&request) {
        return Err(origin::refusal());
    }
    let context = Context {
        ahead: request.extensions().get::<Ahead>().is_some(),
        at: request.extensions().get::<Stuck>().map(|Stuck(revision)| *revision),
        query: Query::parse(request.uri().query().unwrap_or_default()),
        view: View::of(request.headers()),
        namespace: resource.namespace,
        api,
        target,
    };
    let target = context.target.clone();
    if target.resource.form == Form::Absent
        && !matches!(*request.method(), Method::GET | Method::HEAD | Method::DELETE)
    {
        return Err(absent::refusal(&target.resource.group, &target.resource.plural));
    }
    let explained = context.view == View::Table && target.resource.form == Form::Absent;
    let answered = match (resource.name, resource.subresource) {
        (None, _) => context.collection(request).await,
        (Some(_), _) if context.target.resource.namespaced && context.namespace.is_empty() => {
            Err(ApiError::no_resource())
        }
        (Some(name), None) => context.object(&name, Part::Main, request).await,
        (Some(name), Some(subresource)) => context.subresource(&name, &subresource, request).await,
    };
    let mut response = answered.unwrap_or_else(IntoResponse::into_response);
    if let Some(sentence) =
        absent::sentence(&target.resource.group, &target.resource.plural).filter(|_| explained)
    {
        warn(&mut response, &sentence);
    }
    if let Some(deprecation) = &target.version().deprecation {
        warn(&mut response, deprecation);
    }
    Ok(response)
}

/// Adds a text that clients show to their users.
fn warn(response: &mut Response, text: &str) {
    let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
    if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
        response.headers_mut().append(http::header::WARNING, value);
    }
}

/// Paths that are not about objects.
fn fixed(api: &Api, path: &str, request: &Request) -> Result<Response, ApiError> {
    let accept =
        request.headers().get(http::header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match parts.as_slice() {
        ["healthz" | "livez" | "readyz", ..] => Ok((StatusCode::OK, "ok").into_response()),
        ["asb", "v1", "objects"] => Ok(backup::answer(api)),
        ["version"] => Ok(json_response(StatusCode::OK, &discovery::version())),
        ["openapi", "v2"] => Ok(swagger::document(accept)),
        ["openapi", "v3"] => Ok(json_response(StatusCode::OK, &openapi::index(api))),
        ["openapi", "v3", "api", version] => openapi::document(api, "", version),
        ["openapi", "v3", "apis", group, version] => openapi::document(api, group, version),
        [""] => Ok(json_response(
            StatusCode::OK,
            &json!({ "paths": ["/api", "/apis", "/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"] }),
        )),
        _ => discovery::answer(api, &parts, accept).ok_or_else(ApiError::no_resource),
    }
}

/// A request for a known resource.
struct Context {
    api: Arc<Api>,
    target: Target,
    namespace: String,
    query: Query,
    view: View,
    ahead: bool,
    /// The newest revision that the answer may contain.
    at: Option<u64>,
}

impl Context {
    async fn collection(self, request: Request) -> Result<Response, ApiError> {
        if self.target.resource.form == Form::Review {
            return match *request.method() {
                Method::POST => self.review(request).await,
                _ => Err(ApiError::method_not_allowed()),
            };
        }
        if self.target.resource.form == Form::Live {
            return self.live(None, request.method()).await;
        }
        match *request.method() {
            Method::GET | Method::HEAD if self.query.flag("watch") => self.watch(),
            Method::GET | Method::HEAD => self.list(),
            Method::POST => self.create(request).await,
            Method::DELETE if self.target.resource.can_empty() => self.delete_collection(request).await,
            _ => Err(ApiError::method_not_allowed()),
        }
    }

    async fn object(self, name: &str, part: Part, request: Request) -> Result<Response, ApiError> {
        if self.target.resource.form == Form::Live {
            return self.live(Some(name), request.method()).await;
        }
        match *request.method() {
            Method::GET | Method::HEAD => self.get(name),
            Method::PUT => self.replace(name, part, request).await,
            Method::PATCH => self.patch(name, part, request).await,
            Method::DELETE if part == Part::Main => self.delete(name, request).await,
            _ => Err(ApiError::method_not_allowed()),
        }
    }

    async fn subresource(
        self,
        name: &str,
        subresource: &str,
        request: Request,
    ) -> Result<Response, ApiError> {
        let version = self.target.version();
        match subresource {
            "status" if version.status => self.object(name, Part::Status, request).await,
            "scale" if version.scale.is_some() => self.scale(name, request).await,
            "ephemeralcontainers" if self.target.resource.is("", "pods") => {
                self.object(name, Part::EphemeralContainers, request).await
            }
            "finalize" if self.target.resource.is("", "namespaces") => {
                self.object(name, Part::Main, request).await
            }
            "exec" | "log" | "attach" | "portforward" if self.target.resource.is("", "pods") => {
                self.kubelet(name, request).await
            }
            "binding" if self.target.resource.is("", "pods") => self.binding(name, request).await,
            "eviction" if self.target.resource.is("", "pods") => self.eviction(name, request).await,
            "token" if self.target.resource.is("", "serviceaccounts") => Err(ApiError::new(
                405,
                "MethodNotAllowed",
                "this API server gives no tokens to ServiceAccounts: it knows one user, whose token is in the kubeconfig",
            )),
            "proxy" if self.target.resource.is("", "pods") || self.target.resource.is("", "services") => {
                self.proxy(name, request).await
            }
            "proxy" if self.target.resource.is("", "nodes") => self.kubelet(name, request).await,
            _ => Err(ApiError::no_resource()),
        }
    }
}
