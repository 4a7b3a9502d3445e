//! Counts the requests that this process sends to the API server.

use std::task::{Context, Poll};

use axum::http::{Request, Response};
use futures::future::BoxFuture;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tower::{Layer, Service};

/// A layer for the client.
#[derive(Debug, Clone, Default)]
pub struct Requests(Family<Labels, Counter>);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    code: String,
    method: String,
    host: String,
}

impl Requests {
    pub fn register(&self, registry: &mut Registry) {
        registry.register("rest_client_requests", "Requests to the API server", self.0.clone());
    }
}

impl<S> Layer<S> for Requests {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { inner, requests: self.clone() }
    }
}

#[derive(Debug, Clone)]
pub struct Counted<S> {
    inner: S,
    requests: Requests,
}

impl<S, B, R> Service<Request<B>> for Counted<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let method = request.method().to_string();
        let host = request.uri().authority().map(ToString::to_string).unwrap_or_default();
        let requests = self.requests.0.clone();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let code = match &answer {
                Ok(answer) => answer.status().as_str().to_owned(),
                Err(_) => "<error>".to_owned(),
            };
            requests.get_or_create(&Labels { code, method, host }).inc();
            answer
        })
    }
}
