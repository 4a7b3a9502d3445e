//! Decides what to do about one SandboxWarmPool. Pure and total: no clock, no dice, no I/O.
//!
//! Every Sandbox with the pool's label is exactly one of these:
//!
//! ```text
//! somebody else's ──► ignored (a claimed member is one)
//! on its way out ───► terminating: holds its place, is not counted as a member
//! stale ────────────► deleted            (ours under Recreate; nobody's always)
//!                     replaced one by one (ours under RollingUpdate, while it is Ready)
//! nobody's ─────────► adopted
//! not Ready ────────┬ young ─► kept, looked at again when its grace ends
//!                   ├ unschedulable ─► held: a replacement would wait as well
//!                   └ else ──► deleted
//! the rest ─────────► member
//! ```
//!
//! Then the number: too few are created at the pool's pace, too many are deleted. What is deleted in this
//! pass still holds its place in it, so a failed delete can never lead to one Sandbox too many.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use asb_types::warm_pool::UpdateStrategyType;
use asb_types::{Sandbox, Template, WarmPool, condition, key, name};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::blueprint::Blueprint;
use super::pace::{Grant, Pace};
use super::{Settings, rollout};
use crate::object::{Ownership, owner_reference, ownership};
use crate::write::Identity;

/// A member is looked at again this long after its grace ended.
const AFTER_GRACE: Duration = Duration::from_secs(2);

/// Everything that was seen of one pool's world.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// Sandboxes with the pool's label, whoever owns them.
    pub sandboxes: Vec<Arc<Sandbox>>,
    pub template: Option<Arc<Template>>,
    /// Why nothing may be made from the template.
    pub refusal: Option<String>,
}

/// What a pool remembers between passes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Memory {
    pub pace: Pace,
    /// Whether the pool was last reported as not progressing.
    pub stuck: bool,
    /// Why nothing was made from the template, as last reported.
    pub refusal: Option<String>,
    /// Since when the numbers in the status are not those of the pool.
    pub unsaid: Option<Timestamp>,
}

/// What to do now and when to look again.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    /// Merge patches of Sandboxes, each bound to the state in which the Sandbox was seen.
    pub patches: Vec<(String, Value)>,
    pub deletions: Vec<Identity>,
    /// What to create, and how often.
    pub create: Option<(Value, usize)>,
    pub report: Option<Report>,
    pub look_again: Option<Duration>,
    pub memory: Memory,
}

/// What users are told through an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    NotProgressing {
        held: usize,
        members: usize,
        grace: Duration,
    },
    /// The template cannot be used.
    Refused(String),
    Progressing,
}

