//! The whole life of the process, from its arguments to its exit code.
//!
//! ```text
//! bind all listeners ─► serve probes (not ready) ─► directory complete ─► take connections, ready
//!   SIGTERM ─► not ready ─► --shutdown-delay ─► take no more connections ─► --shutdown-timeout ─► end
//! ```

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use asb_router::{Observe, TcpDial};
use clap::error::ErrorKind;
use kube::config::{KubeConfigOptions, Kubeconfig};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::admin::{self, Readiness};
use crate::config::{Connected, connect};
use crate::metrics::Metrics;
use crate::options::Flags;
use crate::push::Push;
use crate::report::Report;
use crate::secrets::{self, Secrets};
use crate::settings::{Listeners, Settings};
use crate::version::Version;
use crate::{keys, layers, listen, telemetry, tls};

/// The exit code for flags that cannot be used; another failure is 1.
const USAGE: u8 = 2;

/// Runs until a signal asks it to stop. `arguments` do not hold the program's name.
pub async fn run(arguments: Vec<String>) -> ExitCode {
    // Two providers in one binary panic, so this one is chosen before any is asked for.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (settings, secrets) = match read(arguments) {
        Ok(Some(read)) => read,
        Ok(None) => return ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            return USAGE.into();
        }
    };
    let telemetry = match telemetry::install(&settings) {
        Ok(telemetry) => telemetry,
        Err(error) => {
            eprintln!("error: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    raise_descriptors();
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    let push = match settings.otel_metrics.then(Push::start).transpose() {
        Ok(push) => push,
        Err(error) => {
            eprintln!("error: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    let metrics = Arc::new(Metrics::new(push));
    let report =
        Report { metrics: metrics.clone(), access_log: settings.access_log, traces: telemetry.traces() };
    let connected = match connect(&settings, &secrets, Observe(Some(Arc::new(report)))) {
        Ok(connected) => connected,
        Err(problem) => {
            eprintln!("error: {problem}");
            return USAGE.into();
        }
    };
    let ended = serve(&settings, connected, metrics.clone()).await;
    tokio::join!(telemetry.flush(), metrics.flush());
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "router failed");
            ExitCode::FAILURE
        }
    }
}

/// As many open files as the process may have: each request needs two, and container runtimes begin with 1024.
fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "failed to raise the limit of open files");
    }
}

/// The settings; `None` when there is nothing to run.
fn read(arguments: Vec<String>) -> Result<Option<(Settings, Secrets)>, String> {
    let variable = |name: &str| std::env::var(name).ok();
    let file = |path: &PathBuf| std::fs::read_to_string(path).map_err(|error| error.to_string());
    let wrong = |error: &dyn std::fmt::Display| format!("error: {error}");
    let all = layers::arguments(arguments, variable, file).map_err(|error| wrong(&error))?;
    let flags = match Flags::parse_arguments(&all) {
        Ok(flags) => flags,
        Err(asked) if asked.kind() == ErrorKind::DisplayHelp => {
            // The reader may have closed the pipe.
            let _ = asked.print();
            return Ok(None);
        }
        Err(error) => return Err(error.to_string().trim_end().to_owned()),
    };
    if flags.version {
        let _ = writeln!(std::io::stdout(), "{}", Version::here());
        return Ok(None);
    }
    let token = variable("ROUTER_AUTH_TOKEN").filter(|token| !token.trim().is_empty());
    let settings = flags.settings(token.is_some()).map_err(|problem| wrong(&problem))?;
    let secrets = secrets::read(&settings, token.as_deref()).map_err(|problem| wrong(&problem))?;
    Ok(Some((settings, secrets)))
}

