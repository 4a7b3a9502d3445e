//! One request: find the sandbox, pass the bytes.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_TYPE, COOKIE, HOST};
use http::uri::{PathAndQuery, Uri};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body_util::{Either, Empty};
use hyper::body::{Body as _, Incoming};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, Span};

use crate::activity::{Busy, Progress};
use crate::address::{Address, Addressing, Route, Via, requested_host};
use crate::authorize::{Asking, Authorizer, Connection, Verdict};
use crate::body::Body;
use crate::connection::Caller;
use crate::dial::Target;
use crate::directory::Directory;
use crate::error::Error;
use crate::limits::{Admission, Kind, Limiter, Meter};
use crate::observe::{Exchange, Observe, UpstreamError};
use crate::serve::{Peer, Phase};
use crate::upstream::{RequestBody, ResponseBody, Upstream, is_grpc};
use crate::{Limits, headers, tunnel, upstream};

/// What a worker answers requests with.
pub struct Proxy {
    pub directory: Arc<Directory>,
    pub upstream: Arc<Upstream>,
    pub addressing: Addressing,
    pub authorizer: Arc<Authorizer>,
    pub limiter: Arc<Limiter>,
    pub limits: Limits,
    pub phase: watch::Receiver<Phase>,
    /// Tunnels outlive the HTTP connection they began on.
    pub tunnels: TaskTracker,
    pub observe: Observe,
}

// === impl Proxy ===

impl Proxy {
    pub async fn answer(&self, request: Request<Incoming>, caller: Caller, busy: Busy) -> Response<Body> {
        if request.uri().path() == "/healthz" {
            return healthy();
        }
        let is_grpc = is_grpc(request.headers());
        let mut exchange = Exchange::begin(&self.observe, &request, caller.peer.address);
        let span = exchange.as_ref().map_or_else(Span::none, |exchange| exchange.span().clone());
        let answered = self.forward(request, caller, busy.progress(), &mut exchange).instrument(span).await;
        let response = answered.unwrap_or_else(|error| {
            tracing::debug!(status = error.status().as_u16(), detail = %error, "request refused");
            if let Error::Exceeded(exceeded) = &error {
                self.observe.limited(exceeded.limit());
            }
            let response = if is_grpc { error.grpc_response() } else { error.response() };
            response.map(Body::own)
        });
        if let Some(exchange) = &mut exchange {
            exchange.answered(response.status());
        }
        response.map(|body| body.reporting(exchange, busy))
    }

