//! Decides what to do about one Sandbox. Pure and total: no clock, no I/O.
//!
//! ```text
//!            shutdownTime reached ──► mark expired ──► tear down (Pod, Service; never a PVC) ──► delete │ keep
//! Sandbox ─┤
//!            otherwise ──► volume claims ──► Pod ──► Service
//! ```
//!
//! A step that cannot be taken is a [`Problem`]; the steps after it are taken all the same.

use std::sync::Arc;
use std::time::Duration;

use asb_types::{GROUP, OperatingMode, Sandbox, ShutdownPolicy, condition, key};
use jiff::Timestamp;
use serde_json::Value;

use super::retry::Retry;
use super::{child, pod, service, volume};
use crate::object::{Ownership, Pod, Service, VolumeClaim, controller_of, is_kind, ownership};
use crate::write::Identity;

/// Everything that was seen of one Sandbox's world.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// Pods that this Sandbox controls.
    pub owned_pods: Vec<Arc<Pod>>,
    /// The Pod under the tracked name, whoever owns it.
    pub named_pod: Option<Arc<Pod>>,
    pub service: Option<Arc<Service>>,
    /// One entry per volume claim template, in their order.
    pub volume_claims: Vec<Option<Arc<VolumeClaim>>>,
    /// The other claims that the Pod template mounts, by name. Empty if not all claims are watched.
    pub mounted_claims: Vec<(String, Option<Arc<VolumeClaim>>)>,
    /// Whether and when the tracked Pod, which failed, is made again.
    pub retry: Option<Retry>,
    pub rivals: Rivals,
}

/// Other Sandboxes whose names have the same hash, which is all that Services go by.
#[derive(Debug, Clone, Default)]
pub struct Rivals {
    /// One that has a Service: it would lead to our Pod as well.
    pub served: Option<String>,
    /// One that has a Pod: our Service would lead to it as well.
    pub running: Option<String>,
}

/// The other Sandbox that controls one of these children.
pub fn rival<K: kube::Resource>(sandbox: &Sandbox, children: &[Arc<K>]) -> Option<String> {
    let owners = children.iter().filter_map(|child| controller_of(&**child));
    let mut others = owners.filter(|owner| is_kind(owner, GROUP, "Sandbox") && owner.uid != uid(sandbox));
    others.next().map(|owner| owner.name.clone())
}

fn uid(sandbox: &Sandbox) -> &str {
    sandbox.metadata.uid.as_deref().unwrap_or_default()
}

/// Objects that stood under the name of a child that was to be made. A cache may keep no such objects.
#[derive(Debug, Clone, Default)]
pub struct Met {
    pub pods: Vec<Arc<Pod>>,
    pub services: Vec<Arc<Service>>,
    pub volume_claims: Vec<Arc<VolumeClaim>>,
}

impl Met {
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.services.is_empty() && self.volume_claims.is_empty()
    }
}

impl Seen {
    /// Adds what was met to what the caches tell, where they tell nothing. `claims` are the names of the volume claims.
    pub fn meet(&mut self, uid: &str, claims: impl Iterator<Item = String>, met: &Met) {
        if self.named_pod.is_none() && self.owned_pods.is_empty() {
            self.named_pod = met.pods.first().cloned();
            let owned = self.named_pod.iter().filter(|pod| ownership(&***pod, uid) == Ownership::Owned);
            self.owned_pods = owned.cloned().collect();
        }
        if self.service.is_none() {
            self.service = met.services.first().cloned();
        }
        for (seen, name) in self.volume_claims.iter_mut().zip(claims).filter(|(seen, _)| seen.is_none()) {
            let named = |claim: &&Arc<VolumeClaim>| claim.metadata.name.as_ref() == Some(&name);
            *seen = met.volume_claims.iter().find(named).cloned();
        }
    }
}

/// One effect on the API.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    CreateVolumeClaim(Value),
    PatchVolumeClaim { name: String, patch: Value },
    CreatePod(Value),
    PatchPod { name: String, patch: Value },
    DeletePod(Identity),
    CreateService(Value),
    PatchService { name: String, patch: Value },
    DeleteService(Identity),
    DeleteSandbox(Identity),
}

/// Which part of the work a problem belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    VolumeClaims,
    Pod,
    Service,
    Sandbox,
}

/// Why a Sandbox is not as it should be, beyond "not yet".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub step: Step,
    pub kind: ProblemKind,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProblemKind {
    /// More than one Pod is controlled by the Sandbox. Only a change of the Pods helps.
    MultiplePods,
    /// The API server rejected a child as invalid. Only a change of the spec helps.
    Invalid,
    /// Somebody else was faster. Nothing to report; look again.
    Conflict,
    /// Anything else; retried.
    Failed,
}

/// What to do now and when to look again.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    pub actions: Vec<Action>,
    pub problems: Vec<Problem>,
    pub look_again: Option<Duration>,
}

impl Plan {
    /// The earliest wish wins.
    pub fn look_again_after(&mut self, delay: Duration) {
        self.look_again = Some(self.look_again.map_or(delay, |other| other.min(delay)));
    }
}

