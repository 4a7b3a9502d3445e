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

use std::sync::Arc;

use asb_types::{EXTENSIONS_GROUP, Template, name};
use kube::Client;
use tokio::task::JoinSet;
use tracing::Instrument;

use crate::Config;
use crate::cache::Cache;
use crate::object::{Key, NetworkPolicy, controller_of, is_kind};
use crate::queue::{Outcome, Queue};
use crate::run;

/// What the controller knows and where it writes.
pub(crate) struct World {
    client: Client,
    config: Config,
    templates: Cache<Template>,
    policies: Cache<NetworkPolicy>,
    queue: Queue<Key>,
}

/// Runs the controller until the future is dropped. `ready` is called once the caches are complete.
pub async fn run(client: Client, config: Config, ready: impl FnOnce()) {
    let world = Arc::new(World {
        client,
        templates: Cache::new(|_| None),
        policies: Cache::new(|_| None),
        queue: Queue::default(),
        config,
    });
    // Dropped with this future, and with it every task.
    let mut tasks = JoinSet::new();
    tasks.spawn(world.clone().watch_templates());
    tasks.spawn(world.clone().watch_policies());
    tokio::join!(world.templates.synced(), world.policies.synced());
    ready();
    for _ in 0..world.config.template_workers {
        tasks.spawn(world.clone().work());
    }
    while let Some(ended) = tasks.join_next().await {
        tracing::error!(?ended, "a task of the template controller ended");
    }
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
    let Some(template) = world.templates.get(key) else { return Outcome::Done };
    let policy = world.policies.get(&Key::new(&key.namespace, &name::network_policy(&key.name)));
    let plan = plan::plan(&template, policy.as_deref(), &world.config.router_namespace);
    let mut problems: Vec<String> = plan.problem.into_iter().collect();
    problems.extend(apply::apply(world, key, plan.actions).await);
    for problem in &problems {
        tracing::warn!(%problem, "template is not as it should be");
    }
    if problems.is_empty() { Outcome::Done } else { Outcome::Failed }
}

impl World {
    async fn watch_templates(self: Arc<Self>) {
        let api = run::scope(&self.client, self.config.namespace.as_deref());
        run::watch(api, &self.templates, |template| self.queue.add(Key::of(template))).await;
    }

    async fn watch_policies(self: Arc<Self>) {
        let api = run::scope(&self.client, self.config.namespace.as_deref());
        let wake =
            |policy: &NetworkPolicy| template_of(policy).into_iter().for_each(|key| self.queue.add(key));
        run::watch(api, &self.policies, wake).await;
    }

    async fn work(self: Arc<Self>) {
        let reconcile = async |key: Key| {
            let span = tracing::info_span!("template", template = %key);
            reconcile(&self, &key).instrument(span).await
        };
        run::work(&self.queue, reconcile).await;
    }
}
