//! What the router reports about its work, for metrics, access logs and traces.
//!
//! The router itself keeps no numbers: a process that wants some gives it an [`Observer`]. [`Exchange`] follows one
//! request from its head to the last byte of the response.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::USER_AGENT;
use http::{HeaderMap, Method, Request, StatusCode};
use tracing::Span;

use crate::authorize::Identity;

/// Receives what happens. All methods are called on the path of a request, so they must not block.
pub trait Observer: Send + Sync + 'static {
    /// A request has come in; [`Observer::finished`] follows in any case.
    fn started(&self) {}

    /// The span of a request, which is entered while the router works on it.
    fn span(&self, _method: &Method, _path: &str, _headers: &HeaderMap) -> Span {
        Span::none()
    }

    /// Adds the trace context of the request's span to the headers for the sandbox.
    fn propagate(&self, _span: &Span, _headers: &mut HeaderMap) {}

    /// The last byte of the response has been sent, the caller has gone, or the tunnel has ended.
    fn finished(&self, _request: &Finished<'_>) {}

    /// No response came from the sandbox.
    fn upstream_error(&self, _namespace: &str, _reason: UpstreamError) {}

    /// The sandbox did not take the connection, and the router tries again.
    fn upstream_retry(&self, _namespace: &str) {}

    /// The router gave up an address, because the directory had lost it when a connection was made or failed.
    fn target_lost(&self, _namespace: &str) {}

    /// A request waited so long for its sandbox to become reachable, whether or not it did.
    fn held(&self, _namespace: Option<&str>, _waited: Duration) {}

    /// This limit refused a request.
    fn limited(&self, _limit: &'static str) {}

    /// Bytes pass both ways; [`Observer::tunnel_closed`] follows in any case.
    fn tunnel_opened(&self) {}

    fn tunnel_closed(&self) {}

    /// Whether the caller may reach the sandbox. `None`: the directory knows no such sandbox.
    fn authorized(&self, _namespace: Option<&str>, _allowed: bool) {}
}

/// One request, when it is over.
#[derive(Debug)]
pub struct Finished<'a> {
    pub method: &'a Method,
    /// Without the query, which may hold secrets.
    pub path: &'a str,
    pub status: StatusCode,
    /// The sandbox that the request names, whether or not there is one.
    pub named: Option<(&'a str, &'a str)>,
    /// The namespace, if the directory knows the sandbox. Only this may become a label of a metric: other names are
    /// whatever a caller makes up.
    pub known_namespace: Option<&'a str>,
    pub duration: Duration,
    pub bytes_out: u64,
    pub peer: IpAddr,
    /// Who the caller is; `None` for a request that was refused before that was known.
    pub caller: Option<&'a Identity>,
    pub user_agent: Option<&'a str>,
    pub span: &'a Span,
}

/// Why no response came from a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UpstreamError {
    Timeout,
    Dial,
    Tls,
    Eof,
    Other,
}

/// The observer of a router, if there is one.
#[derive(Clone, Default)]
pub struct Observe(pub Option<Arc<dyn Observer>>);

/// A tunnel that is open. Reports its end when it is dropped.
pub struct OpenTunnel(Observe);

/// One request from its head to its end. Reports the end when it is dropped.
pub struct Exchange {
    observer: Arc<dyn Observer>,
    method: Method,
    path: String,
    user_agent: Option<String>,
    peer: IpAddr,
    begun: Instant,
    status: StatusCode,
    named: Option<(String, String)>,
    known: bool,
    caller: Option<Identity>,
    bytes_out: u64,
    span: Span,
}

// === impl UpstreamError ===

impl UpstreamError {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Dial => "dial",
            Self::Tls => "tls",
            Self::Eof => "eof",
            Self::Other => "other",
        }
    }
}

// === impl Observe ===

impl Observe {
    pub(crate) fn upstream_error(&self, namespace: &str, reason: UpstreamError) {
        if let Some(observer) = &self.0 {
            observer.upstream_error(namespace, reason);
        }
    }

    pub(crate) fn upstream_retry(&self, namespace: &str) {
        if let Some(observer) = &self.0 {
            observer.upstream_retry(namespace);
        }
    }

    pub(crate) fn target_lost(&self, namespace: &str) {
        if let Some(observer) = &self.0 {
            observer.target_lost(namespace);
        }
    }

    pub(crate) fn held(&self, namespace: Option<&str>, waited: Duration) {
        if let Some(observer) = &self.0 {
            observer.held(namespace, waited);
        }
    }