pub fn plan(sandbox: &Sandbox, seen: &Seen, now: Timestamp) -> Plan {
    if sandbox.metadata.deletion_timestamp.is_some() {
        return Plan::default(); // garbage collection removes the children
    }
    if sandbox.spec.expired(now) {
        return expire(sandbox, seen);
    }
    let mut plan = Plan { look_again: time_left(sandbox, now), ..Plan::default() };
    let pause = seen.retry.map(|retry| retry.left).filter(|left| !left.is_zero());
    pause.into_iter().for_each(|left| plan.look_again_after(left));
    volume::plan(sandbox, seen, &mut plan);
    match tracked_pod(seen) {
        Err(problem) => plan.problems.push(problem),
        Ok(tracked) => {
            plan_pod(sandbox, tracked, seen, &mut plan);
            service::plan(sandbox, seen.service.as_deref(), seen.rivals.running.as_deref(), &mut plan);
        }
    }
    plan
}

/// The name of a Sandbox's Pod: its own, unless an older controller noted another.
pub fn pod_name(sandbox: &Sandbox) -> &str {
    let noted = sandbox.metadata.annotations.as_ref().and_then(|notes| notes.get(key::POD_NAME));
    let own = sandbox.metadata.name.as_deref().unwrap_or_default();
    noted.map(String::as_str).filter(|name| !name.is_empty()).unwrap_or(own)
}

/// The one Pod to look at: an owned one wins over a stranger under the tracked name.
pub fn tracked_pod(seen: &Seen) -> Result<Option<&Arc<Pod>>, Problem> {
    match seen.owned_pods.as_slice() {
        [] => Ok(seen.named_pod.as_ref()),
        [pod] => Ok(Some(pod)),
        pods => Err(Problem {
            step: Step::Pod,
            kind: ProblemKind::MultiplePods,
            message: format!(
                "multiple Pods ({}) are controlled by this Sandbox; refusing to choose or create a Pod",
                pods.len()
            ),
        }),
    }
}

/// Whether the status already says that the Sandbox has expired.
pub fn marked_expired(sandbox: &Sandbox) -> bool {
    sandbox
        .condition(condition::READY)
        .is_some_and(|ready| ready.reason == condition::reason::SANDBOX_EXPIRED)
}

fn expire(sandbox: &Sandbox, seen: &Seen) -> Plan {
    // First the status tells why, then things go: a client that waits never sees a Pod vanish without a reason.
    if !marked_expired(sandbox) {
        return Plan { look_again: Some(Duration::ZERO), ..Plan::default() };
    }
    let owned_service = seen.service.iter().filter(|service| is_owned(&***service, sandbox));
    let mut actions: Vec<_> = seen
        .owned_pods
        .iter()
        .filter(|pod| !pod.terminating())
        .map(|pod| Action::DeletePod(Identity::of(&**pod)))
        .chain(owned_service.map(|service| Action::DeleteService(Identity::of(&**service))))
        .collect();
    if sandbox.spec.shutdown_policy == ShutdownPolicy::Delete {
        actions.push(Action::DeleteSandbox(Identity::of(sandbox)));
    }
    Plan { actions, ..Plan::default() }
}

fn plan_pod(sandbox: &Sandbox, tracked: Option<&Arc<Pod>>, seen: &Seen, plan: &mut Plan) {
    let retry = seen.retry;
    match (sandbox.spec.operating_mode, tracked) {
        (OperatingMode::Suspended, Some(pod)) if is_owned(&**pod, sandbox) && !pod.terminating() => {
            plan.actions.push(Action::DeletePod(Identity::of(&**pod)));
        }
        (OperatingMode::Suspended, _) => {}
        (OperatingMode::Running, None) => match &seen.rivals.served {
            None => plan.actions.push(Action::CreatePod(pod::desired(sandbox))),
            Some(rival) => {
                let hash = child::hash(sandbox);
                let message = format!(
                    "the Service of Sandbox {rival:?} would lead to this Pod too: both names have the hash {hash}; \
                     choose another name"
                );
                plan.problems.push(Problem { step: Step::Pod, kind: ProblemKind::Failed, message });
            }
        },
        (OperatingMode::Running, Some(pod)) if retry.is_some_and(|retry| retry.left.is_zero()) => {
            if is_owned(&**pod, sandbox) && !pod.terminating() {
                plan.actions.push(Action::DeletePod(Identity::of(&**pod)));
            }
        }
        // A terminating Pod is waited for: two Pods of one Sandbox must never overlap.
        (OperatingMode::Running, Some(pod)) => match pod::reconcile(sandbox, pod) {
            Ok(Some(patch)) => {
                let name = pod.metadata.name.clone().unwrap_or_default();
                plan.actions.push(Action::PatchPod { name, patch });
            }
            Ok(None) => {}
            Err(message) => {
                plan.problems.push(Problem { step: Step::Pod, kind: ProblemKind::Failed, message })
            }
        },
    }
}

fn time_left(sandbox: &Sandbox, now: Timestamp) -> Option<Duration> {
    let at = sandbox.spec.shutdown_time.as_ref()?;
    Some(Duration::try_from(at.0.duration_since(now)).unwrap_or_default())
}

fn is_owned(object: &impl kube::Resource, sandbox: &Sandbox) -> bool {
    ownership(object, uid(sandbox)) == Ownership::Owned
}
