//! The SandboxTemplate controller: a label, and the NetworkPolicy for all Pods made from a template.
//!
//! Watched: SandboxTemplates, and the NetworkPolicies that a template controls or that stand under the
//! name it reserves.
//!
//! ```text
//! [ NetworkPolicy ] ─ owner or name ─► [ SandboxTemplate ] ─► plan ─► apply
//! ```
//!
//! A template has no status, so there is nothing to judge.

mod apply;
pub mod plan;
pub mod pod_defaults;
mod policy;
#[cfg(test)]
mod tests;
pub mod twin;

use std::sync::Arc;

use asb_types::{EXTENSIONS_GROUP, name};
use kube::Client;
use tracing::Instrument;

use crate::Config;
use crate::caches::Caches;
use crate::object::{Key, NetworkPolicy, controller_of, is_kind};
use crate::queue::{Outcome, Queue};
use crate::{run, trace};

/// What the controller knows and where it writes.
pub(crate) struct World {
    client: Client,
    caches: Arc<Caches>,
    config: Config,
    queue: Arc<Queue<Key>>,
}

/// Runs the controller until it is asked to stop, or the future is dropped.
pub async fn run(client: Client, caches: Arc<Caches>, config: Config) {
    caches.synced().await;
    let queue = Arc::new(Queue::new("sandboxtemplate", config.template_workers, &config));
    let _listening = (
        caches.templates.listen(run::waker(&queue, |template| Some(Key::of(template)))),
        caches.network_policies.listen(run::waker(&queue, template_of)),
    );
    let world = Arc::new(World { client, caches: caches.clone(), config, queue });
    run::workers(world.config.template_workers, || world.clone().work()).await;
}

/// The template that a policy concerns: its controller, else the one that reserves its name.
fn template_of(policy: &NetworkPolicy) -> Option<Key> {
    let Key { namespace, name } = Key::of(policy);
    match controller_of(policy) {
        Some(owner) if is_kind(owner, EXTENSIONS_GROUP, "SandboxTemplate") => {
            Some(Key::new(&namespace, &owner.name))
        }
        _ => name.strip_suffix(&name::network_policy("")).map(|template| Key::new(&namespace, template)),
    }
}

async fn reconcile(world: &World, key: &Key) -> Outcome {
    let Some(template) = world.caches.templates.get(key) else { return Outcome::Done };
    let policy =
        world.caches.network_policies.get(&Key::new(&key.namespace, &name::network_policy(&key.name)));
    let refusal = twin::refusal(&world.caches, &template);
    let plan = plan::plan(&template, policy.as_deref(), refusal, &world.config.router_namespace);
    let mut problems: Vec<String> = plan.problem.into_iter().collect();
    problems.extend(apply::apply(world, key, plan.actions).await);
    for problem in &problems {
        tracing::warn!(%problem, "template is not as it should be");
    }
    if problems.is_empty() { Outcome::Done } else { Outcome::Failed }
}

impl World {
    async fn work(self: Arc<Self>) {
        let reconcile = async |key: Key| {
            let span = tracing::info_span!(
                "ReconcileSandboxTemplate",
                sandboxtemplate.name = key.name,
                sandboxtemplate.namespace = key.namespace,
            );
            let template = self.caches.templates.get(&key);
            trace::join(self.config.traces.as_deref(), &span, template.as_deref());
            reconcile(&self, &key).instrument(span).await
        };
        run::work(&self.queue, reconcile).await;
    }
}
