//! `pods/proxy` and `services/proxy`: an HTTP request to a program in a Pod.
//!
//! ```text
//! [scheme:]name[:port] ─► destination (a port of one Pod) ─► without credentials ─► node ─► answer (links, headers)
//! ```
//!
//! Only Pods of this API can be reached, and nothing of what authorised the request is passed on. Pages from a sandbox
//! share the origin of `kubectl proxy`, which has the user's rights, so browsers are told to give them an origin of their own.
//! Such a page may speak to programs in Pods, but not to the router, which trusts requests that come this way.

mod answer;
mod destination;

use axum::extract::Request;
use axum::response::Response;
use http::header::{self, HeaderMap, HeaderName, HeaderValue, LOCATION};
use http::{Method, StatusCode, Uri};
use rand::seq::IndexedRandom as _;
use serde_json::Value;

use self::answer::Source;
use self::destination::{Named, unreachable};
use super::{Context, kubelet, origin};
use asb_types::key::MIRROR;

use crate::endpoints::backend;
use crate::status::ApiError;

/// The segments of a path up to and with `proxy`.
const SEGMENTS: usize = 7;
const FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
/// A WebSocket of a browser can carry a token as a protocol.
const BEARER_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

impl Context {
    pub(super) async fn proxy(self, id: &str, mut request: Request) -> Result<Response, ApiError> {
        if matches!(*request.method(), Method::CONNECT | Method::TRACE) {
            return Err(ApiError::method_not_allowed());
        }
        let is_pod = &*self.target.resource.plural == "pods";
        let what = if is_pod { "pod" } else { "service" };
        let named = Named::parse(id)
            .ok_or_else(|| ApiError::bad_request(format!("invalid {what} request {id:?}")))?;
        let (pod, port) = if is_pod { self.pod(&named)? } else { self.service(&named)? };
        if origin::is_foreign(&request) && self.is_mirror(&pod) {
            return Err(origin::router_refusal());
        }
        let rest = rest(request.uri().path());
        let Some(rest) = rest.or_else(|| needs_no_slash(&request).then_some("")) else {
            return redirect(request.uri());
        };
        let rest = cleaned(rest);
        let prefix = format!("/api/v1/namespaces/{}/{what}s/{id}/proxy", self.namespace);
        let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
        let scheme = named.scheme.text();
        let uri =
            format!("/api/v1/namespaces/{}/pods/{scheme}:{pod}:{port}/proxy/{rest}{query}", self.namespace);
        let forwarded = HeaderValue::from_str(&format!("{prefix}/{rest}"));
        let source = Source::of(&request, prefix);
        *request.uri_mut() = uri.parse::<Uri>().map_err(|error| unreachable(&error.to_string()))?;
        let headers = request.headers_mut();
        strip_credentials(headers);
        if let Ok(forwarded) = forwarded {
            headers.insert(FORWARDED_URI, forwarded);
        }
        let mut response = kubelet::ask(&self.api, request).await?;
        source.adapt(&mut response);
        Ok(response)
    }

    fn pod(&self, named: &Named<'_>) -> Result<(String, u16), ApiError> {
        let pod = self.api.get(&self.target, &self.namespace, named.name)?.parse();
        Ok((named.name.to_owned(), named.port_of_pod(&pod)?))
    }

    /// Whether the Pod is a part of the engine: the router.
    fn is_mirror(&self, name: &str) -> bool {
        let pods = self.api.registry.find("", "v1", "pods");
        let pod = pods.and_then(|pods| self.api.get(&pods, &self.namespace, name).ok());
        pod.is_some_and(|pod| pod.parse()["metadata"]["annotations"][MIRROR].is_string())
    }

    /// One of the Pods behind a Service, by chance.
    fn service(&self, named: &Named<'_>) -> Result<(String, u16), ApiError> {
        let service = match self.api.get(&self.target, &self.namespace, named.name) {
            Ok(service) => service.parse(),
            // By number it is the Service that is looked for, else its Endpoints: as in kube-apiserver.
            Err(error) if named.port.parse::<i64>().is_ok() => return Err(error),
            Err(_) => return Err(ApiError::not_found("", "endpoints", named.name)),
        };
        let chosen = match backend::selector(&service) {
            Some(labels) => {
                let pods: Vec<Value> = self.api.selected_pods(&self.namespace, labels);
                let ready = named.ready(&service, &pods)?;
                let named = |(pod, port): &(&Value, u16)| {
                    (pod["metadata"]["name"].as_str().unwrap_or_default().to_owned(), *port)
                };
                ready.choose(&mut rand::rng()).map(named)
            }
            None => self.written_pods(named, &service)?.choose(&mut rand::rng()).cloned(),
        };
        chosen.ok_or_else(|| named.no_endpoints())
    }

