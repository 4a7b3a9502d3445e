//! What happened to a Sandbox between two statuses. Pure; the past that it needs is handed in.

use std::time::Duration;

use asb_types::condition::{self, reason};
use asb_types::{OperatingMode, Sandbox, SandboxStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::event::{Event, Type};
use crate::metrics::Milestone;

/// A change of mode that has begun and not ended yet. What began under an earlier leader is counted, but not
/// measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    to: OperatingMode,
    since: Timestamp,
}

/// What it means that a Sandbox got this status. `change` is what is remembered of it.
pub fn judge(
    sandbox: &Sandbox,
    after: &SandboxStatus,
    change: &mut Option<Change>,
    now: Timestamp,
) -> Vec<Milestone> {
    let Some(before) = &sandbox.status else { return Vec::new() };
    let suspended = |status| is_true(status, condition::SUSPENDED);
    let mut happened = Vec::new();
    match (suspended(before), suspended(after)) {
        (false, true) => happened.push(Milestone::Suspended),
        (true, false) => happened.push(Milestone::Resumed),
        _ => {}
    }
    let mode = sandbox.spec.operating_mode;
    match mode {
        OperatingMode::Suspended if suspended(after) => {
            happened.extend(end(change, mode, now).map(Milestone::SuspendTook));
        }
        OperatingMode::Suspended => begin(change, mode, now),
        OperatingMode::Running => {
            if suspended(before) {
                begin(change, mode, now);
            }
            // It may be over already.
            if is_true(after, condition::READY) {
                happened.extend(end(change, mode, now).map(Milestone::ResumeTook));
            }
        }
    }
    if let Some(finished) = get(after, condition::FINISHED)
        && get(before, condition::FINISHED).is_none()
    {
        happened.push(Milestone::Finished(finished.reason.clone()));
    }
    if expired(after) && !expired(before) {
        happened.push(Milestone::Expired);
    }
    happened
}

/// The event for a problem that starts with this status: more than one Pod, a lost volume.
pub fn event(before: Option<&SandboxStatus>, after: &SandboxStatus) -> Option<Event> {
    [reason::MULTIPLE_PODS, reason::VOLUME_LOST].into_iter().find_map(|reason| {
        let trouble = |status| get(status, condition::READY).filter(|ready| ready.reason == reason);
        let begun = trouble(after).filter(|_| before.and_then(trouble).is_none())?;
        let note = begun.message.clone();
        Some(Event { kind: Type::Warning, reason, action: "Reconciling", note })
    })
}

/// The event for a claim that was created in place of a deleted one: the sandbox starts without its files.
pub fn replaced(claim: &str) -> Event {
    Event {
        kind: Type::Warning,
        reason: "VolumeReplaced",
        action: "Reconciling",
        note: format!("PersistentVolumeClaim {claim:?} was deleted; the sandbox gets a new, empty volume"),
    }
}

/// A change that is underway goes on; one that turns back begins anew.
pub fn begin(change: &mut Option<Change>, to: OperatingMode, now: Timestamp) {
    if change.is_none_or(|known| known.to != to) {
        *change = Some(Change { to, since: now });
    }
}

fn end(change: &mut Option<Change>, to: OperatingMode, now: Timestamp) -> Option<Duration> {
    let ended = change.take().filter(|known| known.to == to)?;
    Duration::try_from(now.duration_since(ended.since)).ok()
}

fn get<'a>(status: &'a SandboxStatus, kind: &str) -> Option<&'a Condition> {
    condition::get(&status.conditions, kind)
}

fn is_true(status: &SandboxStatus, kind: &str) -> bool {
    get(status, kind).is_some_and(|condition| condition.status == "True")
}

fn expired(status: &SandboxStatus) -> bool {
    get(status, condition::READY).is_some_and(|ready| ready.reason == reason::SANDBOX_EXPIRED)
}

#[cfg(test)]
mod tests {
    use asb_types::condition::{Status, Verdict};
    use serde_json::json;

    use super::*;

