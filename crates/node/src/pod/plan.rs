//! What is to be done next about the containers of a Pod. Pure: what was seen and `now` in, steps out.
//!
//! ```text
//! init ──► init ──► sidecar (started) ──► init ──► all main ones, each after the postStart hook of the one before
//!  in order; each ends well first          └── restarted on its own, stopped after the main ones, last first
//! ```
//!
//! One container is started at a time. One that has to wait holds up the init containers after it, but no main one.

use std::time::{Duration, SystemTime};

use asb_runtime::Exit;
use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};

use super::container::{Role, Slot};
use super::spec::Refusal;

const FIRST_BACK_OFF: Duration = Duration::from_secs(10);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(300);
/// A container that ran this long starts its back-off anew.
const GOOD_RUN: Duration = Duration::from_secs(600);

/// What a Pod says about the order and the ends of its containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// In the order in which they begin.
    pub roles: Vec<Role>,
    /// The image that each of them asks for, in the same order.
    pub images: Vec<String>,
    pub policy: Policy,
    /// When whatever still runs is stopped.
    pub deadline: Option<SystemTime>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    Always,
    OnFailure,
    Never,
}

/// What is known of one container.
#[derive(Debug, Clone)]
pub struct Seen {
    pub doing: Doing,
    /// How often it was started again before the instance that is there, or that would be next.
    pub restarts: u32,
    /// How the instance before ended.
    pub last: Option<Finished>,
    /// Ends in a row that were not a good run.
    pub failures: u32,
    /// Not to be started earlier.
    pub not_before: Option<SystemTime>,
    /// All it did was before the Pod had to begin again: what it made may be gone.
    pub past: bool,
    /// Why it was not started when it should have been.
    pub waits: Option<Refusal>,
    /// The image of the instance that is there, or of the one before, by the name that the Pod had for it.
    pub image: String,
    pub image_id: String,
}

#[derive(Debug, Clone)]
pub enum Doing {
    /// There is no instance.
    Absent,
    /// One is on its way.
    Starting,
    Running(Running),
    Ended(Finished),
}

#[derive(Debug, Clone)]
pub struct Running {
    pub since: SystemTime,
    /// The postStart hook is through.
    pub greeted: bool,
    /// The startup probe has succeeded.
    pub started: bool,
    /// The readiness probe succeeds.
    pub ready: bool,
    /// It was told to end.
    pub stopping: bool,
    /// Its end is followed by a start, whatever its exit code is.
    pub restart: bool,
}

/// How an instance ended; kept on disk after the instance is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    pub code: i32,
    pub reason: String,
    pub since: SystemTime,
    pub at: SystemTime,
    /// What it left behind to say.
    pub message: Option<String>,
    /// Its number, counted from 0.
    pub restarts: u32,
    /// It was stopped in order to be started again.
    #[serde(skip)]
    pub restart: bool,
}

/// Why a Pod will start nothing more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Succeeded,
    Failed,
    DeadlineExceeded,
    /// It asks for what cannot be had.
    Refused,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub start: Option<usize>,
    pub stop: Vec<usize>,
    /// Containers to stop and start again, because the Pod names another image for them now.
    pub replace: Vec<usize>,
    /// Containers that are to be started, but not yet.
    pub pauses: Vec<usize>,
    /// When to look again, even if nothing happens.
    pub wake: Option<SystemTime>,
    pub outcome: Option<Outcome>,
}

/// Decides what to do next. Total: every combination has an answer, and what needs nothing gets nothing.
pub fn plan(rules: &Rules, seen: &[Seen], refused: bool, now: SystemTime) -> Plan {
    let outcome = if refused { Some(Outcome::Refused) } else { outcome(rules, seen, now) };
    if outcome.is_some() {
        return Plan { stop: to_stop(rules, seen), outcome, ..Plan::default() };
    }
    let mut plan = Plan { replace: to_replace(rules, seen), ..Plan::default() };
    if !seen.iter().any(|one| matches!(one.doing, Doing::Starting)) {
        candidates(rules, seen).into_iter().for_each(|index| plan.consider(index, &seen[index], now));
    }
    plan.wake(rules.deadline.filter(|deadline| *deadline > now));
    plan
}

