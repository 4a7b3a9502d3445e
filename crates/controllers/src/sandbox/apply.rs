//! Carries a plan out. The only effects of the Sandbox controller; it makes no choices.

use std::sync::Arc;

use asb_types::{Sandbox, SandboxStatus, key};
use serde_json::{Value, json};
use tracing::{Instrument, Span};

use super::World;
use super::plan::{Action, Met, Problem, ProblemKind, Step};
use crate::object::Key;
use crate::write::{self, Created, Refused, Writer};

/// The name under which this controller writes and reports.
pub const MANAGER: &str = "sandbox-controller";

/// Takes every action in turn; what fails becomes a problem, the rest goes on. What stood under the name of a child
/// that was to be made is added to `met`.
pub async fn apply(world: &World, namespace: &str, actions: Vec<Action>, met: &mut Met) -> Vec<Problem> {
    let writer = Writer { client: &world.client, namespace, manager: MANAGER };
    let mut problems = Vec::new();
    for action in actions {
        let step = action.step();
        let span = span(&action);
        if let Err(error) = take(world, &writer, action, met).instrument(span).await {
            problems.push(problem(step, &error));
        }
    }
    problems
}

/// Writes the whole status with one merge patch.
pub async fn write_status(world: &World, sandbox: &Sandbox, status: &SandboxStatus) -> Result<(), Problem> {
    let Key { namespace, name } = Key::of(sandbox);
    let writer = Writer { client: &world.client, namespace: &namespace, manager: MANAGER };
    let patch = status_patch(sandbox.status.as_ref(), status);
    let written = writer.merge_status(&name, &patch, &world.caches.sandboxes).await;
    written.map_err(|error| problem(Step::Sandbox, &error))
}

/// Notes which trace a Sandbox belongs to, so that others can go on with it. Only they miss it if it fails.
pub async fn write_trace(world: &World, key: &Key, context: &str) {
    let writer = Writer { client: &world.client, namespace: &key.namespace, manager: MANAGER };
    let patch = json!({"metadata": {"annotations": {key::TRACE_CONTEXT: context}}});
    if let Err(error) = writer.merge(&key.name, &patch, &world.caches.sandboxes).await {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "the trace of the sandbox was not noted on it"
        );
    }
}

fn span(action: &Action) -> Span {
    match action.step() {
        Step::VolumeClaims => tracing::info_span!("reconcilePVCs"),
        Step::Pod => tracing::info_span!("reconcilePod"),
        Step::Service => tracing::info_span!("reconcileService"),
        Step::Sandbox => Span::none(),
    }
}

async fn take(world: &World, writer: &Writer<'_>, action: Action, met: &mut Met) -> Result<(), kube::Error> {
    match action {
        Action::CreateVolumeClaim(object) => {
            let created = writer.create_or_meet(&object, &world.caches.volume_claims).await?;
            meet(created, &mut met.volume_claims)
        }
        Action::PatchVolumeClaim { name, patch } => {
            writer.merge(&name, &patch, &world.caches.volume_claims).await
        }
        Action::CreatePod(object) => {
            let created = writer.create_or_meet(&object, &world.caches.pods).await?;
            if let Created::New(pod) = &created {
                let (name, phase) = (&pod.metadata.name, &pod.status.phase);
                tracing::debug!(pod.Name = name, pod.Phase = phase, "NewPodStatusObserved");
            }
            meet(created, &mut met.pods)
        }
        Action::PatchPod { name, patch } => writer.merge(&name, &patch, &world.caches.pods).await,
        Action::DeletePod(identity) => writer.delete(identity, &world.caches.pods).await,
        Action::CreateService(object) => {
            meet(writer.create_or_meet(&object, &world.caches.services).await?, &mut met.services)
        }
        Action::PatchService { name, patch } => writer.merge(&name, &patch, &world.caches.services).await,
        Action::DeleteService(identity) => writer.delete(identity, &world.caches.services).await,
        Action::DeleteSandbox(identity) => writer.delete(identity, &world.caches.sandboxes).await,
    }
}

/// The first time, what was met is looked at; it is a conflict when that did not help.
fn meet<K: kube::Resource>(created: Created<K>, met: &mut Vec<Arc<K>>) -> Result<(), kube::Error> {
    match created {
        Created::Met { found, refusal } if met.iter().any(|known| known.meta().uid == found.meta().uid) => {
            Err(refusal)
        }
        Created::Met { found, .. } => {
            met.push(Arc::new(found));
            Ok(())
        }
        Created::New(_) => Ok(()),
    }
}

fn problem(step: Step, error: &kube::Error) -> Problem {
    let kind = match Refused::by(error) {
        Refused::Invalid => ProblemKind::Invalid,
        Refused::Conflict => ProblemKind::Conflict,
        Refused::NotFound | Refused::Failed => ProblemKind::Failed,
    };
    Problem { step, kind, message: write::message(error) }
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
