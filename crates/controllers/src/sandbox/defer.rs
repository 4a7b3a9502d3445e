//! Which writes may wait a moment, because a better one is likely to follow. Pure.

use std::time::Duration;

use asb_types::{EXTENSIONS_GROUP, Sandbox, SandboxStatus, condition};
use jiff::Timestamp;

use super::plan::{Action, Plan};
use crate::object::{controller_of, is_kind};

/// However long users want to wait, a Pod's metadata is never older than this.
const LONGEST_WINDOW: Duration = Duration::from_secs(1);

/// A Sandbox that gets ready within this time tells so, and nothing before: writes about a start take the API server's time
/// from that start. A user who looks at one that takes longer sees how far it is.
const QUIET_START: Duration = Duration::from_secs(1);

/// The same for a member of a pool, which nobody looks at. Long enough for a busy cluster: a status about a start costs every
/// claim a write.
const QUIET_START_IN_POOL: Duration = Duration::from_secs(10);

/// Takes the patch of a Pod's metadata out of the plan until the window is over.
///
/// `since` is when the difference was first seen; it is kept between passes and not renewed by them. The
/// adoption of a Pod is never put off.
pub fn pod_patch(plan: &mut Plan, since: &mut Option<Timestamp>, window: Duration, now: Timestamp) {
    let is_patch = |action: &Action| match action {
        Action::PatchPod { patch, .. } => patch["metadata"].get("ownerReferences").is_none(),
        _ => false,
    };
    let Some(at) = plan.actions.iter().position(is_patch).filter(|_| !window.is_zero()) else {
        *since = None;
        return;
    };
    let end = *since.get_or_insert(now) + window.min(LONGEST_WINDOW);
    match Duration::try_from(end.duration_since(now)) {
        Ok(left) if !left.is_zero() => {
            plan.actions.remove(at);
            plan.look_again_after(left);
        }
        _ => *since = None,
    }
}

/// How long the first status of a Sandbox may wait. One, when it has an address, is enough; trouble is told at once.
///
/// `since` is when there was first something to tell; it is kept between passes until that was told.
pub fn first_status(
    sandbox: &Sandbox,
    status: &SandboxStatus,
    since: &mut Option<Timestamp>,
    now: Timestamp,
) -> Option<Duration> {
    let told = sandbox.status.as_ref().is_some_and(|status| !status.conditions.is_empty());
    let says = |kind| condition::get(&status.conditions, kind);
    let starting =
        says(condition::READY).is_some_and(|ready| ready.reason == condition::reason::DEPENDENCIES_NOT_READY);
    let stuck = says(condition::POD_SCHEDULED).is_some_and(|scheduled| scheduled.status == "False");
    if told || !starting || stuck || !status.pod_ips.is_empty() {
        return None;
    }
    let in_pool =
        controller_of(sandbox).is_some_and(|owner| is_kind(owner, EXTENSIONS_GROUP, "SandboxWarmPool"));
    let end = *since.get_or_insert(now) + if in_pool { QUIET_START_IN_POOL } else { QUIET_START };
    Duration::try_from(end.duration_since(now)).ok().filter(|left| !left.is_zero())
}
