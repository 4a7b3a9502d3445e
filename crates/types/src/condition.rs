//! Conditions: their types and reasons, and the one rule by which they change.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

pub const READY: &str = "Ready";
pub const SUSPENDED: &str = "Suspended";
pub const POD_SCHEDULED: &str = "PodScheduled";
pub const FINISHED: &str = "Finished";

/// Reasons of Sandbox and SandboxClaim conditions. Clients compare them.
pub mod reason {
    pub const ADOPTION_CONFLICT: &str = "AdoptionConflict";
    pub const CLAIM_EXPIRED: &str = "ClaimExpired";
    pub const DEPENDENCIES_NOT_READY: &str = "DependenciesNotReady";
    pub const DEPENDENCIES_READY: &str = "DependenciesReady";
    pub const ENV_VARS_INJECTION_REJECTED: &str = "EnvVarsInjectionRejected";
    pub const INVALID_CONFIGURATION: &str = "InvalidConfiguration";
    pub const INVALID_METADATA: &str = "InvalidMetadata";
    pub const MULTIPLE_PODS: &str = "MultiplePods";
    pub const NOT_SUSPENDED: &str = "NotSuspended";
    pub const POD_FAILED: &str = "PodFailed";
    pub const POD_NOT_OWNED: &str = "PodNotOwned";
    pub const POD_SCHEDULED: &str = "PodScheduled";
    pub const POD_SCHEDULING_UNKNOWN: &str = "PodSchedulingUnknown";
    pub const POD_STATE_UNKNOWN: &str = "PodStateUnknown";
    pub const POD_SUCCEEDED: &str = "PodSucceeded";
    pub const POD_TERMINATED: &str = "PodTerminated";
    pub const POD_TERMINATING: &str = "PodTerminating";
    pub const RECONCILER_ERROR: &str = "ReconcilerError";
    pub const SANDBOX_EXPIRED: &str = "SandboxExpired";
    pub const SANDBOX_NOT_READY: &str = "SandboxNotReady";
    pub const SANDBOX_SUSPENDED: &str = "SandboxSuspended";
    pub const TEMPLATE_NOT_FOUND: &str = "TemplateNotFound";
    /// A volume of a running Sandbox is gone. Not in the reference implementation.
    pub const VOLUME_LOST: &str = "VolumeLost";
    pub const VOLUME_CLAIM_TEMPLATES_ERROR: &str = "VolumeClaimTemplatesError";
    pub const WARM_POOL_NOT_FOUND: &str = "WarmPoolNotFound";
}

/// What a condition should say now; [`set`] decides what that changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub kind: &'static str,
    pub status: Status,
    pub reason: String,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    True,
    False,
    Unknown,
}

impl Status {
    pub fn as_str(self) -> &'static str {
        match self {
            Status::True => "True",
            Status::False => "False",
            Status::Unknown => "Unknown",
        }
    }

    /// Reads what another program wrote; anything that is neither True nor False is Unknown.
    pub fn parse(text: &str) -> Self {
        match text {
            "True" => Status::True,
            "False" => Status::False,
            _ => Status::Unknown,
        }
    }
}

impl Verdict {
    pub fn new(kind: &'static str, status: Status, reason: &str, message: impl Into<String>) -> Self {
        Self { kind, status, reason: reason.to_owned(), message: message.into() }
    }
}

/// Inserts or replaces the condition of that type. The transition time moves only with the status.
pub fn set(conditions: &mut Vec<Condition>, verdict: Verdict, generation: Option<i64>, now: Timestamp) {
    let found = conditions.iter().position(|condition| condition.type_ == verdict.kind);
    let status = verdict.status.as_str();
    let kept = found.map(|at| &conditions[at]).filter(|condition| condition.status == status);
    let condition = Condition {
        type_: verdict.kind.to_owned(),
        status: status.to_owned(),
        reason: verdict.reason,
        message: verdict.message,
        observed_generation: generation,
        last_transition_time: kept
            .map_or_else(|| Time(whole_seconds(now)), |kept| kept.last_transition_time.clone()),
    };
    match found {
        Some(at) => conditions[at] = condition,
        None => conditions.push(condition),
    }
}

pub fn get<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

pub fn remove(conditions: &mut Vec<Condition>, kind: &str) {
    conditions.retain(|condition| condition.type_ != kind);
}

/// Kubernetes keeps whole seconds; comparing what we wrote with what we read must not see a difference.
fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).expect("a timestamp without its fraction is a timestamp")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a small number of seconds is a timestamp")
    }

    #[test]
    fn transition_time_moves_only_with_the_status() {
        let mut conditions = Vec::new();
        let ready = |status, reason: &str| Verdict::new(READY, status, reason, "");
        set(&mut conditions, ready(Status::False, "A"), Some(1), at(10));
        set(&mut conditions, ready(Status::False, "B"), Some(2), at(20));
        let condition = get(&conditions, READY).expect("Ready was set");
        assert_eq!((condition.reason.as_str(), condition.observed_generation), ("B", Some(2)));
        assert_eq!(condition.last_transition_time.0, at(10));
        set(&mut conditions, ready(Status::True, "C"), Some(2), at(30));
        assert_eq!(get(&conditions, READY).map(|ready| ready.last_transition_time.0), Some(at(30)));
        assert_eq!(conditions.len(), 1);
    }
}