    async fn forward(
        &self,
        mut request: Request<Incoming>,
        mut caller: Caller,
        progress: &Progress,
        exchange: &mut Option<Exchange>,
    ) -> Result<Response<Body>, Error> {
        if request.method() == Method::CONNECT {
            return Err(Error::MethodNotAllowed);
        }
        // A host without a path is for CONNECT alone; a proxy in front may have read it as something else.
        if request.uri().authority().is_some() && request.uri().scheme().is_none() {
            return Err(Error::TargetInvalid);
        }
        let begun = Instant::now();
        if request.headers().get_all(HOST).iter().nth(1).is_some() {
            return Err(Error::HostRepeated);
        }
        // Which sandbox, who may, how much: nothing before the directory depends on which sandboxes exist.
        self.limiter.check_head(request.headers())?;
        let mut route = self.addressing.route(request.uri(), request.headers())?;
        if let Some(exchange) = exchange {
            let Address { namespace, name, .. } = &route.address;
            exchange.names(namespace, name, self.directory.has_namespace(namespace));
        }
        let client = self.limiter.client_address(caller.peer.address, request.headers());
        caller.peer.tls = self.limiter.is_tls(caller.peer.address, caller.peer.tls, request.headers());
        let pass = match self.authorize(&request, &route, &caller, client, exchange.as_ref()).await? {
            Verdict::Allow(pass) => pass,
            Verdict::Redirect(response) => return Ok(response.map(Body::own)),
        };
        pass.bind(&mut route.address);
        if let Some(exchange) = exchange {
            exchange.passed(&pass.identity);
        }
        // HTTP/1.0 has no upgrades (RFC 9110, 7.8).
        let upgrade = headers::upgrade(request.headers()).filter(|_| request.version() == Version::HTTP_11);
        let kind = if upgrade.is_some() { Kind::Tunnel } else { Kind::Request };
        let admission = self.limiter.admit(&pass.identity, client, &route.address, kind)?;
        let address = &route.address;
        let target = self.directory.resolve(address).await?;
        self.authorizer.clean_request(&route, &mut request);

        let tunnel = upgrade.as_ref().map(|_| hyper::upgrade::on(&mut request));
        let meter = (!request.body().is_end_stream()).then(|| self.limiter.meter(progress));
        let mut outgoing = outgoing(request, &target, address, caller.peer, upgrade.as_ref(), meter.as_ref());
        if route.via == Via::Path
            && let Some(prefix) = self.addressing.path_of(address, true)
            && let Ok(prefix) = HeaderValue::try_from(prefix)
        {
            outgoing.headers_mut().insert(headers::FORWARDED_PREFIX, prefix);
        }
        if let Some(exchange) = exchange {
            exchange.propagate(outgoing.headers_mut());
        }
        let response = self.exchange(&target, address, outgoing, begun, meter.as_ref()).await;
        let exceeded = || meter.as_ref().and_then(Meter::exceeded);
        let mut response = response.map_err(|error| exceeded().map_or(error, Error::from))?;

        let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        headers::prepare_response(response.headers_mut(), switched);
        self.authorizer.clean_response(response.headers_mut());
        route.protect_origin(response.headers_mut());
        match tunnel {
            Some(tunnel) if switched => {
                let tunnel = (tunnel, hyper::upgrade::on(&mut response));
                self.carry(tunnel, (caller, admission, exchange.take()));
                Ok(response.map(|body| Body::sandbox(body, Admission::default())))
            }
            // Without an upgrade in the request, the caller cannot speak another protocol.
            None if switched => Err(Error::Unreachable { name: route.address.name }),
            _ => Ok(response.map(|body| Body::sandbox(body, admission))),
        }
    }

    async fn authorize(
        &self,
        request: &Request<Incoming>,
        route: &Route,
        caller: &Caller,
        client: IpAddr,
        exchange: Option<&Exchange>,
    ) -> Result<Verdict, Error> {
        let Peer { trusted, tls, .. } = caller.peer;
        let asking = Asking {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            route,
            connection: Connection { trusted, tls },
            limited: self.limiter.check_refusals(client).err(),
        };
        let verdict = self.authorizer.authorize(asking).await;
        if let Err(Error::Refused(_)) = verdict {
            self.limiter.count_refusal(client);
        }
        if let Some(exchange) = exchange {
            exchange.authorized(verdict.is_ok());
        }
        verdict
    }

    async fn exchange(
        &self,
        target: &Arc<Target>,
        address: &Address,
        request: Request<RequestBody>,
        begun: Instant,
        meter: Option<&Meter>,
    ) -> Result<Response<ResponseBody>, Error> {
        let limit = self.limits.response_timeout;
        let mut until = begun + address.timeout.map_or(limit, |asked| asked.min(limit));
        let mut sending = pin!(self.send(target, address, request));
        loop {
            if let Ok(answered) = tokio::time::timeout_at(until, sending.as_mut()).await {
                return answered;
            }
            // A body may take any time while it moves, unless the caller asked for a time of its own.
            let later = meter.filter(|_| address.timeout.is_none()).map(|meter| meter.last_moved() + limit);
            match later.filter(|later| *later > until) {
                Some(later) => until = later,
                None => break,
            }
        }
        self.observe.upstream_error(&address.namespace, UpstreamError::Timeout);
        Err(Error::TimedOut { name: address.name.clone() })
    }

    /// Sends a request to the Pod of its sandbox, which another Pod may replace until there is a connection.
    async fn send(
        &self,
        target: &Arc<Target>,
        address: &Address,
        mut request: Request<RequestBody>,
    ) -> Result<Response<ResponseBody>, Error> {
        let mut target = target.clone();
        loop {
            let error = match self.upstream.send(&target, address.port, request).await {
                Ok(response) => return Ok(response),
                Err(upstream::Error::Outdated(unsent)) => {
                    self.observe.target_lost(&address.namespace);
                    target = self.directory.resolve(address).await?;
                    request = *unsent;
                    readdress(&mut request, &target.host(address.port));
                    continue;
                }
                Err(error) if error.is_callers() => return Err(Error::BodyInvalid),
                Err(error) => error,
            };
            self.observe.upstream_error(&address.namespace, error.reason());
            let error = &error as &dyn std::error::Error;
            tracing::info!(namespace = %address.namespace, sandbox = %address.name, port = address.port, error, "sandbox unreachable");
            return Err(Error::Unreachable { name: address.name.clone() });
        }
    }