/// `jitter`, between 0 and 1, spreads the looks at many pools that were filled at the same time.
pub fn plan(
    pool: &WarmPool,
    seen: &Seen,
    memory: &Memory,
    settings: &Settings,
    now: Timestamp,
    jitter: f64,
) -> Plan {
    let blueprint = seen.template.as_deref().map(Blueprint::of);
    let mut sorted = Sorted::default();
    for sandbox in &seen.sandboxes {
        sorted.put(pool, sandbox, blueprint.as_ref(), settings.readiness_grace, now);
    }
    let mut plan = Plan { memory: memory.clone(), ..Plan::default() };
    plan.deletions = sorted.doomed.iter().map(|sandbox| Identity::of(&***sandbox)).collect();

    let desired = desired(pool);
    let fresh = sorted.members.len() + sorted.orphans.len();
    let limits = rollout::Limits::of(pool, desired);
    let available = sorted.stale.len() + sorted.members.iter().filter(|sandbox| sandbox.is_ready()).count();
    sorted.stale.sort_by_key(|sandbox| age_key(sandbox));
    let kept = sorted.stale.split_off(limits.may_go(available, desired).min(sorted.stale.len()));
    plan.deletions.extend(sorted.stale.iter().map(|sandbox| Identity::of(&***sandbox)));
    let current = fresh + kept.len();
    let total = current + sorted.stale.len() + sorted.leaving + sorted.doomed_members;
    // Only while old members are still in use may there be more than wanted.
    let room = if kept.is_empty() { desired } else { desired + limits.surge };
    let missing = room.saturating_sub(total).min(desired.saturating_sub(fresh));
    let mut waits = Vec::new();

    let pace = &mut plan.memory.pace;
    pace.look(current, current >= desired, settings.replenish_delay, now);
    if let Some(blueprint) = blueprint.as_ref().filter(|_| missing > 0 && seen.refusal.is_none()) {
        match pace.pause(now) {
            Some(left) => waits.push(left),
            None => {
                let want = missing.min(settings.max_batch_size);
                match pace.take(want, settings.max_refill_rate, now) {
                    Grant::Wait(wait) => waits.push(wait),
                    Grant::Create(count) => {
                        plan.create = Some((blueprint.sandbox(pool, settings.safe_to_evict), count));
                    }
                }
            }
        }
    }

    let surplus = fresh.saturating_sub(desired).min(settings.max_batch_size);
    if surplus > 0 {
        sorted.members.sort_by_cached_key(|sandbox| (sandbox.is_ready(), Reverse(age_key(sandbox))));
    }
    let stay = sorted.members.split_off(surplus.min(sorted.members.len()));
    plan.deletions.extend(sorted.members.iter().map(|sandbox| Identity::of(&***sandbox)));
    plan.patches = stay.iter().filter_map(|sandbox| mark_warm(sandbox)).collect();
    plan.patches.extend(sorted.orphans.iter().map(|sandbox| adopt(pool, sandbox)));

    if sorted.held > 0 || seen.refusal.is_some() {
        waits.push(settings.unschedulable_recheck);
    }
    plan.report = match (sorted.held, memory.stuck) {
        (0, true) => Some(Report::Progressing),
        (held, false) if held > 0 => {
            Some(Report::NotProgressing { held, members: current, grace: settings.readiness_grace })
        }
        _ => None,
    };
    plan.memory.stuck = sorted.held > 0;
    if plan.report.is_none() && memory.refusal != seen.refusal {
        plan.report = seen.refusal.clone().map(Report::Refused);
        plan.memory.refusal.clone_from(&seen.refusal);
    }
    waits.extend(sorted.grace_ends.map(|left| (left + AFTER_GRACE).mul_f64(1.0 + jitter / 2.0)));
    plan.look_again = waits.into_iter().min();
    plan
}

/// The label value that the members of a pool carry.
pub fn hash(pool: &WarmPool) -> String {
    name::name_hash(pool.metadata.name.as_deref().unwrap_or_default())
}

/// The Sandboxes of a pool, each in its place.
#[derive(Default)]
struct Sorted<'a> {
    members: Vec<&'a Arc<Sandbox>>,
    orphans: Vec<&'a Arc<Sandbox>>,
    /// Ready members of an older blueprint that are replaced one by one.
    stale: Vec<&'a Arc<Sandbox>>,
    /// To be deleted for what they are, not for their number.
    doomed: Vec<&'a Arc<Sandbox>>,
    /// Those of `doomed` that hold a place in the pool.
    doomed_members: usize,
    leaving: usize,
    held: usize,
    /// Time until the first member runs out of grace.
    grace_ends: Option<Duration>,
}

