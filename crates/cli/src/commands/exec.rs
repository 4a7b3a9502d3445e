//! `asb exec`: a command in a sandbox that is there.

use std::process::ExitCode;

use asb_types::{Sandbox, condition};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;

use crate::args::Exec;
use crate::connect;
use crate::data_dir::DataDir;
use crate::failure::hinted;
use crate::stdio;

pub async fn run(data_dir: &DataDir, exec: Exec) -> anyhow::Result<ExitCode> {
    let client = connect::running_client(data_dir).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &exec.target.namespace);
    let done = tokio::select! {
        done = stdio::exec(&pods, &exec.name, exec.container, &exec.command, &exec.streams) => done,
        // The terminal is put back on the way out.
        code = stdio::ended_by_signal() => Ok(code),
    };
    match done {
        Ok(code) => Ok(code),
        Err(error) => {
            // Only now, so that the common case is one round trip.
            let sandboxes: Api<Sandbox> = Api::namespaced(client, &exec.target.namespace);
            Err(match sandboxes.get_opt(&exec.name).await {
                Ok(None) => {
                    hinted(format!("no sandbox `{}`", exec.name), "`asb ps` lists those that are there")
                }
                Ok(Some(sandbox)) if !is_ready(&sandbox) => error.context(not_ready(&sandbox)),
                _ => error,
            })
        }
    }
}

fn ready(sandbox: &Sandbox) -> Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition> {
    condition::get(&sandbox.status.as_ref()?.conditions, condition::READY)
}

fn is_ready(sandbox: &Sandbox) -> bool {
    ready(sandbox).is_some_and(|ready| ready.status == "True")
}

fn not_ready(sandbox: &Sandbox) -> String {
    let name = sandbox.metadata.name.as_deref().unwrap_or_default();
    let why = ready(sandbox).map_or("not seen by the controller yet", |ready| ready.message.as_str());
    format!("sandbox `{name}` is not ready: {why}")
}
