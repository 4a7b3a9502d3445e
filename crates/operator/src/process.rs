//! The whole life of the process: what both programs do after they have read their flags.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tower::util::option_layer;

use crate::limit::Limit;
use crate::metrics::requests::Requests;
use crate::operator::Operator;
use crate::options::Options;
use crate::settings::Settings;
use crate::version::Version;
use crate::{label_domains, telemetry};

/// Runs until a signal asks to stop. What goes wrong is logged, and makes the exit code 1.
pub async fn run(options: Options) -> ExitCode {
    if options.0.version {
        println!("{}", Version::here());
        return ExitCode::SUCCESS;
    }
    let mut settings = match options.settings() {
        Ok(settings) => settings,
        Err(problem) => {
            eprintln!("error: {problem}");
            return ExitCode::FAILURE;
        }
    };
    let telemetry = match telemetry::install(&settings.log, settings.tracing) {
        Ok(telemetry) => telemetry,
        Err(error) => {
            eprintln!("error: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    settings.controllers.traces = telemetry.traces();
    let ended = serve(settings).await;
    telemetry.flush().await;
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "controller failed");
            ExitCode::FAILURE
        }
    }
}

async fn serve(mut settings: Settings) -> anyhow::Result<()> {
    if settings.scope.extensions {
        let domains = label_domains::read(Path::new(label_domains::FILE));
        settings.controllers.claims.allowed_label_domains =
            domains.with_context(|| format!("failed to read {}", label_domains::FILE))?;
    }
    let requests = settings.rest_client_metrics.then(Requests::default);
    let client = settings
        .connections
        .client(&cluster(&settings).await?)?
        .with_layer(&option_layer(settings.rate.map(Limit::new)))
        .with_layer(&option_layer(requests.clone()))
        .build();
    let operator = Operator::open(client, &settings, requests.as_ref()).await?;
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        stopping.cancel();
    });
    operator.run(stop).await
}

/// Where the API server is, and how to speak to it.
async fn cluster(settings: &Settings) -> anyhow::Result<kube::Config> {
    let Some(path) = &settings.kubeconfig else {
        let inferred = kube::Config::infer().await;
        return inferred.context("no cluster: neither a kubeconfig for one, nor do we run in one");
    };
    let read = Kubeconfig::read_from(path);
    let kubeconfig = read.with_context(|| format!("failed to read --kubeconfig {}", path.display()))?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    config.with_context(|| format!("--kubeconfig {} is incomplete", path.display()))
}
