//! `asb run`: a new sandbox, a command in it, and away with it.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use asb_runtime::image::HOST;
use asb_types::{Sandbox, SandboxSpec, condition, key};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use kube::api::PostParams;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde_json::json;

use super::{image, rm};
use crate::args::Run;
use crate::connect;
use crate::data_dir::DataDir;
use crate::failure::hinted;
use crate::stdio;

/// How long a sandbox may take to get ready.
const READY: Duration = Duration::from_secs(60);

pub async fn run(data_dir: &DataDir, run: Run) -> anyhow::Result<ExitCode> {
    if run.command.is_empty() && !run.detach {
        return Err(hinted("no command was given", "say what to run: `asb run -- CMD`, or use --detach"));
    }
    image::ensure(data_dir, &run.image, &run.registries).await?;
    let client = connect::client(data_dir, &run.registries.flags()).await?;
    let namespace = run.target.namespace.clone();
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), &namespace);
    let name = run.name.clone().unwrap_or_else(made_up_name);
    let created = sandboxes.create(&PostParams::default(), &sandbox(&name, &run)?).await;
    created.map_err(|error| explain(&name, error))?;

    let work = async {
        let ready = async || ready(&client, &namespace, &name).await;
        if run.detach {
            return ready().await.map(|()| ExitCode::SUCCESS);
        }
        // Asked for at once: the engine begins the command as soon as there is something to run it in.
        let patient = connect::patient_client(data_dir, READY).await?;
        let pods: Api<Pod> = Api::namespaced(patient, &namespace);
        let begin = async || stdio::begin(&pods, &name, None, &run.command, &run.streams).await;
        let begun = tokio::select! {
            begun = begin() => begun,
            Err(problem) = ready() => return Err(problem),
        };
        let process = match begun {
            Ok(process) => process,
            // An engine of an older version does not wait.
            Err(_) => ready().await.map(|()| begin())?.await?,
        };
        stdio::join(process, &run.streams).await
    };
    let done = tokio::select! {
        done = work => done,
        code = stdio::ended_by_signal() => Ok(code),
    };
    let keep = (run.keep || run.detach) && done.is_ok();
    if keep {
        println_name(&name, run.detach);
    } else {
        rm::remove(&client, &namespace, &name).await?;
    }
    done
}

fn sandbox(name: &str, run: &Run) -> anyhow::Result<Sandbox> {
    let env: Vec<_> = run.env.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    let mut pod = json!({"containers": [{
        "name": "main", "image": run.image, "imagePullPolicy": "IfNotPresent", "env": env, "command": main_process(run),
    }]});
    if let Some(runtime) = &run.runtime {
        pod["runtimeClassName"] = json!(runtime);
    }
    if run.detach && !run.command.is_empty() {
        pod["restartPolicy"] = json!("Never");
    }
    let spec: SandboxSpec = serde_json::from_value(json!({"podTemplate": {"spec": pod}}))?;
    let mut sandbox = Sandbox::new(name, spec);
    sandbox.metadata.labels = Some([(key::CREATED_BY.to_owned(), "asb".to_owned())].into());
    Ok(sandbox)
}

/// A command that nobody waits for is the main process. Beside one that somebody does wait for something else keeps the sandbox
/// alive: the image's own process could end at once.
fn main_process(run: &Run) -> Vec<&str> {
    match () {
        () if run.detach => run.command.iter().map(String::as_str).collect(),
        () if run.image == HOST => Vec::new(),
        // On the engine's own port: all others are left to programs that the user starts.
        () => vec!["/.asb/sandboxd", "--listen-host", "127.0.0.1", "--port", "28888"],
    }
}

/// Waits until the Sandbox is Ready, or was; fails as soon as its Pod says that it cannot be.
pub async fn ready(client: &Client, namespace: &str, name: &str) -> anyhow::Result<()> {
    let field = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), namespace);
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let mut sandboxes = watcher(sandboxes, field.clone()).default_backoff().applied_objects().boxed();
    let mut pods = watcher(pods, field).default_backoff().applied_objects().boxed();
    let wait = async {
        loop {
            tokio::select! {
                Some(sandbox) = sandboxes.next() => {
                    if is_ready(&sandbox.context("lost sight of the sandbox")?)? {
                        return Ok(());
                    }
                }
                Some(pod) = pods.next() => {
                    let pod = pod.context("lost sight of the sandbox's Pod")?;
                    if let Some(problem) = problem(&pod) {
                        anyhow::bail!("sandbox `{name}` cannot start: {problem}");
                    }
                    if has_ended(&pod) {
                        return Ok(());
                    }
                }
            }
        }
    };
    let waited = tokio::time::timeout(READY, wait).await;
    waited.unwrap_or_else(|_| anyhow::bail!("sandbox `{name}` did not get ready within {READY:?}"))
}

fn is_ready(sandbox: &Sandbox) -> anyhow::Result<bool> {
    let conditions = sandbox.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let Some(ready) = condition::get(conditions, condition::READY) else { return Ok(false) };
    match ready.reason.as_str() {
        condition::reason::INVALID_CONFIGURATION | condition::reason::RECONCILER_ERROR => {
            anyhow::bail!("{}", ready.message)
        }
        _ => Ok(ready.status == "True"),
    }
}

/// Whether a Pod has done its work already.
fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Why a Pod will not run, if it says so.
fn problem(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    if status.phase.as_deref() == Some("Failed")
        && let Some(message) = status.message.clone()
    {
        return Some(message);
    }
    let unscheduled =
        |it: &&PodCondition| it.type_ == "PodScheduled" && it.reason.as_deref() == Some("Unschedulable");
    if let Some(condition) = status.conditions.iter().flatten().find(unscheduled) {
        return condition.message.clone();
    }
    let state = status.container_statuses.as_ref()?.first()?.state.as_ref()?;
    state.waiting.as_ref()?.message.clone()
}

fn explain(name: &str, error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) if status.reason == "AlreadyExists" => hinted(
            format!("a sandbox `{name}` already exists"),
            format!("use `asb exec {name} -- CMD`, or another --name"),
        ),
        kube::Error::Api(status) => anyhow::anyhow!("{}", status.message),
        other => anyhow::Error::new(other).context(format!("failed to create sandbox `{name}`")),
    }
}

fn println_name(name: &str, data: bool) {
    match data {
        true => println!("{name}"),
        false => eprintln!("kept sandbox `{name}`"),
    }
}

fn made_up_name() -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let tail: String = (0..6).map(|_| char::from(LETTERS[rand::random_range(0..LETTERS.len())])).collect();
    format!("run-{tail}")
}