    pub(crate) fn limited(&self, limit: &'static str) {
        if let Some(observer) = &self.0 {
            observer.limited(limit);
        }
    }

    pub(crate) fn tunnel(&self) -> OpenTunnel {
        if let Some(observer) = &self.0 {
            observer.tunnel_opened();
        }
        OpenTunnel(self.clone())
    }
}

// === impl OpenTunnel ===

impl Drop for OpenTunnel {
    fn drop(&mut self) {
        if let Some(observer) = &self.0.0 {
            observer.tunnel_closed();
        }
    }
}

// === impl Exchange ===

impl Exchange {
    /// `None` without an observer: then a request is not followed.
    pub(crate) fn begin<B>(observe: &Observe, request: &Request<B>, peer: IpAddr) -> Option<Self> {
        let observer = observe.0.clone()?;
        observer.started();
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let user_agent = request.headers().get(USER_AGENT).and_then(|agent| agent.to_str().ok());
        Some(Self {
            span: observer.span(&method, &path, request.headers()),
            user_agent: user_agent.map(str::to_owned),
            observer,
            method,
            path,
            peer,
            begun: Instant::now(),
            // Until there is a response: the caller left before it.
            status: StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST),
            named: None,
            known: false,
            caller: None,
            bytes_out: 0,
        })
    }

    /// The request names this sandbox; `known` is whether the directory knows its namespace.
    pub(crate) fn names(&mut self, namespace: &str, name: &str, known: bool) {
        self.named = Some((namespace.to_owned(), name.to_owned()));
        self.known = known;
    }

    /// The caller may reach the sandbox.
    pub(crate) fn passed(&mut self, caller: &Identity) {
        self.caller = Some(caller.clone());
    }

    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    /// Whether the caller may reach the sandbox that it names.
    pub(crate) fn authorized(&self, allowed: bool) {
        let namespace = self.named.as_ref().filter(|_| self.known).map(|(namespace, _)| namespace.as_str());
        self.observer.authorized(namespace, allowed);
    }

    /// Adds the trace context to the headers for the sandbox.
    pub(crate) fn propagate(&self, headers: &mut HeaderMap) {
        self.observer.propagate(&self.span, headers);
    }

    pub(crate) fn answered(&mut self, status: StatusCode) {
        self.status = status;
    }

    pub(crate) fn sent(&mut self, bytes: usize) {
        self.bytes_out += bytes as u64;
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let named = self.named.as_ref().map(|(namespace, name)| (namespace.as_str(), name.as_str()));
        self.observer.finished(&Finished {
            method: &self.method,
            path: &self.path,
            status: self.status,
            known_namespace: named.filter(|_| self.known).map(|(namespace, _)| namespace),
            named,
            duration: self.begun.elapsed(),
            bytes_out: self.bytes_out,
            peer: self.peer.to_canonical(),
            caller: self.caller.as_ref(),
            user_agent: self.user_agent.as_deref(),
            span: &self.span,
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct Seen(Mutex<Vec<String>>);

    impl Observer for Seen {
        fn finished(&self, request: &Finished<'_>) {
            let Finished { method, path, status, known_namespace, bytes_out, .. } = request;
            let line = format!("{method} {path} {} {known_namespace:?} {bytes_out}", status.as_u16());
            self.0.lock().unwrap().push(line);
        }
    }

    fn exchange(seen: &Arc<Seen>) -> Exchange {
        let request = Request::builder().uri("/run?token=secret").body(()).unwrap();
        Exchange::begin(&Observe(Some(seen.clone())), &request, "127.0.0.1".parse().unwrap()).unwrap()
    }

    #[test]
    fn an_exchange_is_reported_at_its_end_without_the_query() {
        let seen = Arc::new(Seen::default());
        let mut exchange = exchange(&seen);
        exchange.names("ns", "web", true);
        exchange.answered(StatusCode::OK);
        exchange.sent(5);
        assert!(seen.0.lock().unwrap().is_empty(), "not before its end");
        drop(exchange);
        assert_eq!(*seen.0.lock().unwrap(), [r#"GET /run 200 Some("ns") 5"#]);
    }

    #[test]
    fn names_that_the_directory_does_not_know_are_not_passed_off_as_known() {
        let seen = Arc::new(Seen::default());
        let mut exchange = exchange(&seen);
        exchange.names("made-up", "web", false);
        drop(exchange);
        assert_eq!(*seen.0.lock().unwrap(), ["GET /run 499 None 0"]);
    }
}