/// Which running containers are told to end: all but sidecars, then the sidecars one by one, the last first.
pub fn to_stop(rules: &Rules, seen: &[Seen]) -> Vec<usize> {
    let running = |index: &usize| matches!(seen[*index].doing, Doing::Running(_));
    let stopping = |index: &usize| matches!(&seen[*index].doing, Doing::Running(it) if it.stopping);
    let (sidecars, others): (Vec<_>, Vec<_>) =
        (0..seen.len()).filter(running).partition(|index| rules.roles[*index] == Role::Sidecar);
    let next = if others.is_empty() { sidecars.into_iter().last().into_iter().collect() } else { others };
    next.into_iter().filter(|index| !stopping(index)).collect()
}

/// Which running containers have another image than the Pod names for them now. As with the kubelet, an init container that
/// runs is left to end with the one that it has.
fn to_replace(rules: &Rules, seen: &[Seen]) -> Vec<usize> {
    let outdated = |index: &usize| {
        matches!(&seen[*index].doing, Doing::Running(it) if !it.stopping)
            && !matches!(rules.roles[*index], Role::Init | Role::Ephemeral)
            && seen[*index].image != rules.images[*index]
    };
    (0..seen.len()).filter(outdated).collect()
}

/// Whether and why it is over. What ended before the deadline is not judged by it.
fn outcome(rules: &Rules, seen: &[Seen], now: SystemTime) -> Option<Outcome> {
    let late = |time: SystemTime| rules.deadline.is_some_and(|deadline| time >= deadline);
    let ends = |role: Role| {
        let of_role = move |(index, _): &(usize, &Seen)| rules.roles[*index] == role;
        seen.iter().enumerate().filter(of_role).map(|(_, one)| match &one.doing {
            Doing::Ended(finished) => Some(finished),
            _ => None,
        })
    };
    let init_failed = ends(Role::Init).flatten().find(|end| end.code != 0 && rules.policy == Policy::Never);
    let mains: Option<Vec<_>> = ends(Role::Main).collect();
    let over = mains.filter(|mains| !mains.is_empty() && mains.iter().all(|end| !rules.again(end)));
    let natural = match (init_failed, over) {
        (Some(end), _) => Some((Outcome::Failed, end.at)),
        (None, Some(mains)) => {
            let well = mains.iter().all(|end| end.code == 0);
            let at = mains.iter().map(|end| end.at).max()?;
            Some((if well { Outcome::Succeeded } else { Outcome::Failed }, at))
        }
        (None, None) => None,
    };
    match natural {
        Some((outcome, at)) if !late(at) => Some(outcome),
        _ => late(now).then_some(Outcome::DeadlineExceeded),
    }
}

/// Containers that should run and do not, in order. Nothing holds up those that were added to look into the Pod, and what
/// one of them did is never done again.
fn candidates(rules: &Rules, seen: &[Seen]) -> Vec<usize> {
    let mut wanted = in_order(rules, seen);
    let is_new = |one: &Seen| matches!(one.doing, Doing::Absent) && one.last.is_none();
    wanted.extend(
        (0..seen.len()).filter(|index| rules.roles[*index] == Role::Ephemeral && is_new(&seen[*index])),
    );
    wanted
}

fn in_order(rules: &Rules, seen: &[Seen]) -> Vec<usize> {
    let idle = |index: &usize| matches!(seen[*index].doing, Doing::Absent | Doing::Ended(_));
    let mains: Vec<_> = (0..seen.len()).filter(|index| rules.roles[*index] == Role::Main).collect();
    let inits = (0..seen.len()).filter(|index| matches!(rules.roles[*index], Role::Init | Role::Sidecar));
    let initialized = mains.iter().any(|index| seen[*index].joined());
    let mut wanted = Vec::new();
    for index in inits {
        let one = &seen[index];
        let passed = match rules.roles[index] {
            Role::Init => initialized || one.is_through(),
            _ => initialized || one.has_started(),
        };
        // What has ended well is through with it; a sidecar is never.
        if idle(&index) && (rules.roles[index] == Role::Sidecar || !passed) {
            wanted.push(index);
        }
        if !passed {
            return wanted;
        }
    }
    for index in mains {
        match &seen[index].doing {
            Doing::Absent => wanted.push(index),
            Doing::Ended(end) if rules.again(end) => wanted.push(index),
            // The next one may count on what the hook of this one does.
            Doing::Running(it) if !it.greeted && !it.stopping => return wanted,
            _ => {}
        }
    }
    wanted
}

