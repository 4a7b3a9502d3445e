//! Carries a plan out. The only effects of the SandboxTemplate controller; it makes no choices.

use super::World;
use super::plan::Action;
use crate::object::Key;
use crate::write::{self, Writer};

const MANAGER: &str = "sandboxtemplate-controller";

/// Takes every action in turn; returns what went wrong.
pub async fn apply(world: &World, template: &Key, actions: Vec<Action>) -> Vec<String> {
    let writer = Writer { client: &world.client, namespace: &template.namespace, manager: MANAGER };
    let mut problems = Vec::new();
    for action in actions {
        let done = match action {
            Action::PatchTemplate(patch) => {
                writer.merge(&template.name, &patch, &world.caches.templates).await
            }
            Action::CreatePolicy(object) => writer.create(&object, &world.caches.network_policies).await,
            Action::ReplacePolicy(policy) => writer.replace(&*policy, &world.caches.network_policies).await,
            Action::DeletePolicy(identity) => writer.delete(identity, &world.caches.network_policies).await,
        };
        problems.extend(done.err().map(|error| write::message(&error)));
    }
    problems
}
