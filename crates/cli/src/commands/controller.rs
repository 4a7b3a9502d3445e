//! `asb controller`: the controllers alone, for a cluster.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use asb_controllers::{Caches, Scope};
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
        router_namespace: controller.router_namespace,
        ..asb_controllers::Config::default()
    };
    let mut terminate = signal(SignalKind::terminate())?;
    let scope = Scope {
        namespaces: controller.namespace.into_iter().collect(),
        extensions: controller.extensions,
        ..Scope::default()
    };
    let caches = Arc::new(Caches::new(scope));
    let ready = async {
        caches.synced().await;
        tracing::info!("caches are complete; controllers run");
    };
    let controllers = async {
        if controller.extensions {
            asb_controllers::run_all(client.clone(), caches.clone(), config).await;
        } else {
            asb_controllers::sandbox::run(client.clone(), caches.clone(), config).await;
        }
    };
    let run = async { tokio::join!(caches.run(&client), ready, controllers) };
    tokio::select! {
        _ = run => anyhow::bail!("the controllers stopped"),
        _ = terminate.recv() => Ok(ExitCode::SUCCESS),
        _ = tokio::signal::ctrl_c() => Ok(ExitCode::SUCCESS),
    }
}
