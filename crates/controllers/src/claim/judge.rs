//! Decides what a claim's status says. Pure: it judges what was seen, never what was meant.

use asb_types::claim::BoundSandbox;
use asb_types::condition::{self, Status, Verdict, reason};
use asb_types::{Claim, ClaimStatus, Sandbox};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::{Value, json};

use super::problem::Problem;

/// The status of a claim whose time is not up: the Sandbox that serves it, or why none does.
pub fn judge(claim: &Claim, found: Result<&Sandbox, &Problem>, now: Timestamp) -> ClaimStatus {
    let mut status = claim.status.clone().unwrap_or_default();
    match found {
        Ok(sandbox) => mirror(claim, sandbox, &mut status, now),
        // Nobody knows what became of the Sandbox: what was known of it stays, its end included.
        Err(problem) => {
            let verdict = Verdict::new(condition::READY, Status::False, problem.reason(), problem.message());
            condition::set(&mut status.conditions, verdict, claim.metadata.generation, now);
        }
    }
    sorted(status)
}

/// The status that says that a claim's time is up, before anything is done about it.
pub fn mark_expired(claim: &Claim, status: ClaimStatus, now: Timestamp) -> ClaimStatus {
    let mut status = status;
    let verdict = Verdict::new(
        condition::READY,
        Status::False,
        reason::CLAIM_EXPIRED,
        "Claim expired. Sandbox cleanup initiated.",
    );
    condition::set(&mut status.conditions, verdict, claim.metadata.generation, now);
    sorted(status)
}

/// The status of an expired claim that outlives its Sandbox. `left` is what is still there of it; `stranger` is a
/// Sandbox that the status names although the claim does not control it.
pub fn retained(
    claim: &Claim,
    left: Option<&Sandbox>,
    stranger: Option<&str>,
    now: Timestamp,
) -> ClaimStatus {
    let mut status = claim.status.clone().unwrap_or_default();
    status.sandbox = left.map(describe);
    if let Some(name) = stranger {
        let message = format!(
            "Claim expired. Sandbox {name:?} is not controlled by this claim; its deletion was skipped."
        );
        let verdict = Verdict::new(condition::READY, Status::False, reason::CLAIM_EXPIRED, message);
        condition::set(&mut status.conditions, verdict, claim.metadata.generation, now);
    }
    sorted(status)
}

/// The merge patch from one status to the next; it names what is gone.
pub fn patch(after: &ClaimStatus) -> Value {
    let sandbox = after.sandbox.as_ref().map(|sandbox| {
        let ips = (!sandbox.pod_ips.is_empty()).then_some(&sandbox.pod_ips);
        json!({"name": sandbox.name, "podIPs": ips, "serviceFQDN": sandbox.service_fqdn})
    });
    json!({"conditions": after.conditions, "sandbox": sandbox})
}

fn mirror(claim: &Claim, sandbox: &Sandbox, status: &mut ClaimStatus, now: Timestamp) {
    status.sandbox = Some(describe(sandbox));
    match sandbox.condition(condition::FINISHED) {
        Some(finished) => put(&mut status.conditions, finished.clone()),
        None => condition::remove(&mut status.conditions, condition::FINISHED),
    }
    let generation = claim.metadata.generation;
    let not_ready = |reason, message: &str| Verdict::new(condition::READY, Status::False, reason, message);
    let verdict = match sandbox.condition(condition::READY) {
        None => not_ready(reason::SANDBOX_NOT_READY, "Sandbox is not ready"),
        Some(ready) if ready.reason == reason::SANDBOX_EXPIRED => not_ready(
            reason::SANDBOX_EXPIRED,
            "Sandbox expired by its own shutdownTime, independently of the claim",
        ),
        Some(ready) => {
            forward(claim, ready, &mut status.conditions);
            return;
        }
    };
    condition::set(&mut status.conditions, verdict, generation, now);
}

/// Copies the Sandbox's Ready condition. Its transition time is news only when the status changes, and a claim
/// cannot have been Ready before it was there.
fn forward(claim: &Claim, ready: &Condition, conditions: &mut Vec<Condition>) {
    let kept = condition::get(conditions, condition::READY).filter(|known| known.status == ready.status);
    let born = claim.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let since = ready.last_transition_time.0.max(born.unwrap_or(Timestamp::MIN));
    let last_transition_time = kept.map_or(Time(since), |known| known.last_transition_time.clone());
    let forwarded =
        Condition { observed_generation: claim.metadata.generation, last_transition_time, ..ready.clone() };
    put(conditions, forwarded);
}

fn put(conditions: &mut Vec<Condition>, condition: Condition) {
    condition::remove(conditions, &condition.type_);
    conditions.push(condition);
}

fn describe(sandbox: &Sandbox) -> BoundSandbox {
    let status = sandbox.status.clone().unwrap_or_default();
    BoundSandbox {
        name: sandbox.metadata.name.clone().unwrap_or_default(),
        pod_ips: status.pod_ips,
        service_fqdn: status.service_fqdn,
    }
}

fn sorted(mut status: ClaimStatus) -> ClaimStatus {
    status.conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
    status
}
