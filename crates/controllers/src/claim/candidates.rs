//! Who may have which member of a pool: the members that can be taken, and the claims that wait for one.
//!
//! ```text
//! Sandbox changes ─► free: Ready first, then oldest ──reserve──► one claim ──dropped──► free again
//! Claim changes ───► waiting: oldest first                                └─transfer─► gone from here
//! ```
//!
//! A member is reserved by at most one claim at a time, and a reservation ends when it is dropped, so none is
//! ever hidden for good. It only keeps the claims of this process out of each other's way: who has a Sandbox
//! is decided by the API server, which accepts one transfer of each state of it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use asb_types::{Claim, EXTENSIONS_GROUP, Sandbox, key};
use jiff::Timestamp;

use crate::caches::{pool_named_by, pool_of};
use crate::object::{Key, controller_of, is_kind};
use crate::queue::Queue;

pub struct Candidates {
    state: Mutex<State>,
    /// Where claims are put for which a member may have come.
    queue: Arc<Queue<Key>>,
}

#[derive(Default)]
struct State {
    pools: HashMap<Key, Pool>,
    /// Every member that can be taken, reserved or not.
    members: HashMap<Key, Member>,
    /// UIDs of members that a claim is about to take.
    reserved: HashSet<String>,
    /// The claims that wait, with the pool and their place in it.
    turns: HashMap<Key, (Key, Turn)>,
    arrivals: u64,
}

#[derive(Default)]
struct Pool {
    free: BTreeMap<Rank, Arc<Sandbox>>,
    waiting: BTreeMap<Turn, Key>,
}

struct Member {
    pool: Key,
    rank: Rank,
    sandbox: Arc<Sandbox>,
}

/// The order in which members are taken.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    readiness: Readiness,
    created: Option<Timestamp>,
    name: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Readiness {
    Ready,
    /// Has an address: its Pod runs.
    Running,
    /// Nothing that a claim could use yet.
    Starting,
}

/// The order in which claims are served: by age, and those of the same second as they came.
type Turn = (Option<Timestamp>, u64);

/// What there is for a claim.
pub enum Choice {
    Reserved(Reservation),
    /// Members that are not usable yet.
    Pending,
    Nothing,
}

/// A member that one claim is about to take. Dropping it gives the member back.
pub struct Reservation {
    candidates: Arc<Candidates>,
    pub sandbox: Arc<Sandbox>,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.candidates.release(&self.sandbox);
    }
}

/// Whether a claim may take this Sandbox: a member of a pool that is not on its way out.
pub fn is_adoptable(sandbox: &Sandbox) -> bool {
    let pool =
        controller_of(sandbox).is_some_and(|owner| is_kind(owner, EXTENSIONS_GROUP, "SandboxWarmPool"));
    pool && sandbox.metadata.deletion_timestamp.is_none()
        && sandbox.label(key::WARM_POOL_SANDBOX).is_some()
        && sandbox.label(key::TEMPLATE_REF_HASH).is_some()
}

