//! `asb rm`: away with sandboxes, their processes and their storage.

use std::process::ExitCode;
use std::time::Duration;

use asb_types::Sandbox;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client, ResourceExt};

use crate::args::Rm;
use crate::connect;
use crate::data_dir::DataDir;
use crate::failure::hinted;

/// The longest grace period that we wait for.
const GONE: Duration = Duration::from_secs(60);

pub async fn run(data_dir: &DataDir, rm: Rm) -> anyhow::Result<ExitCode> {
    let client = connect::running_client(data_dir).await?;
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), &rm.target.namespace);
    let names = match rm.all {
        true => {
            sandboxes.list(&ListParams::default()).await?.iter().map(|sandbox| sandbox.name_any()).collect()
        }
        false => rm.names,
    };
    for name in &names {
        remove(&client, &rm.target.namespace, name).await?;
        println!("{name}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Deletes a sandbox and waits until its processes are gone.
pub async fn remove(client: &Client, namespace: &str, name: &str) -> anyhow::Result<()> {
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), namespace);
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pod = pods.get_metadata_opt(name).await?.and_then(|pod| pod.metadata.uid);
    sandboxes.delete(name, &DeleteParams::default()).await.map_err(|error| match error {
        kube::Error::Api(status) if status.code == 404 => {
            hinted(format!("no sandbox `{name}`"), "`asb ps` lists those that are there")
        }
        other => anyhow::Error::new(other).context(format!("failed to remove `{name}`")),
    })?;
    if let Some(uid) = pod {
        let gone = tokio::time::timeout(GONE, await_condition(pods, name, conditions::is_deleted(&uid)));
        gone.await.map_err(|_| anyhow::anyhow!("`{name}` is still shutting down after {GONE:?}"))??;
    }
    Ok(())
}