async fn serve(settings: &Settings, connected: Connected, metrics: Arc<Metrics>) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut asked_to_stop = async || {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let Listeners { shutdown_delay, shutdown_timeout, .. } = settings.listeners;
    let trust_loopback = settings.authorization.trust_loopback;
    let bound = Bound::open(&settings.listeners, &metrics).await?;

    // Each task ends with this set.
    let mut beside = JoinSet::new();
    let ready = Readiness::default();
    if let Some(listener) = bound.probes {
        let ready = ready.clone();
        beside.spawn(admin::serve(listener, move |path| admin::probe(&ready, path)));
    }
    if let Some(listener) = bound.metrics {
        let metrics = metrics.clone();
        beside.spawn(admin::serve(listener, move |path| metrics.page(path)));
    }
    let client = kube::Client::try_from(cluster(settings).await?)?;
    let router = tokio::select! {
        router = asb_router::start(client, Arc::new(TcpDial), connected.config) => router?,
        () = asked_to_stop() => return Ok(()),
    };
    if let (Some(keys), Some(file)) =
        (connected.keys, &settings.authorization.scoped_tokens.verification_keys_file)
    {
        beside.spawn(keys::follow(keys, file.clone()));
    }
    let mut listening = JoinSet::new();
    if let Some(listener) = bound.http {
        listening.spawn(listen::serve(listener, None, trust_loopback, router.connections()));
    }
    if let Some((listener, acceptor, certificate)) = bound.https {
        listening.spawn(listen::serve(listener, Some(acceptor), trust_loopback, router.connections()));
        let metrics = metrics.clone();
        beside.spawn(async move { certificate.follow(|usable| metrics.certificate_read(usable)).await });
    }
    ready.set(true);
    tracing::info!("router ready");

    asked_to_stop().await;
    ready.set(false);
    tracing::info!(delay = ?shutdown_delay, timeout = ?shutdown_timeout, "router draining");
    tokio::select! {
        () = tokio::time::sleep(shutdown_delay) => {}
        () = asked_to_stop() => {}
    }
    listening.shutdown().await;
    tokio::select! {
        () = router.drain(shutdown_timeout) => {}
        () = asked_to_stop() => tracing::warn!("requests in flight were cut off"),
    }
    Ok(())
}

/// Every listener of the process.
struct Bound {
    http: Option<TcpListener>,
    https: Option<(TcpListener, tokio_rustls::TlsAcceptor, Arc<tls::Certificate>)>,
    metrics: Option<TcpListener>,
    probes: Option<TcpListener>,
}

impl Bound {
    /// Binds all, or none: what was bound before a failure is released with this.
    async fn open(listeners: &Listeners, metrics: &Metrics) -> anyhow::Result<Self> {
        let https = match &listeners.https {
            None => None,
            Some(https) => {
                let (acceptor, certificate) = tls::open(https)?;
                metrics.certificate_read(true);
                let listener = bind("https-bind-address", Some(&https.address)).await?;
                listener.map(|listener| (listener, acceptor, certificate))
            }
        };
        Ok(Self {
            http: bind("http-bind-address", listeners.http.as_ref()).await?,
            https,
            metrics: bind("metrics-bind-address", listeners.metrics.as_ref()).await?,
            probes: bind("health-probe-bind-address", listeners.probes.as_ref()).await?,
        })
    }
}

async fn bind(
    flag: &'static str,
    address: Option<&asb_goflags::Address>,
) -> anyhow::Result<Option<TcpListener>> {
    let Some(address) = address else { return Ok(None) };
    let bound = listen::bind(address).await;
    let asked = format!("{}:{}", address.host, address.port);
    let listener = bound.with_context(|| format!("failed to listen on --{flag} {asked}"))?;
    tracing::info!(listener = flag, address = %listener.local_addr()?, "listening");
    Ok(Some(listener))
}

/// Where the API server is: an explicit kubeconfig, else the cluster this runs in, else the usual kubeconfig.
async fn cluster(settings: &Settings) -> anyhow::Result<kube::Config> {
    let Some(path) = &settings.kubeconfig else {
        if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
            return kube::Config::incluster().context("the cluster this runs in cannot be used");
        }
        let inferred = kube::Config::infer().await;
        return inferred.context("no cluster: set --kubeconfig, or run in a Pod of one");
    };
    let read = Kubeconfig::read_from(path);
    let kubeconfig = read.with_context(|| format!("failed to read --kubeconfig {}", path.display()))?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    config.with_context(|| format!("--kubeconfig {} is incomplete", path.display()))
}
