//! The whole life of the process: what both programs do after they have read their flags.

use std::process::ExitCode;

use anyhow::Context;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::signal::unix::{SignalKind, signal};

use crate::options::Options;
use crate::settings::{Log, Settings};

/// Runs until a signal asks to stop. What goes wrong is logged, and makes the exit code 1.
pub async fn run(options: Options) -> ExitCode {
    if options.0.version {
        println!("agent-sandbox-controller {}", env!("CARGO_PKG_VERSION"));
        return ExitCode::SUCCESS;
    }
    let settings = match options.settings() {
        Ok(settings) => settings,
        Err(problem) => {
            eprintln!("error: {problem}");
            return ExitCode::FAILURE;
        }
    };
    init_log(&settings.log);
    match serve(settings).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "controller failed");
            ExitCode::FAILURE
        }
    }
}

async fn serve(settings: Settings) -> anyhow::Result<()> {
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    let client = kube::Client::try_from(cluster(&settings).await?)?;
    let mut terminate = signal(SignalKind::terminate())?;
    let ready = || tracing::info!("caches are complete; controllers run");
    let run = async {
        if settings.extensions {
            asb_controllers::run_all(client, settings.controllers, ready).await;
        } else {
            asb_controllers::sandbox::run(client, settings.controllers, ready).await;
        }
    };
    tokio::select! {
        () = run => anyhow::bail!("the controllers stopped"),
        _ = terminate.recv() => Ok(()),
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
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

fn init_log(log: &Log) {
    let subscriber = tracing_subscriber::fmt().with_max_level(log.level).with_writer(std::io::stderr);
    if log.json {
        subscriber.json().flatten_event(true).init();
    } else {
        subscriber.with_ansi(false).init();
    }
}
