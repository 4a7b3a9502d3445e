//! Connections to the API server: HTTP/2, so that requests in flight and watches share them.
//!
//! A few, because a server handles what comes on one connection in turn: with one for everything, 20 claims at once took
//! up to twice as long on a busy machine. With a connection for each request, as HTTP/1 has it, every burst pays for greetings.
//!
//! A connection whose other end is gone without a word is noticed by pings: a watch on it would be silent for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::{Context as _, bail};
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error, ResponseFuture};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ClientBuilder, ConfigExt};
use tower::retry::RetryLayer;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceBuilder};

/// Silence after which the other end is asked whether it is there.
const PING_AFTER: Duration = Duration::from_secs(30);
/// How long it has to answer.
const PING_TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connections {
    /// Connections that requests take in turn.
    pub requests: usize,
    /// One more for the lists and watches of caches. They have it as well when requests have several.
    pub separate_watches: bool,
}

type Transport = BoxCloneSyncService<Request<Body>, Response<Incoming>, BoxError>;

impl Connections {
    /// A client that connects when it is used.
    pub fn client(self, config: &kube::Config) -> anyhow::Result<ClientBuilder<Transport>> {
        if let Some(proxy) = &config.proxy_url {
            bail!("the API server is behind the proxy {proxy}, which is not supported: name it directly");
        }
        let retry = config.default_retry.then_some(RetryLayer::new(RetryPolicy::server_retry()));
        let transport = ServiceBuilder::new()
            .layer(config.base_uri_layer())
            .option_layer(retry)
            .option_layer(config.auth_layer().context("cannot log in to the API server")?)
            .layer(config.extra_headers_layer()?)
            .map_err(BoxError::from)
            .service(self.pool(config)?);
        Ok(ClientBuilder::new(BoxCloneSyncService::new(transport), config.default_namespace.clone()))
    }

    fn pool(self, config: &kube::Config) -> anyhow::Result<Pool> {
        let requests: Vec<_> = (0..self.requests).map(|_| connection(config)).collect::<Result<_, _>>()?;
        let apart = self.separate_watches || self.requests > 1;
        let watches = apart.then(|| connection(config)).transpose()?;
        Ok(Pool { requests: requests.into(), watches, turn: Arc::default() })
    }
}

type Connection = Client<TimeoutConnector<HttpsConnector<HttpConnector>>, Body>;

/// One connection, made when it is first needed and again when it broke. Where the server has no HTTP/2, as many as
/// there are requests at a time.
fn connection(config: &kube::Config) -> anyhow::Result<Connection> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let tls = HttpsConnectorBuilder::new().with_tls_config(config.rustls_client_config()?).https_or_http();
    let tls = match &config.tls_server_name {
        Some(name) => {
            let name = name.clone().try_into().with_context(|| format!("tls-server-name {name:?}"))?;
            tls.with_server_name_resolver(hyper_rustls::FixedServerNameResolver::new(name))
        }
        None => tls,
    };
    let mut connector = TimeoutConnector::new(tls.enable_all_versions().wrap_connector(tcp));
    connector.set_connect_timeout(config.connect_timeout);
    Ok(Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .http2_keep_alive_interval(PING_AFTER)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .build(connector))
}

#[derive(Clone)]
struct Pool {
    requests: Arc<[Connection]>,
    watches: Option<Connection>,
    turn: Arc<AtomicUsize>,
}

impl Pool {
    fn pick(&self, request: &Request<Body>) -> &Connection {
        match &self.watches {
            Some(watches) if is_of_caches(request) => watches,
            _ => &self.requests[self.turn.fetch_add(1, Ordering::Relaxed) % self.requests.len()],
        }
    }
}

/// Whether this is a list or a watch. The controllers themselves only ask for single objects.
fn is_of_caches(request: &Request<Body>) -> bool {
    let mut query = request.uri().query().unwrap_or_default().split('&');
    query.any(|pair| pair.starts_with("watch=") || pair.starts_with("limit="))
}

impl Service<Request<Body>> for Pool {
    type Response = Response<Incoming>;
    type Error = Error;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> ResponseFuture {
        self.pick(&request).request(request)
    }
}
