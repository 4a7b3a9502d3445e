//! Carries a plan out. The only effects of the Sandbox controller; it makes no choices.

use asb_types::{Sandbox, SandboxStatus, key};
use serde_json::{Value, json};
use tracing::{Instrument, Span};

use super::World;
use super::plan::{Action, Problem, ProblemKind, Step};
use crate::object::Key;
use crate::write::{self, Refused, Writer};

/// The name under which this controller writes and reports.
pub const MANAGER: &str = "sandbox-controller";

/// Takes every action in turn; what fails becomes a problem, the rest goes on.
pub async fn apply(world: &World, namespace: &str, actions: Vec<Action>) -> Vec<Problem> {
    let writer = Writer { client: &world.client, namespace, manager: MANAGER };
    let mut problems = Vec::new();
    for action in actions {
        let step = action.step();
        let span = span(&action);
        if let Err(error) = take(world, &writer, action).instrument(span).await {
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

/// Notes which trace a Sandbox belongs to, so that others can go on with it.
pub async fn write_trace(world: &World, key: &Key, context: &str) -> Result<(), Problem> {
    let writer = Writer { client: &world.client, namespace: &key.namespace, manager: MANAGER };
    let patch = json!({"metadata": {"annotations": {key::TRACE_CONTEXT: context}}});
    let written = writer.merge(&key.name, &patch, &world.caches.sandboxes).await;
    written.map_err(|error| problem(Step::Sandbox, &error))
}

fn span(action: &Action) -> Span {
    match action.step() {
        Step::VolumeClaims => tracing::info_span!("reconcilePVCs"),
        Step::Pod => tracing::info_span!("reconcilePod"),
        Step::Service => tracing::info_span!("reconcileService"),
        Step::Sandbox => Span::none(),
    }
}

async fn take(world: &World, writer: &Writer<'_>, action: Action) -> Result<(), kube::Error> {
    match action {
        Action::CreateVolumeClaim(object) => writer.create(&object, &world.caches.volume_claims).await,
        Action::PatchVolumeClaim { name, patch } => {
            writer.merge(&name, &patch, &world.caches.volume_claims).await
        }
        Action::CreatePod(object) => writer.create(&object, &world.caches.pods).await,
        Action::PatchPod { name, patch } => writer.merge(&name, &patch, &world.caches.pods).await,
        Action::DeletePod(identity) => writer.delete(identity, &world.caches.pods).await,
        Action::CreateService(object) => writer.create(&object, &world.caches.services).await,
        Action::PatchService { name, patch } => writer.merge(&name, &patch, &world.caches.services).await,
        Action::DeleteService(identity) => writer.delete(identity, &world.caches.services).await,
        Action::DeleteSandbox(identity) => writer.delete(identity, &world.caches.sandboxes).await,
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
