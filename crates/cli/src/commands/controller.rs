//! `asb controller`: the controllers alone, for a cluster.

use std::process::ExitCode;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::Controller;
use crate::connect;

pub async fn run(controller: Controller) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        controller.sandbox_concurrent_workers > 0,
        "--sandbox-concurrent-workers must be greater than 0"
    );
    let client = match &controller.kubeconfig {
        Some(path) => connect::client_from(path).await?,
        None => kube::Client::try_default()
            .await
            .context("no cluster: neither in one nor a kubeconfig for one")?,
    };
    let config = asb_controllers::Config {
        cluster_domain: controller.cluster_domain,
        sandbox_workers: controller.sandbox_concurrent_workers,
        namespace: controller.namespace,
        router_namespace: controller.router_namespace,
        ..asb_controllers::Config::default()
    };
    let mut terminate = signal(SignalKind::terminate())?;
    let ready = || tracing::info!("caches are complete; controllers run");
    let run = async {
        if controller.extensions {
            asb_controllers::run_all(client, config, ready).await;
        } else {
            asb_controllers::sandbox::run(client, config, ready).await;
        }
    };
    tokio::select! {
        () = run => anyhow::bail!("the controllers stopped"),
        _ = terminate.recv() => Ok(ExitCode::SUCCESS),
        _ = tokio::signal::ctrl_c() => Ok(ExitCode::SUCCESS),
    }
}