impl Candidates {
    pub fn new(queue: Arc<Queue<Key>>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), queue })
    }

    /// Takes in what became of a Sandbox.
    pub fn observe(&self, before: Option<&Arc<Sandbox>>, after: Option<&Arc<Sandbox>>) {
        let mut state = self.lock();
        before.into_iter().for_each(|sandbox| state.remove(&Key::of(&**sandbox)));
        let Some(sandbox) = after.filter(|sandbox| is_adoptable(sandbox)) else { return };
        let Some(pool) = pool_of(sandbox) else { return };
        state.insert(pool.clone(), sandbox.clone());
        self.wake(&state, &pool);
    }

    /// Takes in that a claim waits for a member, until [`Candidates::served`].
    pub fn wait(&self, claim: &Claim) {
        let key = Key::of(claim);
        let pool = pool_named_by(claim);
        let mut state = self.lock();
        if state.turns.get(&key).is_some_and(|(known, _)| *known == pool) {
            return;
        }
        state.served(&key);
        state.arrivals += 1;
        let turn = (claim.metadata.creation_timestamp.as_ref().map(|time| time.0), state.arrivals);
        state.pools.entry(pool.clone()).or_default().waiting.insert(turn, key.clone());
        state.turns.insert(key, (pool, turn));
    }

    /// Takes in that a claim waits no longer, whatever became of it.
    pub fn served(&self, claim: &Key) {
        let mut state = self.lock();
        let Some(pool) = state.served(claim) else { return };
        // Somebody younger may have stood back.
        self.wake(&state, &pool);
    }

    /// Reserves the best member of the claim's pool that is acceptable, unless older claims need it.
    ///
    /// `ready_only`: members that run but are not Ready are waited for, not taken.
    pub fn reserve(
        self: &Arc<Self>,
        claim: &Claim,
        ready_only: bool,
        acceptable: impl Fn(&Sandbox) -> bool,
    ) -> Choice {
        let mut state = self.lock();
        let Some(pool) = state.pools.get(&pool_named_by(claim)) else { return Choice::Nothing };
        let last = if ready_only { Readiness::Ready } else { Readiness::Running };
        let older = match state.turns.get(&Key::of(claim)) {
            Some((_, turn)) => pool.waiting.range(..turn).take(pool.free.len()).count(),
            None => 0,
        };
        // Each older claim takes one, the best first; what is left for this one says whether its turn has come.
        let mut members = pool.free.iter().filter(|(_, sandbox)| acceptable(sandbox));
        let Some((rank, sandbox)) = members.next() else { return Choice::Nothing };
        let left = if older == 0 { Some(rank) } else { members.nth(older - 1).map(|(rank, _)| rank) };
        match left {
            None => return Choice::Nothing,
            Some(left) if left.readiness > last => return Choice::Pending,
            Some(_) => {}
        }
        let (rank, sandbox) = (rank.clone(), sandbox.clone());
        state.reserved.insert(sandbox.metadata.uid.clone().unwrap_or_default());
        state.pools.get_mut(&pool_named_by(claim)).into_iter().for_each(|pool| _ = pool.free.remove(&rank));
        // It has what it waited for: younger claims need not leave a member for it.
        state.served(&Key::of(claim));
        Choice::Reserved(Reservation { candidates: self.clone(), sandbox })
    }

    /// Reserves this very member; `None` if another claim is about to take it.
    pub fn reserve_this(self: &Arc<Self>, sandbox: &Arc<Sandbox>) -> Option<Reservation> {
        let mut state = self.lock();
        let uid = sandbox.metadata.uid.clone().unwrap_or_default();
        state.reserved.insert(uid).then(|| {
            state.hide(&Key::of(&**sandbox));
            Reservation { candidates: self.clone(), sandbox: sandbox.clone() }
        })
    }

    fn release(&self, sandbox: &Sandbox) {
        let mut state = self.lock();
        let uid = sandbox.metadata.uid.as_deref().unwrap_or_default();
        state.reserved.remove(uid);
        let key = Key::of(sandbox);
        // Another Sandbox may have its name by now.
        let known =
            state.members.get(&key).filter(|member| member.sandbox.metadata.uid.as_deref() == Some(uid));
        if let Some((pool, sandbox)) = known.map(|member| (member.pool.clone(), member.sandbox.clone())) {
            state.insert(pool.clone(), sandbox);
            self.wake(&state, &pool);
        }
    }

    /// Puts as many claims to work as there are members that can be taken.
    fn wake(&self, state: &State, pool: &Key) {
        let Some(pool) = state.pools.get(pool) else { return };
        let usable = pool.free.keys().take_while(|rank| rank.readiness < Readiness::Starting);
        pool.waiting.values().zip(usable).for_each(|(claim, _)| self.queue.add(claim.clone()));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn insert(&mut self, pool: Key, sandbox: Arc<Sandbox>) {
        let key = Key::of(&*sandbox);
        self.remove(&key);
        let rank = Rank::of(&sandbox);
        if !self.reserved.contains(sandbox.metadata.uid.as_deref().unwrap_or_default()) {
            self.pools.entry(pool.clone()).or_default().free.insert(rank.clone(), sandbox.clone());
        }
        self.members.insert(key, Member { pool, rank, sandbox });
    }

    fn remove(&mut self, sandbox: &Key) {
        self.hide(sandbox);
        if let Some(member) = self.members.remove(sandbox) {
            self.forget_if_empty(&member.pool);
        }
    }

    /// Takes a member away from those that can be reserved.
    fn hide(&mut self, sandbox: &Key) {
        let Some(member) = self.members.get(sandbox) else { return };
        if let Some(pool) = self.pools.get_mut(&member.pool) {
            pool.free.remove(&member.rank);
        }
    }

    /// Ends the wait of a claim; returns the pool that it waited for.
    fn served(&mut self, claim: &Key) -> Option<Key> {
        let (pool, turn) = self.turns.remove(claim)?;
        self.pools.get_mut(&pool).into_iter().for_each(|pool| _ = pool.waiting.remove(&turn));
        self.forget_if_empty(&pool);
        Some(pool)
    }

    fn forget_if_empty(&mut self, pool: &Key) {
        if self.pools.get(pool).is_some_and(|pool| pool.free.is_empty() && pool.waiting.is_empty()) {
            self.pools.remove(pool);
        }
    }
}

impl Rank {
    fn of(sandbox: &Sandbox) -> Self {
        let addressed = sandbox.status.as_ref().is_some_and(|status| !status.pod_ips.is_empty());
        let readiness = match (addressed, sandbox.is_ready()) {
            (true, true) => Readiness::Ready,
            (true, false) => Readiness::Running,
            (false, _) => Readiness::Starting,
        };
        let created = sandbox.metadata.creation_timestamp.as_ref().map(|time| time.0);
        Self { readiness, created, name: sandbox.metadata.name.clone().unwrap_or_default() }
    }
}
