//! The transport of clients in this process: the Router itself, or a pipe when a connection is to be upgraded.

use std::convert::Infallible;
use std::task::{Context, Poll};

use axum::body::Body;
use futures::future::BoxFuture;
use http::{Request, Response, header};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use kube::client::Body as ClientBody;
use tower::ServiceExt as _;

use crate::http::Ahead;
use crate::status::ApiError;
use axum::response::IntoResponse as _;

/// Bytes in flight in each direction of an upgraded connection.
const PIPE: usize = 64 << 10;

#[derive(Clone)]
pub(crate) struct InProcess {
    router: axum::Router,
    ahead: bool,
}

impl InProcess {
    pub fn new(router: axum::Router) -> Self {
        Self { router, ahead: false }
    }

    /// Sees and gets answers to writes before they are on disk.
    pub fn ahead(self) -> Self {
        Self { ahead: true, ..self }
    }
}

impl tower::Service<Request<ClientBody>> for InProcess {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<ClientBody>) -> Self::Future {
        let router = self.router.clone();
        if self.ahead {
            request.extensions_mut().insert(Ahead);
        }
        Box::pin(async move {
            if !request.headers().contains_key(header::UPGRADE) {
                return router.oneshot(request.map(Body::new)).await;
            }
            Ok(piped(router, request).await.unwrap_or_else(|error| ApiError::internal(error).into_response()))
        })
    }
}

/// Sends one request over a connection of its own, which is what an upgrade takes over.
async fn piped(router: axum::Router, request: Request<ClientBody>) -> Result<Response<Body>, hyper::Error> {
    let (client, server) = tokio::io::duplex(PIPE);
    let service = TowerToHyperService::new(router);
    tokio::spawn(
        hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(server), service)
            .with_upgrades(),
    );
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(client)).await?;
    tokio::spawn(connection.with_upgrades());
    Ok(sender.send_request(request).await?.map(Body::new))
}
