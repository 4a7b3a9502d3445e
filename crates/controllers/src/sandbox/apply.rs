//! Carries a plan out. The only effects of the Sandbox controller; it makes no choices.

use asb_types::{Sandbox, SandboxStatus};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::World;
use super::plan::{Action, Identity, Problem, ProblemKind, Step};
use crate::cache::Cache;
use crate::object::Key;

/// The field manager under which children are written.
const MANAGER: &str = "sandbox-controller";

/// Takes every action in turn; what fails becomes a problem, the rest goes on.
pub async fn apply(world: &World, namespace: &str, actions: Vec<Action>) -> Vec<Problem> {
    let mut problems = Vec::new();
    for action in actions {
        let step = action.step();
        if let Err(error) = take(world, namespace, action).await {
            problems.push(problem(step, &error));
        }
    }
    problems
}

/// Writes the whole status with one merge patch.
pub async fn write_status(world: &World, sandbox: &Sandbox, status: &SandboxStatus) -> Result<(), Problem> {
    let key = Key::of(sandbox);
    let api: Api<Sandbox> = Api::namespaced(world.client.clone(), &key.namespace);
    let patch = json!({"status": status_patch(sandbox.status.as_ref(), status)});
    match api.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(&patch)).await {
        Ok(written) => world.sandboxes.wrote(written),
        Err(error) if is_not_found(&error) => {}
        Err(error) => return Err(problem(Step::Sandbox, &error)),
    }
    Ok(())
}

async fn take(world: &World, namespace: &str, action: Action) -> Result<(), kube::Error> {
    let client = &world.client;
    match action {
        Action::CreateVolumeClaim(object) => create(client, namespace, &object, &world.volume_claims).await,
        Action::PatchVolumeClaim { name, patch } => {
            merge(client, namespace, &name, &patch, &world.volume_claims).await
        }
        Action::CreatePod(object) => create(client, namespace, &object, &world.pods).await,
        Action::PatchPod { name, patch } => merge(client, namespace, &name, &patch, &world.pods).await,
        Action::DeletePod(identity) => delete(client, namespace, identity, &world.pods).await,
        Action::CreateService(object) => create(client, namespace, &object, &world.services).await,
        Action::PatchService { name, patch } => {
            merge(client, namespace, &name, &patch, &world.services).await
        }
        Action::DeleteService(identity) => delete(client, namespace, identity, &world.services).await,
        Action::DeleteSandbox(identity) => delete(client, namespace, identity, &world.sandboxes).await,
    }
}

/// Creates from raw JSON, because the typed objects here are only views.
async fn create<K>(
    client: &Client,
    namespace: &str,
    object: &Value,
    cache: &Cache<K>,
) -> Result<(), kube::Error>
where
    K: View,
{
    let request = kube::core::Request::new(K::url_path(&(), Some(namespace)));
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError)?;
    let request = request.create(&params, body).map_err(kube::Error::BuildRequest)?;
    match client.request::<K>(request).await {
        Ok(created) => cache.wrote(created),
        Err(error) => {
            // Our copy lags: take in what is there, so that the next look decides with it.
            if reason(&error) == Some("AlreadyExists") {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                cache.wrote(Api::<K>::namespaced(client.clone(), namespace).get(name).await?);
            }
            return Err(error);
        }
    }
    Ok(())
}

async fn merge<K>(
    client: &Client,
    namespace: &str,
    name: &str,
    patch: &Value,
    cache: &Cache<K>,
) -> Result<(), kube::Error>
where
    K: View,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    cache.wrote(api.patch(name, &params, &Patch::Merge(patch)).await?);
    Ok(())
}

/// Deletes exactly the object that was seen, in the state in which it was seen.
async fn delete<K>(
    client: &Client,
    namespace: &str,
    identity: Identity,
    cache: &Cache<K>,
) -> Result<(), kube::Error>
where
    K: View,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let preconditions =
        Preconditions { uid: Some(identity.uid), resource_version: Some(identity.resource_version) };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match api.delete(&identity.name, &params).await {
        Ok(answer) => {
            // Still there, on its way out.
            if let Some(terminating) = answer.left() {
                cache.wrote(terminating);
            }
            Ok(())
        }
        Err(error) if is_not_found(&error) => Ok(()),
        Err(error) => Err(error),
    }
}

/// What the helpers above need of a kind.
trait View:
    Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
    + DeserializeOwned
    + Clone
    + std::fmt::Debug
{
}

impl<K> View for K where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + DeserializeOwned
        + Clone
        + std::fmt::Debug
{
}

fn problem(step: Step, error: &kube::Error) -> Problem {
    let kind = match reason(error) {
        Some("Invalid") => ProblemKind::Invalid,
        Some("Conflict" | "AlreadyExists") => ProblemKind::Conflict,
        _ => ProblemKind::Failed,
    };
    let message = match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    };
    Problem { step, kind, message }
}

fn reason(error: &kube::Error) -> Option<&str> {
    match error {
        kube::Error::Api(status) => Some(&status.reason),
        _ => None,
    }
}

fn is_not_found(error: &kube::Error) -> bool {
    reason(error) == Some("NotFound")
}

/// A merge patch keeps what it does not name: fields that are gone are named with null.
fn status_patch(before: Option<&SandboxStatus>, after: &SandboxStatus) -> Value {
    let mut patch = json!(after);
    if let Value::Object(before) = json!(before) {
        for field in
            before.keys().filter(|field| patch.get(field.as_str()).is_none()).cloned().collect::<Vec<_>>()
        {
            patch[field] = Value::Null;
        }
    }
    patch
}

impl Action {
    fn step(&self) -> Step {
        match self {
            Action::CreateVolumeClaim(_) | Action::PatchVolumeClaim { .. } => Step::VolumeClaims,
            Action::CreatePod(_) | Action::PatchPod { .. } | Action::DeletePod(_) => Step::Pod,
            Action::CreateService(_) | Action::PatchService { .. } | Action::DeleteService(_) => {
                Step::Service
            }
            Action::DeleteSandbox(_) => Step::Sandbox,
        }
    }
}
