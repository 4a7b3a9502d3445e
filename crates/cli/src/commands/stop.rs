//! `asb stop`: no processes, but name, settings and volumes stay.

use std::process::ExitCode;
use std::time::Duration;

use asb_types::Sandbox;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client};
use serde_json::json;

use crate::args::Stop;
use crate::connect;
use crate::data_dir::DataDir;
use crate::failure::hinted;

/// The longest grace period that we wait for.
const GONE: Duration = Duration::from_secs(60);

pub async fn run(data_dir: &DataDir, stop: Stop) -> anyhow::Result<ExitCode> {
    let client = connect::running_client(data_dir).await?;
    for name in &stop.names {
        let pods: Api<Pod> = Api::namespaced(client.clone(), &stop.target.namespace);
        let pod = pods.get_metadata_opt(name).await?.and_then(|pod| pod.metadata.uid);
        let sandbox = set_mode(&client, &stop.target.namespace, name, "Suspended").await?;
        if let Some(uid) = pod {
            let gone = tokio::time::timeout(GONE, await_condition(pods, name, conditions::is_deleted(&uid)));
            gone.await.map_err(|_| anyhow::anyhow!("`{name}` is still shutting down after {GONE:?}"))??;
        }
        println!("{name}");
        if sandbox.spec.volume_claim_templates.unwrap_or_default().is_empty() {
            eprintln!("`{name}` has no volumes: what it wrote is gone; its name and settings are kept");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Changes whether a sandbox runs; answers with the sandbox.
pub async fn set_mode(client: &Client, namespace: &str, name: &str, mode: &str) -> anyhow::Result<Sandbox> {
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), namespace);
    let patch = Patch::Merge(json!({"spec": {"operatingMode": mode}}));
    sandboxes.patch(name, &PatchParams::default(), &patch).await.map_err(|error| match error {
        kube::Error::Api(status) if status.code == 404 => {
            hinted(format!("no sandbox `{name}`"), "`asb ps` lists those that are there")
        }
        kube::Error::Api(status) => anyhow::anyhow!("{}", status.message),
        other => anyhow::Error::new(other).context(format!("failed to change `{name}`")),
    })
}
