//! Which runtimes Pods can ask for on this machine: RuntimeClass objects for what works, and an answer for what does not.
//!
//! What was found out before is known at once. The rest is tried when a Pod asks for it, or else in the background some
//! time after the engine is ready, so that nobody waits for it who did not ask.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use asb_runtime::driver::{ALL, Cache, Name, Probe};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::node::Node;
use crate::pod::spec::Refusal;

/// By then whoever was waiting for the engine has got what they wanted.
const QUIET: Duration = Duration::from_secs(5);

pub struct Drivers {
    cache: Cache,
    found: Mutex<BTreeMap<Name, Probe>>,
    /// Held while one is tried: another who asks waits for the same answer.
    trying: tokio::sync::Mutex<()>,
}

impl Drivers {
    pub fn new(data_dir: &Path) -> Self {
        Self { cache: Cache::new(data_dir), found: Mutex::default(), trying: Default::default() }
    }

    /// The driver that a Pod asks for, or why it cannot have it: never another.
    pub async fn of(&self, node: &Node, pod: &Pod) -> Result<Name, Refusal> {
        let asked = pod.spec.as_ref().and_then(|spec| spec.runtime_class_name.as_deref()).unwrap_or_default();
        match Name::parse(asked) {
            Some(Name::Native) => return Ok(Name::Native),
            None if asked.is_empty() => return Ok(Name::Native),
            Some(name) => {
                let probe = self.ask(node, name).await;
                if probe.works() {
                    return check_containers(pod, &probe).map(|()| name);
                }
            }
            None => {}
        }
        let mut probes = Vec::new();
        for name in ALL.into_iter().filter(|name| *name != Name::Native) {
            probes.push(self.ask(node, name).await);
        }
        Err(Refusal::new("RuntimeClassNotAvailable", refusal(asked, &probes)))
    }

    /// What is known of a driver; it is tried when nothing is.
    async fn ask(&self, node: &Node, name: Name) -> Probe {
        let _one_at_a_time = self.trying.lock().await;
        if let Some(known) = self.known(name) {
            return known;
        }
        let cache = self.cache.clone();
        // Once begun it is not interrupted by the end of the engine, which would leave a sandbox behind.
        let tried = node.shared.ending.spawn(async move { cache.try_again(name).await }).await;
        let probe = tried.expect("trying a driver does not panic");
        match &probe.problem {
            None => tracing::info!(driver = %name, "driver works"),
            Some(problem) => tracing::warn!(driver = %name, problem, "driver does not work"),
        }
        self.lock().insert(name, probe.clone());
        publish(node, &probe).await;
        probe
    }

    fn known(&self, name: Name) -> Option<Probe> {
        self.lock().get(&name).cloned().or_else(|| self.cache.known(name))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Name, Probe>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells of what is known at once, and later of the rest.
pub async fn survey(node: Node) {
    let drivers = &node.shared.drivers;
    let cache = drivers.cache.clone();
    let cleared = node.shared.ending.spawn(async move { cache.clear().await });
    if let Ok(Err(error)) = cleared.await {
        tracing::warn!(%error, "what a try of a driver left is not removed");
    }
    let others = || ALL.into_iter().filter(|name| *name != Name::Native);
    for probe in others().filter_map(|name| drivers.known(name)) {
        publish(&node, &probe).await;
    }
    tokio::time::sleep(QUIET).await;
    for name in others() {
        drivers.ask(&node, name).await;
    }
}

/// A RuntimeClass for a driver that works, none for one that does not.
async fn publish(node: &Node, probe: &Probe) {
    let name = probe.name.as_str();
    let done = if probe.works() {
        node.ensure::<RuntimeClass>(&class(name)).await
    } else {
        let classes: Api<RuntimeClass> = Api::all(node.shared.client.clone());
        match classes.delete(name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => other.map(drop),
        }
    };
    if let Err(error) = done {
        tracing::warn!(driver = name, error = &error as &dyn std::error::Error, "RuntimeClass not written");
    }
}

pub fn class(name: &str) -> Value {
    json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": name})
}

/// Containers of one Pod share its network, which not every driver's can.
fn check_containers(pod: &Pod, probe: &Probe) -> Result<(), Refusal> {
    let spec = json!(pod.spec);
    let second = if spec["containers"].as_array().is_some_and(|all| all.len() > 1) {
        "spec.containers[1]"
    } else if spec["initContainers"].as_array().is_some_and(|all| !all.is_empty()) {
        "spec.initContainers[0]"
    } else {
        return Ok(());
    };
    if probe.abilities.shared_network {
        return Ok(());
    }
    let message = format!(
        "{second}: Pods of the runtimeClassName \"{}\" have one container; put the processes into one",
        probe.name
    );
    Err(Refusal::new("Unsupported", message))
}

/// Why a Pod does not get what it asks for, and what it could ask for.
fn refusal(asked: &str, probes: &[Probe]) -> String {
    let why =
        probes.iter().find(|probe| probe.name.as_str() == asked).and_then(|probe| probe.problem.as_deref());
    let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
    let there: Vec<_> = std::iter::once(Name::Native)
        .chain(probes.iter().filter(|probe| probe.works()).map(|probe| probe.name))
        .map(|name| format!("{:?}", name.as_str()))
        .collect();
    format!(
        "spec.runtimeClassName: {asked:?} is not available on this machine{why}; it has {}; `asb doctor` tells more",
        there.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(name: Name, problem: Option<&str>) -> Probe {
        serde_json::from_value(json!({
            "name": name, "program": null, "version": null, "problem": problem,
            "abilities": {
                "userNamespace": true, "exec": true, "terminal": true, "freeze": true, "checkpoint": false,
                "memoryLimit": true, "processLimit": true, "sharedNetwork": true, "kernelOfTheMachine": true,
            },
        }))
        .unwrap()
    }

    #[test]
    fn refusal_names_what_is_there_and_why_the_other_is_not() {
        let probes = [probe(Name::Runc, None), probe(Name::Gvisor, Some("runsc is not installed"))];
        let unknown = refusal("kata", &probes);
        assert!(
            unknown.starts_with("spec.runtimeClassName: \"kata\" is not available on this machine; it has")
        );
        assert!(unknown.contains("\"native\", \"runc\"; `asb doctor`"), "{unknown}");
        let broken = refusal("gvisor", &probes);
        assert!(broken.contains("(runsc is not installed); it has \"native\", \"runc\""), "{broken}");
    }
}
