//! Joins the parts: what runs on every replica, and what only on the leader.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use asb_controllers::{Caches, Config};
use axum::Router;
use kube::Client;
use prometheus_client::metrics::gauge::Gauge;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::election::{Candidate, LEASE, Term, Timing};
use crate::go::Address;
use crate::health::{self, Health};
use crate::metrics::requests::Requests;
use crate::settings::Settings;
use crate::{election, listen, metrics};

/// How long reconciles that have begun may go on. The lease outlives it: see [`Timing`].
const DRAIN: Duration = Duration::from_secs(3);
/// For the request that gives the lease back.
const RELEASE: Duration = Duration::from_secs(5);

/// One replica, ready to run.
pub struct Operator {
    client: Client,
    caches: Arc<Caches>,
    config: Config,
    extensions: bool,
    /// `None`: it leads without asking.
    candidate: Option<Candidate>,
    leading: Gauge,
    health: Health,
    synced: watch::Sender<bool>,
    probes: Option<Endpoint>,
    metrics: Option<Endpoint>,
}

/// Something that is listened on and not served yet.
struct Endpoint {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    routes: Router,
}

impl Operator {
    /// Binds all addresses; whatever is wrong with the settings shows here.
    pub async fn open(
        client: Client,
        settings: &Settings,
        requests: Option<&Requests>,
    ) -> anyhow::Result<Self> {
        let caches = Arc::new(Caches::new(settings.scope.clone()));
        let (registry, leading) = metrics::registry(&settings.controllers, caches.clone(), requests);
        let synced = watch::Sender::new(false);
        let health = Health::new(vec![("caches", synced.subscribe())]);
        let metrics = match &settings.metrics {
            None => None,
            Some(wanted) => {
                let tls = wanted.tls.as_ref().map(|tls| tls.acceptor()).transpose();
                let tls = tls.context("--metrics-secure-serving needs a certificate")?;
                let listener = bind("metrics-bind-address", &wanted.address).await?;
                Some(Endpoint { listener, tls, routes: metrics::routes(registry) })
            }
        };
        let probes = match &settings.probes {
            None => None,
            Some(address) => {
                let listener = bind("health-probe-bind-address", address).await?;
                Some(Endpoint { listener, tls: None, routes: health::routes(health.clone()) })
            }
        };
        let candidate = settings.election.as_ref().map(|election| {
            let namespace = election.namespace.as_deref().unwrap_or(client.default_namespace());
            Candidate::new(client.clone(), namespace, election::identity(), Timing::default())
        });
        let (config, extensions) = (settings.controllers.clone(), settings.scope.extensions);
        Ok(Self { client, caches, config, extensions, candidate, leading, health, synced, probes, metrics })
    }

    /// Where /metrics is served.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().and_then(|endpoint| endpoint.listener.local_addr().ok())
    }

    /// Where /healthz and /readyz are served.
    pub fn probes_address(&self) -> Option<SocketAddr> {
        self.probes.as_ref().and_then(|endpoint| endpoint.listener.local_addr().ok())
    }

    /// Runs until `stop`; then lets the controllers finish, and gives the lease back.
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        let (probes, metrics) = (self.probes.take(), self.metrics.take());
        let serving = async { tokio::join!(serve(probes), serve(metrics)) };
        let sync = async {
            self.caches.synced().await;
            tracing::info!("caches are complete");
            self.synced.send_replace(true);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            _ = serving => anyhow::bail!("the endpoints stopped"),
            () = sync => anyhow::bail!("the caches stopped"),
            () = self.caches.run(&self.client) => anyhow::bail!("the caches stopped"),
            () = self.health.beat() => anyhow::bail!("the heart stopped"),
            ended = self.lead(&stop) => ended,
        }
    }

    /// Runs the controllers whenever this replica leads.
    ///
    /// A replica that loses the lease goes on as a candidate: dropping the controllers stops them for sure,
    /// and its caches are complete when it wins again. (The reference exits, since it cannot stop them.)
    async fn lead(&self, stop: &CancellationToken) -> anyhow::Result<()> {
        let Some(candidate) = &self.candidate else {
            self.leading.set(1);
            return self.control(stop).await;
        };
        loop {
            let mut term = tokio::select! {
                term = candidate.win() => term,
                () = stop.cancelled() => return Ok(()),
            };
            tracing::info!(lease = LEASE, "this process leads");
            self.leading.set(1);
            let ended = tokio::select! {
                () = term.keep() => None,
                ended = self.control(stop) => Some(ended),
            };
            self.leading.set(0);
            match ended {
                None => tracing::error!(lease = LEASE, "the lease was lost; the controllers are stopped"),
                Some(ended) => {
                    release(term).await;
                    return ended;
                }
            }
        }
    }

    /// Runs the controllers until `stop`, and a little longer for what they have begun.
    async fn control(&self, stop: &CancellationToken) -> anyhow::Result<()> {
        let drain = CancellationToken::new();
        let config = Config { stop: drain.clone(), ..self.config.clone() };
        let (client, caches) = (self.client.clone(), self.caches.clone());
        let mut controllers = Box::pin(async {
            match self.extensions {
                true => asb_controllers::run_all(client, caches, config).await,
                false => asb_controllers::sandbox::run(client, caches, config).await,
            }
        });
        tokio::select! {
            () = &mut controllers => anyhow::bail!("the controllers stopped"),
            () = stop.cancelled() => {}
        }
        tracing::info!("stopping");
        drain.cancel();
        if timeout(DRAIN, controllers).await.is_err() {
            tracing::warn!("some work was interrupted; the next leader takes it up");
        }
        Ok(())
    }
}

async fn release(term: Term<'_>) {
    match timeout(RELEASE, term.release()).await {
        Ok(Ok(())) => tracing::info!(lease = LEASE, "the lease was released"),
        Ok(Err(error)) => {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(lease = LEASE, error, "the lease could not be released; it will end by itself");
        }
        Err(_) => {
            tracing::warn!(lease = LEASE, "the lease could not be released in time; it will end by itself")
        }
    }
}

async fn bind(flag: &str, address: &Address) -> anyhow::Result<TcpListener> {
    let Address { host, port } = address;
    listen::bind(address).await.with_context(|| format!("failed to listen on --{flag}={host}:{port}"))
}

/// Serves for ever, also nothing.
async fn serve(endpoint: Option<Endpoint>) {
    match endpoint {
        Some(Endpoint { listener, tls, routes }) => listen::serve(listener, tls, routes).await,
        None => std::future::pending().await,
    }
}
