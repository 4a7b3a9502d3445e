//! Decides what a Sandbox's status says. Pure: it judges what was seen, never what was meant.

use asb_types::condition::{self, Status, Verdict, reason};
use asb_types::{OperatingMode, Sandbox, SandboxStatus, key, name};
use jiff::Timestamp;

use super::child;
use super::plan::{Problem, ProblemKind, Seen, Step, marked_expired, tracked_pod};
use super::retry::Retry;
use super::service;
use super::trouble;
use super::volume;
use crate::object::{Ownership, Pod, ownership};

/// The status after the plan was applied: `seen` holds the answers of the API server.
pub fn judge(
    sandbox: &Sandbox,
    seen: &Seen,
    problems: &[Problem],
    cluster_domain: &str,
    now: Timestamp,
) -> SandboxStatus {
    let before = sandbox.status.clone().unwrap_or_default();
    if sandbox.spec.expired(now) {
        return expired(sandbox, before, problems, now);
    }
    let tracked = tracked_pod(seen).ok().flatten().map(|pod| &**pod);
    let owned = tracked.filter(|pod| ownership(*pod, uid(sandbox)) == Ownership::Owned);
    let mut status = SandboxStatus { conditions: before.conditions.clone(), ..SandboxStatus::default() };
    status.selector = match tracked {
        Some(_) => Some(format!("{}={}", key::SANDBOX_NAME_HASH, child::hash(sandbox))),
        None => before.selector.clone(),
    };
    status.pod_ips = owned.map(Pod::ips).unwrap_or_default();
    status.node_name = owned.and_then(|pod| pod.spec.node_name.clone());
    (status.service, status.service_fqdn) = match service_name(sandbox, seen, problems) {
        Some(Some(name)) => {
            let namespace = sandbox.metadata.namespace.as_deref().unwrap_or_default();
            let fqdn = name::service_fqdn(&name, namespace, cluster_domain);
            (Some(name), Some(fqdn))
        }
        Some(None) => (None, None),
        None => (before.service.clone(), before.service_fqdn.clone()),
    };

    let pod_unknown = tracked.is_none() && problems.iter().any(|problem| problem.step == Step::Pod);
    let mut set =
        |verdict: Verdict| condition::set(&mut status.conditions, verdict, sandbox.metadata.generation, now);
    set(suspended(sandbox, tracked, owned.is_some(), pod_unknown));
    let finished = owned.filter(|_| seen.retry.is_none()).and_then(finished);
    let scheduled = scheduled(owned, pod_unknown);
    finished.clone().into_iter().for_each(&mut set);
    scheduled.clone().into_iter().for_each(&mut set);
    set(ready(sandbox, seen, tracked, problems));
    if finished.is_none() {
        condition::remove(&mut status.conditions, condition::FINISHED);
    }
    if scheduled.is_none() {
        condition::remove(&mut status.conditions, condition::POD_SCHEDULED);
    }
    status
}

/// Whether a new status is worth a write: a node name alone waits for the Pod to be ready.
pub fn worth_writing(before: Option<&SandboxStatus>, after: &SandboxStatus) -> bool {
    let before = before.cloned().unwrap_or_default();
    let is_ready =
        condition::get(&after.conditions, condition::READY).is_some_and(|ready| ready.status == "True");
    let node_only = SandboxStatus { node_name: after.node_name.clone(), ..before.clone() } == *after;
    before != *after && (!node_only || is_ready)
}

fn expired(sandbox: &Sandbox, before: SandboxStatus, problems: &[Problem], now: Timestamp) -> SandboxStatus {
    let torn_down = marked_expired(sandbox) && problems.is_empty();
    let mut status = match torn_down {
        true => SandboxStatus { conditions: before.conditions, ..SandboxStatus::default() },
        false => before,
    };
    condition::remove(&mut status.conditions, condition::POD_SCHEDULED);
    let verdict =
        Verdict::new(condition::READY, Status::False, reason::SANDBOX_EXPIRED, "Sandbox has expired");
    condition::set(&mut status.conditions, verdict, sandbox.metadata.generation, now);
    status
}

/// `Some(name)`: what the status should say; `None`: keep what it says, because nobody knows.
fn service_name(sandbox: &Sandbox, seen: &Seen, problems: &[Problem]) -> Option<Option<String>> {
    let skipped =
        |problem: &Problem| problem.step == Step::Service || problem.kind == ProblemKind::MultiplePods;
    if problems.iter().any(skipped) {
        return None;
    }
    let wanted = sandbox.spec.service != Some(false);
    let owned = seen.service.as_deref().filter(|service| wanted && service::owned(sandbox, service));
    Some(owned.and_then(|service| service.metadata.name.clone()))
}

fn suspended(sandbox: &Sandbox, tracked: Option<&Pod>, owned: bool, pod_unknown: bool) -> Verdict {
    let verdict = |status, reason, message: &str| Verdict::new(condition::SUSPENDED, status, reason, message);
    match (sandbox.spec.operating_mode, tracked) {
        (OperatingMode::Running, _) => {
            verdict(Status::False, reason::NOT_SUSPENDED, "Sandbox is not suspended")
        }
        (OperatingMode::Suspended, None) if pod_unknown => verdict(
            Status::Unknown,
            reason::POD_STATE_UNKNOWN,
            "Pod state is unknown. Sandbox suspension cannot be confirmed",
        ),
        (OperatingMode::Suspended, None) => {
            verdict(Status::True, reason::POD_TERMINATED, "Pod has been terminated. Sandbox is suspended")
        }
        (OperatingMode::Suspended, Some(_)) if owned => {
            verdict(Status::False, reason::POD_TERMINATING, "Pod is terminating. Sandbox is suspending")
        }
        (OperatingMode::Suspended, Some(_)) => verdict(
            Status::False,
            reason::POD_NOT_OWNED,
            "Refused to delete pod because it is not owned by this sandbox",
        ),
    }
}