impl<'a> Sorted<'a> {
    fn put(
        &mut self,
        pool: &WarmPool,
        sandbox: &'a Arc<Sandbox>,
        blueprint: Option<&Blueprint<'_>>,
        grace: Duration,
        now: Timestamp,
    ) {
        let uid = pool.metadata.uid.as_deref().unwrap_or_default();
        let owned = match ownership(&**sandbox, uid) {
            Ownership::Foreign(_) => return,
            Ownership::Owned => true,
            Ownership::Unowned => false,
        };
        if leaving(sandbox) {
            self.leaving += usize::from(owned);
            return;
        }
        let strategy = strategy(pool);
        let may_replace = !owned || strategy != UpdateStrategyType::OnReplenish;
        if may_replace && blueprint.is_some_and(|blueprint| blueprint.is_stale(sandbox)) {
            match owned && strategy == UpdateStrategyType::RollingUpdate && sandbox.is_ready() {
                true => self.stale.push(sandbox),
                false => self.doom(sandbox, owned),
            }
        } else if !owned {
            self.orphans.push(sandbox);
        } else {
            self.put_member(sandbox, grace, now);
        }
    }

    fn put_member(&mut self, sandbox: &'a Arc<Sandbox>, grace: Duration, now: Timestamp) {
        let born = sandbox.metadata.creation_timestamp.as_ref().map(|time| time.0);
        if let Some(born) = born.filter(|_| !sandbox.is_ready()) {
            // A creation time in the future is one of another clock: no age at all.
            let age = Duration::try_from(now.duration_since(born)).unwrap_or_default();
            if age <= grace {
                let left = grace - age;
                self.grace_ends = Some(self.grace_ends.map_or(left, |other| other.min(left)));
            } else if unschedulable(sandbox) {
                self.held += 1;
            } else {
                self.doom(sandbox, true);
                return;
            }
        }
        self.members.push(sandbox);
    }

    fn doom(&mut self, sandbox: &'a Arc<Sandbox>, owned: bool) {
        self.doomed.push(sandbox);
        self.doomed_members += usize::from(owned);
    }
}

pub fn desired(pool: &WarmPool) -> usize {
    usize::try_from(pool.spec.replicas.unwrap_or(1)).unwrap_or(0)
}

pub fn strategy(pool: &WarmPool) -> UpdateStrategyType {
    pool.spec.update_strategy.as_ref().map(|strategy| strategy.kind).unwrap_or_default()
}

pub fn is_ours(pool: &WarmPool, sandbox: &Sandbox) -> bool {
    ownership(sandbox, pool.metadata.uid.as_deref().unwrap_or_default()) == Ownership::Owned
}

pub fn leaving(sandbox: &Sandbox) -> bool {
    sandbox.metadata.deletion_timestamp.is_some()
}

/// The Sandbox mirrors what the scheduler says about its Pod, and only while there is one.
fn unschedulable(sandbox: &Sandbox) -> bool {
    sandbox
        .condition(condition::POD_SCHEDULED)
        .is_some_and(|scheduled| scheduled.status == "False" && scheduled.reason == "Unschedulable")
}

fn age_key(sandbox: &Sandbox) -> Option<Timestamp> {
    sandbox.metadata.creation_timestamp.as_ref().map(|time| time.0)
}

fn mark_warm(sandbox: &Sandbox) -> Option<(String, Value)> {
    let label = sandbox.metadata.labels.as_ref().and_then(|labels| labels.get(key::LAUNCH_TYPE));
    let marked = label.is_some_and(|value| value == "warm");
    (!marked).then(|| locked(sandbox, json!({"labels": {key::LAUNCH_TYPE: "warm"}})))
}

fn adopt(pool: &WarmPool, sandbox: &Sandbox) -> (String, Value) {
    let mut owners = sandbox.metadata.owner_references.clone().unwrap_or_default();
    owners.push(owner_reference(pool));
    locked(sandbox, json!({"labels": {key::LAUNCH_TYPE: "warm"}, "ownerReferences": owners}))
}

/// A patch that the API server refuses when the Sandbox has changed since, as by a claim that took it.
fn locked(sandbox: &Sandbox, mut metadata: Value) -> (String, Value) {
    let Identity { name, uid, resource_version } = Identity::of(sandbox);
    metadata["uid"] = json!(uid);
    metadata["resourceVersion"] = json!(resource_version);
    (name, json!({"metadata": metadata}))
}