impl Plan {
    fn consider(&mut self, index: usize, one: &Seen, now: SystemTime) {
        match one.not_before.filter(|time| *time > now) {
            Some(time) => {
                self.pauses.push(index);
                self.wake(Some(time));
            }
            None if self.start.is_none() => self.start = Some(index),
            None => {}
        }
    }

    fn wake(&mut self, time: Option<SystemTime>) {
        self.wake = self.wake.into_iter().chain(time).min();
    }
}

impl Rules {
    pub fn of(pod: &Pod, since: SystemTime) -> Self {
        let spec = pod.spec.as_ref();
        let policy = match spec.and_then(|spec| spec.restart_policy.as_deref()) {
            Some("Never") => Policy::Never,
            Some("OnFailure") => Policy::OnFailure,
            _ => Policy::Always,
        };
        let seconds = spec.and_then(|spec| spec.active_deadline_seconds);
        let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let (all, image) =
            (Slot::with_ephemeral(pod), |slot: &Slot| slot.image(pod).unwrap_or_default().to_owned());
        Self {
            roles: all.iter().map(|slot| slot.role(pod)).collect(),
            images: all.iter().map(image).collect(),
            policy,
            deadline: seconds.map(|seconds| since + Duration::from_secs(seconds)),
        }
    }

    /// Whether a container that a probe has failed is started again, which its exit code has no say in.
    pub fn restarts_unhealthy(&self) -> bool {
        self.policy != Policy::Never
    }

    /// Whether a main container that ended like this is started again.
    fn again(&self, end: &Finished) -> bool {
        match self.policy {
            _ if end.restart => true,
            Policy::Always => true,
            Policy::OnFailure => end.code != 0,
            Policy::Never => false,
        }
    }
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            doing: Doing::Absent,
            restarts: 0,
            last: None,
            failures: 0,
            not_before: None,
            past: false,
            waits: None,
            image: String::new(),
            image_id: String::new(),
        }
    }
}

impl Seen {
    /// Whether it ever ran, or is about to.
    pub fn begun(&self) -> bool {
        !matches!(self.doing, Doing::Absent) || self.last.is_some()
    }

    /// The same, since the Pod last began.
    pub fn joined(&self) -> bool {
        self.begun() && !self.past
    }

    /// Whether it runs and what waits for it to have started may go on.
    pub fn has_started(&self) -> bool {
        matches!(&self.doing, Doing::Running(it) if it.greeted && it.started)
    }

    /// Whether an init container has done its work.
    pub fn is_through(&self) -> bool {
        !self.past && matches!(&self.doing, Doing::Ended(end) if end.code == 0)
    }

    pub fn is_ready(&self) -> bool {
        matches!(&self.doing, Doing::Running(it) if it.greeted && it.started && it.ready)
    }

    /// Takes note of an end, and of when the next start may come: the first at once, as the kubelet does it.
    pub fn ended(&mut self, mut end: Finished) {
        end.restart |= matches!(&self.doing, Doing::Running(it) if it.restart);
        if end.at.duration_since(end.since).unwrap_or_default() >= GOOD_RUN {
            self.failures = 0;
        }
        let pause = self.failures.checked_sub(1).map_or(Duration::ZERO, back_off);
        self.failures += 1;
        self.not_before = Some(end.at + pause);
        self.doing = Doing::Ended(end);
    }

    /// Takes note that the container asks for something else now: no earlier failure holds the next start up.
    pub fn forgive(&mut self) {
        (self.failures, self.not_before, self.waits) = (0, None, None);
    }

    /// Takes note that the ended instance makes room for the next.
    pub fn cleared(&mut self) {
        self.past = false;
        if let Doing::Ended(end) = std::mem::replace(&mut self.doing, Doing::Absent) {
            self.restarts = end.restarts + 1;
            self.last = Some(end);
        }
    }
}

impl Finished {
    pub fn new(exit: Exit, since: SystemTime, at: SystemTime, restarts: u32) -> Self {
        let (code, reason) = match exit {
            Exit::Code(0) => (0, "Completed"),
            Exit::Code(code) => (code, "Error"),
            Exit::Signal(signal) => (128 + signal, "Error"),
            Exit::OutOfMemory => (137, "OOMKilled"),
        };
        Self { code, reason: reason.to_owned(), since, at, message: None, restarts, restart: false }
    }
}

/// The pause after so many failures in a row.
pub fn back_off(failures: u32) -> Duration {
    FIRST_BACK_OFF.saturating_mul(1 << failures.min(10)).min(LONGEST_BACK_OFF)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
