//! One request: find the sandbox, pass the bytes.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::uri::{PathAndQuery, Uri};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Either, Empty, Full};
use hyper::body::{Body as _, Incoming};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::sync::{OwnedSemaphorePermit, watch};

use crate::authorize::Token;
use crate::dial::Target;
use crate::directory::Directory;
use crate::error::Error;
use crate::request::Address;
use crate::upstream::{RequestBody, Upstream};
use crate::{Limits, headers, request};

pub type Body = UnsyncBoxBody<Bytes, hyper::Error>;

pub struct Proxy {
    pub directory: Arc<Directory>,
    pub upstream: Arc<Upstream>,
    pub token: Token,
    pub limits: Limits,
    /// Closes when the router ends; tunnels end with it.
    pub running: watch::Receiver<bool>,
}

/// The connection a request came on.
#[derive(Clone)]
pub struct Caller {
    pub address: IpAddr,
    /// Held by tunnels too: they outlive the HTTP part of their connection.
    pub _permit: Arc<OwnedSemaphorePermit>,
}

// === impl Proxy ===

impl Proxy {
    pub async fn answer(&self, request: Request<Incoming>, caller: Caller) -> Response<Body> {
        if request.uri().path() == "/healthz" {
            return healthy();
        }
        let method = request.method().clone();
        let response = self.forward(request, caller).await.unwrap_or_else(|error| {
            tracing::debug!(%method, status = error.status().as_u16(), detail = %error, "refused");
            error.response().map(|body| body.map_err(|never| match never {}).boxed_unsync())
        });
        tracing::trace!(%method, status = response.status().as_u16(), "answered");
        response
    }

    async fn forward(&self, mut request: Request<Incoming>, caller: Caller) -> Result<Response<Body>, Error> {
        if request.method() == Method::CONNECT {
            return Err(Error::MethodNotAllowed);
        }
        let address = request::parse(request.headers())?;
        let found = self.directory.lookup(&address);
        request::check_pod_address(address.pod_address, found.known_address())?;
        self.token.check(request.headers())?;
        let target = found.target(&address)?;

        let upgrade = headers::upgrade(request.headers());
        let tunnel = upgrade.as_ref().map(|_| hyper::upgrade::on(&mut request));
        let outgoing = outgoing(request, &target, &address, caller.address, upgrade.as_ref());
        let mut response = self.exchange(&target, &address, outgoing).await?;

        let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        match tunnel {
            Some(tunnel) if switched => self.carry(tunnel, hyper::upgrade::on(&mut response), caller),
            // Nobody asked for another protocol, so nobody can speak it.
            None if switched => return Err(Error::Unreachable { name: address.name }),
            _ => {}
        }
        headers::prepare_response(response.headers_mut(), switched);
        Ok(response.map(BodyExt::boxed_unsync))
    }

    async fn exchange(
        &self,
        target: &Target,
        address: &Address,
        request: Request<RequestBody>,
    ) -> Result<Response<crate::upstream::ResponseBody>, Error> {
        let limit = self.limits.response_timeout;
        let limit = address.timeout.map_or(limit, |asked| asked.min(limit));
        match tokio::time::timeout(limit, self.upstream.send(target, address.port, request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                tracing::info!(namespace = %address.namespace, sandbox = %address.name, port = address.port, %error, %cause, "sandbox unreachable");
                Err(Error::Unreachable { name: address.name.clone() })
            }
            Err(_) => Err(Error::TimedOut { name: address.name.clone() }),
        }
    }

    /// Passes bytes both ways until one side ends, or the router does.
    fn carry(&self, caller_side: OnUpgrade, sandbox_side: OnUpgrade, caller: Caller) {
        let mut running = self.running.clone();
        tokio::spawn(async move {
            let tunnel = async {
                let (caller_side, sandbox_side) = tokio::try_join!(caller_side, sandbox_side)?;
                let (mut caller_side, mut sandbox_side) =
                    (TokioIo::new(caller_side), TokioIo::new(sandbox_side));
                // How a tunnel ends is its users' business.
                let _ = tokio::io::copy_bidirectional(&mut caller_side, &mut sandbox_side).await;
                Ok::<_, hyper::Error>(())
            };
            tokio::select! {
                _ = tunnel => {}
                () = closed(&mut running) => {}
            }
            drop(caller);
        });
    }
}

async fn closed(running: &mut watch::Receiver<bool>) {
    while running.changed().await.is_ok() {}
}

fn healthy() -> Response<Body> {
    let body = Full::from(r#"{"status":"ok"}"#).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The same request, for the sandbox: path and query byte for byte, headers cleaned.
fn outgoing(
    request: Request<Incoming>,
    target: &Target,
    address: &Address,
    peer: IpAddr,
    upgrade: Option<&HeaderValue>,
) -> Request<RequestBody> {
    let (mut head, body) = request.into_parts();
    let path = head.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    head.uri = Uri::from(path);
    head.version = http::Version::HTTP_11;
    head.extensions.clear();
    let host = SocketAddr::new(target.address, address.port).to_string();
    let host = HeaderValue::try_from(host).expect("an address is plain ASCII");
    headers::prepare_request(&mut head.headers, peer, host, upgrade);
    let body = if body.is_end_stream() { Either::Right(Empty::new()) } else { Either::Left(body) };
    Request::from_parts(head, body)
}