    /// Passes bytes both ways until both sides have ended, or the router does; `held` lasts as long.
    fn carry(&self, sides: (OnUpgrade, OnUpgrade), held: (Caller, Admission, Option<Exchange>)) {
        let Limits { tunnel_idle_timeout: idle, tunnel_lifetime: lifetime, .. } = self.limits;
        let open = self.observe.tunnel();
        self.tunnels.spawn(async move {
            let (caller, admission, mut exchange) = held;
            if let Some(exchange) = &mut exchange {
                exchange.answered(StatusCode::SWITCHING_PROTOCOLS);
            }
            if let Ok((caller_side, sandbox_side)) = tokio::try_join!(sides.0, sides.1) {
                let (caller_side, sandbox_side) = (TokioIo::new(caller_side), TokioIo::new(sandbox_side));
                let carrying = tunnel::carry(caller_side, sandbox_side, idle);
                // Both sides see how the tunnel ends; there is nothing to add to that.
                let _ = tokio::time::timeout(lifetime.unwrap_or(Duration::MAX), carrying).await;
            }
            drop((caller, admission, exchange, open));
        });
    }
}

fn healthy() -> Response<Body> {
    let mut response = Response::new(Body::own(r#"{"status":"ok"}"#));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The same request, for the sandbox: path and query byte for byte, headers cleaned.
fn outgoing(
    request: Request<Incoming>,
    target: &Target,
    address: &Address,
    peer: Peer,
    upgrade: Option<&HeaderValue>,
    meter: Option<&Meter>,
) -> Request<RequestBody> {
    let (mut head, body) = request.into_parts();
    adapt_host(&mut head.headers, &head.uri);
    if head.version == Version::HTTP_2 {
        join_cookies(&mut head.headers);
    }
    let host = target.host(address.port);
    let path = head.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    head.extensions.clear();
    headers::prepare_request(&mut head.headers, peer, &host, upgrade);
    if is_grpc(&head.headers) {
        head.version = Version::HTTP_2;
        head.headers.remove(HOST);
        head.uri = absolute(&host, path);
    } else {
        head.version = Version::HTTP_11;
        head.uri = Uri::from(path);
    }
    let body = match meter {
        Some(meter) => Either::Left(meter.watch(body)),
        None => Either::Right(Empty::new()),
    };
    Request::from_parts(head, body)
}

/// HTTP/2 names the host in a pseudo-header (RFC 9113, 8.3.1), and an absolute target wins over `Host`.
fn adapt_host(headers: &mut HeaderMap, uri: &Uri) {
    if uri.authority().is_some()
        && let Ok(host) = requested_host(uri, headers).map(HeaderValue::from_str)
        && let Ok(host) = host
    {
        headers.insert(HOST, host);
    }
}

/// HTTP/2 may split cookies (RFC 9113, 8.2.3); HTTP/1.1 does not.
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().count() > 1 {
        let all: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
        if let Ok(joined) = HeaderValue::from_bytes(&all.join(&b"; "[..])) {
            headers.insert(COOKIE, joined);
        }
    }
}

/// The same request for another Pod.
fn readdress(request: &mut Request<RequestBody>, host: &HeaderValue) {
    if let Some(named) = request.headers_mut().get_mut(HOST) {
        *named = host.clone();
    } else if let Some(path) = request.uri().path_and_query().cloned() {
        *request.uri_mut() = absolute(host, path);
    }
}

fn absolute(host: &HeaderValue, path: PathAndQuery) -> Uri {
    let host = host.to_str().unwrap_or_default();
    let uri = Uri::builder().scheme("http").authority(host).path_and_query(path).build();
    uri.expect("an address and the path of a request make a URI")
}