    /// The Pods that users wrote down for a Service and that are there.
    fn written_pods(&self, named: &Named<'_>, service: &Value) -> Result<Vec<(String, u16)>, ApiError> {
        let find = |plural: &str| self.api.registry.find("", "v1", plural).ok_or_else(ApiError::no_resource);
        let (endpoints, pods) = (find("endpoints")?, find("pods")?);
        let endpoints = self.api.get(&endpoints, &self.namespace, named.name)?.parse();
        let mut found = named.written(service, &endpoints)?;
        found.retain(|(pod, _)| self.api.get(&pods, &self.namespace, pod).is_ok());
        Ok(found)
    }
}

/// What follows `proxy/`, if there is a slash.
fn rest(path: &str) -> Option<&str> {
    path.trim_start_matches('/').splitn(SEGMENTS + 1, '/').nth(SEGMENTS)
}

/// A path as kube-apiserver passes it on: clients write `%2F` for slashes, and none of its segments is empty or leads up.
fn cleaned(path: &str) -> String {
    let path = path.replace("%2F", "/").replace("%2f", "/");
    let mut segments: Vec<&str> = Vec::new();
    let mut is_directory = false;
    for segment in path.split('/') {
        is_directory = true;
        match &*segment.to_ascii_lowercase().replace("%2e", ".") {
            "" | "." => {}
            ".." => drop(segments.pop()),
            _ => {
                segments.push(segment);
                is_directory = false;
            }
        }
    }
    let slash = if is_directory && !segments.is_empty() { "/" } else { "" };
    format!("{}{slash}", segments.join("/"))
}

/// Only a browser that goes to a page needs the slash, for the links in there.
fn needs_no_slash(request: &Request) -> bool {
    !matches!(*request.method(), Method::GET | Method::HEAD)
        || request.headers().contains_key(header::UPGRADE)
}

fn redirect(uri: &Uri) -> Result<Response, ApiError> {
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let to = HeaderValue::from_str(&format!("{}/{query}", uri.path()));
    let mut response = Response::default();
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    response.headers_mut().insert(LOCATION, to.map_err(|error| ApiError::bad_request(error.to_string()))?);
    Ok(response)
}

/// Removes what authorised the caller here: the program in the Pod must not learn it.
fn strip_credentials(headers: &mut HeaderMap) {
    headers.remove(header::AUTHORIZATION);
    let protocols = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|it| it.to_str().ok());
    let kept: Vec<_> = protocols
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|protocol| !protocol.is_empty() && !protocol.starts_with(BEARER_PROTOCOL))
        .collect();
    match HeaderValue::from_str(&kept.join(", ")) {
        Ok(kept) if !kept.is_empty() => drop(headers.insert(header::SEC_WEBSOCKET_PROTOCOL, kept)),
        _ => drop(headers.remove(header::SEC_WEBSOCKET_PROTOCOL)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_behind_the_proxy_is_that_of_the_program() {
        let prefix = "/api/v1/namespaces/default/pods/web:80/proxy";
        for (path, expected) in [
            ("", None),
            ("/", Some("")),
            ("/a%2Fb//c/", Some("a/b/c/")),
            ("/proxy/x%20y", Some("proxy/x%20y")),
            ("/a/../../b/.", Some("b/")),
            ("/a/%2e%2E", Some("")),
            ("/...", Some("...")),
        ] {
            let whole = format!("{prefix}{path}");
            assert_eq!(rest(&whole).map(cleaned).as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn no_credentials_are_passed_on() {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, HeaderValue::from_static("Bearer secret"));
        headers.insert(
            header::SEC_WEBSOCKET_PROTOCOL,
            HeaderValue::from_static("base64url.bearer.authorization.k8s.io.c2VjcmV0, chat"),
        );
        headers.insert("x-mine", HeaderValue::from_static("kept"));
        strip_credentials(&mut headers);
        assert_eq!(headers.get(header::AUTHORIZATION), None);
        assert_eq!(headers[header::SEC_WEBSOCKET_PROTOCOL], "chat");
        assert_eq!(headers["x-mine"], "kept");
    }
}