fn finished(pod: &Pod) -> Option<Verdict> {
    let (reason, message) = terminal(pod)?;
    Some(Verdict::new(condition::FINISHED, Status::True, reason, message))
}

fn terminal(pod: &Pod) -> Option<(&'static str, String)> {
    match pod.status.phase.as_str() {
        "Succeeded" => Some((reason::POD_SUCCEEDED, "Pod completed successfully".to_owned())),
        "Failed" => Some((reason::POD_FAILED, with_trouble("Pod failed".to_owned(), pod))),
        _ => None,
    }
}

fn scheduled(owned: Option<&Pod>, pod_unknown: bool) -> Option<Verdict> {
    let unknown = |message: &str| {
        Some(Verdict::new(condition::POD_SCHEDULED, Status::Unknown, reason::POD_SCHEDULING_UNKNOWN, message))
    };
    let Some(pod) = owned else {
        return pod_unknown
            .then(|| unknown("Pod state is unknown. Pod scheduling cannot be determined"))
            .flatten();
    };
    let Some(found) = pod.condition(condition::POD_SCHEDULED) else {
        return unknown("Pod has not reported a PodScheduled condition yet");
    };
    let status = Status::parse(&found.status);
    let why = match (found.reason.as_str(), status) {
        ("", Status::True) => reason::POD_SCHEDULED,
        ("", _) => reason::POD_SCHEDULING_UNKNOWN,
        (given, _) => given,
    };
    Some(Verdict::new(condition::POD_SCHEDULED, status, why, found.message.clone()))
}

fn ready(sandbox: &Sandbox, seen: &Seen, tracked: Option<&Pod>, problems: &[Problem]) -> Verdict {
    let verdict =
        |status, reason: &str, message: String| Verdict::new(condition::READY, status, reason, message);
    if let Some(problem) = problems.iter().find(|problem| problem.kind == ProblemKind::MultiplePods) {
        return verdict(Status::False, reason::MULTIPLE_PODS, problem.message.clone());
    }
    let errors: Vec<_> = problems.iter().filter(|problem| problem.kind != ProblemKind::Conflict).collect();
    if !errors.is_empty() {
        let final_ = errors.iter().all(|problem| problem.kind == ProblemKind::Invalid);
        let why = if final_ { reason::INVALID_CONFIGURATION } else { reason::RECONCILER_ERROR };
        let text = errors.iter().map(|problem| problem.message.as_str()).collect::<Vec<_>>().join("; ");
        return verdict(Status::False, why, format!("Error seen: {text}"));
    }
    if sandbox.spec.operating_mode == OperatingMode::Suspended {
        let message = if tracked.is_some() { "Sandbox is suspending" } else { "Sandbox is suspended" };
        return verdict(Status::False, reason::SANDBOX_SUSPENDED, message.to_owned());
    }
    if let Some(Retry { failures, pause, .. }) = seen.retry {
        let times = if failures == 1 { "once".to_owned() } else { format!("{failures} times in a row") };
        let message = format!("Pod failed {times}; another one is made after a pause of {pause:?}");
        return verdict(Status::False, reason::DEPENDENCIES_NOT_READY, message);
    }
    if let Some((why, message)) = tracked.and_then(terminal) {
        return verdict(Status::False, why, message);
    }
    if let Some(message) = volume::lost(sandbox, seen) {
        return verdict(Status::False, reason::VOLUME_LOST, message);
    }
    let (pod_ready, mut message) = describe(tracked);
    let service = seen.service.as_deref();
    let service_missing =
        service::required(sandbox, service) && !service.is_some_and(|it| service::owned(sandbox, it));
    if service::required(sandbox, service) {
        message += if service_missing { "; Service does not exist" } else { "; Service Exists" };
    }
    match pod_ready && !service_missing {
        true => verdict(Status::True, reason::DEPENDENCIES_READY, message),
        false => verdict(Status::False, reason::DEPENDENCIES_NOT_READY, message),
    }
}

/// Whether the Pod is ready, and the Pod's part of the Ready message.
fn describe(pod: Option<&Pod>) -> (bool, String) {
    let Some(pod) = pod else { return (false, "Pod does not exist".to_owned()) };
    if pod.status.phase != "Running" {
        return (false, with_trouble(format!("Pod exists with phase: {}", pod.status.phase), pod));
    }
    let is_ready = pod.condition(condition::READY).is_some_and(|ready| ready.status == "True");
    match (is_ready, pod.ips().is_empty()) {
        (false, _) => (false, with_trouble("Pod is Running but not Ready".to_owned(), pod)),
        (true, true) => (false, "Pod is Ready but has no podIPs yet".to_owned()),
        (true, false) => (true, "Pod is Ready".to_owned()),
    }
}

fn with_trouble(what: String, pod: &Pod) -> String {
    match trouble::of(pod) {
        Some(why) => format!("{what}: {why}"),
        None => what,
    }
}

fn uid(sandbox: &Sandbox) -> &str {
    sandbox.metadata.uid.as_deref().unwrap_or_default()
}