    /// A status with these conditions: type, whether it is true, reason.
    fn status(conditions: &[(&'static str, bool, &str)]) -> SandboxStatus {
        let mut status = SandboxStatus::default();
        for &(kind, holds, reason) in conditions {
            let holds = if holds { Status::True } else { Status::False };
            let verdict = Verdict::new(kind, holds, reason, "");
            condition::set(&mut status.conditions, verdict, None, Timestamp::UNIX_EPOCH);
        }
        status
    }

    fn sandbox(mode: &str, before: SandboxStatus) -> Sandbox {
        let spec = json!({"operatingMode": mode, "podTemplate": {"spec": {"containers": []}}});
        let meta = json!({"namespace": "ns", "name": "s"});
        serde_json::from_value(json!({"metadata": meta, "spec": spec, "status": before})).unwrap()
    }

    #[test]
    fn suspend_and_resume_are_counted_once_and_measured_from_wish_to_end() {
        let running = status(&[("Suspended", false, "NotSuspended"), ("Ready", true, "DependenciesReady")]);
        let draining =
            status(&[("Suspended", false, "PodTerminating"), ("Ready", false, "SandboxSuspended")]);
        let suspended = status(&[("Suspended", true, "PodTerminated"), ("Ready", false, "SandboxSuspended")]);
        let starting =
            status(&[("Suspended", false, "NotSuspended"), ("Ready", false, "DependenciesNotReady")]);
        let at = |milliseconds| Timestamp::from_millisecond(milliseconds).unwrap();
        let mut change = None;
        let mut judge = |mode, before: &SandboxStatus, after, now| {
            super::judge(&sandbox(mode, before.clone()), after, &mut change, at(now))
        };
        assert_eq!(judge("Suspended", &running, &draining, 0), []);
        assert_eq!(judge("Suspended", &draining, &draining, 10), []);
        let took = |milliseconds| Duration::from_millis(milliseconds);
        assert_eq!(
            judge("Suspended", &draining, &suspended, 30),
            [Milestone::Suspended, Milestone::SuspendTook(took(30))]
        );
        assert_eq!(judge("Suspended", &suspended, &suspended, 40), []);
        assert_eq!(judge("Running", &suspended, &starting, 100), [Milestone::Resumed]);
        assert_eq!(judge("Running", &starting, &starting, 120), []);
        assert_eq!(judge("Running", &starting, &running, 150), [Milestone::ResumeTook(took(50))]);
        assert_eq!(
            judge("Running", &starting, &running, 160),
            [],
            "a Pod that was ready again resumed nothing"
        );
        assert_eq!(change, None, "nothing is remembered longer than needed");
    }

    /// SB-059
    #[test]
    fn more_than_one_pod_is_told_once_in_the_words_of_the_condition() {
        let ready = status(&[("Ready", true, "DependenciesReady")]);
        let conflict = status(&[("Ready", false, "MultiplePods")]);
        let told = event(Some(&ready), &conflict).unwrap();
        assert_eq!((told.kind, told.reason, told.action), (Type::Warning, "MultiplePods", "Reconciling"));
        assert_eq!(told.note, conflict.conditions[0].message);
        assert_eq!(event(None, &conflict), Some(told));
        assert_eq!(event(Some(&conflict), &conflict), None);
        assert_eq!(event(Some(&conflict), &ready), None);
    }

    #[test]
    fn resume_that_is_over_within_one_pass_is_measured_too() {
        let suspended = status(&[("Suspended", true, "PodTerminated"), ("Ready", false, "SandboxSuspended")]);
        let running = status(&[("Suspended", false, "NotSuspended"), ("Ready", true, "DependenciesReady")]);
        let mut change = None;
        let happened = judge(&sandbox("Running", suspended), &running, &mut change, Timestamp::UNIX_EPOCH);
        assert_eq!(happened, [Milestone::Resumed, Milestone::ResumeTook(Duration::ZERO)]);
        assert_eq!(change, None);
    }

    #[test]
    fn sandbox_that_begins_suspended_was_never_suspended() {
        let mut created = sandbox("Suspended", SandboxStatus::default());
        created.status = None;
        let suspended = status(&[("Suspended", true, "PodTerminated")]);
        assert_eq!(judge(&created, &suspended, &mut None, Timestamp::UNIX_EPOCH), []);
    }

    #[test]
    fn end_and_expiry_are_told_when_they_begin() {
        let running = status(&[("Ready", true, "DependenciesReady")]);
        let failed = status(&[("Finished", true, "PodFailed"), ("Ready", false, "PodFailed")]);
        let gone = status(&[("Finished", true, "PodFailed"), ("Ready", false, "SandboxExpired")]);
        let judge = |before: &SandboxStatus, after| {
            super::judge(&sandbox("Running", before.clone()), after, &mut None, Timestamp::UNIX_EPOCH)
        };
        assert_eq!(judge(&running, &failed), [Milestone::Finished("PodFailed".to_owned())]);
        assert_eq!(judge(&failed, &failed), []);
        assert_eq!(judge(&failed, &gone), [Milestone::Expired]);
        assert_eq!(judge(&gone, &gone), []);
    }
}
