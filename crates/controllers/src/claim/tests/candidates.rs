//! Members are given out once each, best first, and to the oldest claim.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use asb_types::{Claim, Sandbox};
use futures::FutureExt;
use proptest::prelude::*;
use serde_json::json;

use super::world::*;
use crate::Config;
use crate::claim::candidates::{Candidates, Choice, Reservation};
use crate::object::Key;
use crate::queue::Queue;

struct Pool {
    candidates: Arc<Candidates>,
    queue: Arc<Queue<Key>>,
}

impl Pool {
    fn of(members: Vec<Sandbox>) -> Self {
        let queue = Arc::new(Queue::new("test", 1, &Config::default()));
        let pool = Self { candidates: Candidates::new(queue.clone()), queue };
        members.into_iter().for_each(|member| pool.see(member));
        pool
    }

    fn see(&self, member: Sandbox) {
        let member = Arc::new(member);
        self.candidates.observe(Some(&member), Some(&member));
    }

    fn gone(&self, member: Sandbox) {
        self.candidates.observe(Some(&Arc::new(member)), None);
    }

    fn reserve(&self, claim: &Claim) -> Choice {
        self.candidates.reserve(claim, false, |_| true)
    }

    fn take(&self, name: &str) -> Option<Reservation> {
        match self.reserve(&claim(name, json!({}))) {
            Choice::Reserved(reservation) => Some(reservation),
            Choice::Pending | Choice::Nothing => None,
        }
    }

    /// The claims that were put to work since the last look.
    fn woken(&self) -> Vec<String> {
        let mut woken = Vec::new();
        while let Some(Some(key)) = self.queue.next().now_or_never() {
            self.queue.finish(key.clone(), crate::queue::Outcome::Done);
            woken.push(key.name);
        }
        woken
    }
}

fn name(reservation: Option<&Reservation>) -> &str {
    reservation.and_then(|it| it.sandbox.metadata.name.as_deref()).unwrap_or("nothing")
}

fn born(name: &str, second: i64) -> Claim {
    claim(name, json!({"metadata": {"creationTimestamp": at(second).to_string()}}))
}

/// CL-070, CL-072, CL-130
#[test]
fn ready_members_come_first_and_older_ones_before_younger() {
    let pool = Pool::of(vec![
        running(member("running", 1)),
        ready(member("young", 9)),
        member("starting", 0),
        ready(member("old", 5)),
    ]);
    let held: Vec<_> = (0..4).map(|n| pool.take(&format!("c{n}"))).collect();
    let names: Vec<_> = held.iter().map(|it| name(it.as_ref())).collect();
    assert_eq!(names, ["old", "young", "running", "nothing"]);
}

/// CL-073, CL-080
#[test]
fn member_without_an_address_is_waited_for() {
    let pool = Pool::of(vec![member("m", 1)]);
    assert!(matches!(pool.reserve(&claim("c", json!({}))), Choice::Pending));
    pool.see(running(member("n", 2)));
    assert_eq!(name(pool.take("c").as_ref()), "n");
    assert!(matches!(Pool::of(vec![]).reserve(&claim("c", json!({}))), Choice::Nothing));
}

#[test]
fn ready_only_waits_for_members_that_merely_run() {
    let pool = Pool::of(vec![running(member("m", 1))]);
    let choice = |pool: &Pool| pool.candidates.reserve(&claim("c", json!({})), true, |_| true);
    assert!(matches!(choice(&pool), Choice::Pending));
    pool.see(ready(member("m", 1)));
    assert!(matches!(choice(&pool), Choice::Reserved(_)));
}

/// Weak spot 3 of the reference: what one claim sets aside is hidden from nobody.
#[test]
fn member_that_a_claim_will_not_have_stays_for_others() {
    let pool = Pool::of(vec![ready(member("stale", 1)), ready(member("fresh", 2))]);
    let fresh = |sandbox: &Sandbox| sandbox.metadata.name.as_deref() == Some("fresh");
    let Choice::Reserved(held) = pool.candidates.reserve(&claim("c", json!({})), false, fresh) else {
        panic!("there is a fresh one")
    };
    assert_eq!(name(Some(&held)), "fresh");
    assert_eq!(name(pool.take("d").as_ref()), "stale");
}

/// CL-087, CL-130: pools are told apart by namespace and name
#[test]
fn other_pools_and_namespaces_are_out_of_reach() {
    let pool = Pool::of(vec![ready(member("m", 1))]);
    for elsewhere in
        [json!({"metadata": {"namespace": "other"}}), json!({"spec": {"warmPoolRef": {"name": "ns/pool"}}})]
    {
        assert!(matches!(pool.reserve(&claim("c", elsewhere)), Choice::Nothing));
    }
}

/// CL-124
#[test]
fn member_that_is_gone_taken_or_leaving_is_not_given_out() {
    let m = || ready(member("m", 1));
    let pool = Pool::of(vec![m()]);
    pool.gone(m());
    assert!(pool.take("c").is_none());
    for lost in [leaving(m()), taken_by(m(), &claim("x", json!({})))] {
        let pool = Pool::of(vec![m(), lost]);
        assert!(pool.take("c").is_none());
    }
}

#[test]
fn dropped_reservation_gives_the_member_back_as_it_is_now() {
    let pool = Pool::of(vec![ready(member("m", 1)), ready(member("n", 2))]);
    let held = pool.take("c");
    pool.see(running(member("m", 1)));
    assert_eq!(name(pool.take("d").as_ref()), "n", "held by c, whatever the watch tells");
    drop(held);
    let again = [pool.take("e"), pool.take("f")];
    assert_eq!(
        again.iter().map(|it| name(it.as_ref())).collect::<Vec<_>>(),
        ["n", "m"],
        "it is not Ready any more"
    );
}

#[test]
fn chosen_member_is_reserved_once() {
    let m = Arc::new(ready(member("m", 1)));
    let pool = Pool::of(vec![(*m).clone()]);
    let held = pool.candidates.reserve_this(&m);
    assert!(held.is_some() && pool.candidates.reserve_this(&m).is_none() && pool.take("c").is_none());
    drop(held);
    assert_eq!(name(pool.take("c").as_ref()), "m");
}

/// Fewer members than claims: the oldest claims get them, in whatever order they are worked on.
#[test]
fn oldest_claim_gets_the_last_member() {
    let pool = Pool::of(vec![ready(member("m", 1)), ready(member("n", 2))]);
    let claims = [born("first", 10), born("second", 11), born("third", 11)];
    claims.iter().rev().for_each(|claim| pool.candidates.wait(claim));
    // Of the same second: in the order in which they came.
    assert!(matches!(pool.reserve(&claims[1]), Choice::Nothing), "first and third come before it");
    let Choice::Reserved(third) = pool.reserve(&claims[2]) else { panic!("one is left for the first") };
    assert!(matches!(pool.reserve(&claims[1]), Choice::Nothing));
    let Choice::Reserved(first) = pool.reserve(&claims[0]) else { panic!("it is the oldest") };
    assert_eq!([name(Some(&third)), name(Some(&first))], ["m", "n"]);
}

/// CL-080, CL-081: the older claim takes the member that is here, the younger waits for the one that starts
#[test]
fn younger_claim_waits_for_members_that_start() {
    let pool = Pool::of(vec![ready(member("here", 1)), member("starting", 2)]);
    let (old, young) = (born("old", 10), born("young", 11));
    [&old, &young].into_iter().for_each(|claim| pool.candidates.wait(claim));
    let youngest = born("youngest", 12);
    pool.candidates.wait(&youngest);
    assert!(matches!(pool.reserve(&young), Choice::Pending), "the one that is here is for the older claim");
    assert!(matches!(pool.reserve(&youngest), Choice::Nothing), "there is none for it to wait for");
    let held = pool.reserve(&old);
    assert!(matches!(held, Choice::Reserved(_)));
    assert!(matches!(pool.reserve(&young), Choice::Pending));
    pool.see(running(member("starting", 2)));
    assert!(matches!(pool.reserve(&young), Choice::Reserved(_)));
}

#[test]
fn claim_that_waits_no_longer_blocks_nobody() {
    let pool = Pool::of(vec![ready(member("m", 1))]);
    let (old, young) = (born("old", 10), born("young", 11));
    [&old, &young].into_iter().for_each(|claim| pool.candidates.wait(claim));
    pool.woken();
    assert!(matches!(pool.reserve(&young), Choice::Nothing));
    pool.candidates.served(&Key::of(&old));
    assert_eq!(pool.woken(), ["young"]);
    assert!(matches!(pool.reserve(&young), Choice::Reserved(_)));
}

/// CL-082: without waiting for a timer
#[test]
fn member_that_becomes_usable_wakes_the_claims_that_wait_for_one() {
    let pool = Pool::of(vec![member("m", 1), member("n", 1)]);
    [born("b", 11), born("a", 10), born("c", 12)].iter().for_each(|claim| pool.candidates.wait(claim));
    assert!(pool.woken().is_empty());
    pool.see(ready(member("m", 1)));
    assert_eq!(pool.woken(), ["a"]);
    pool.see(running(member("n", 1)));
    assert_eq!(pool.woken(), ["a", "b"]);
}

/// The price of taking a member does not grow with the number of Sandboxes.
#[test]
fn choosing_costs_the_same_among_many() {
    let price = |count: i64| {
        let one = ready(member("m", 0));
        let named = |n: i64| {
            let mut sandbox = one.clone();
            sandbox.metadata.name = Some(format!("m{n}"));
            sandbox.metadata.uid = Some(format!("uid-{n}"));
            sandbox
        };
        let pool = Pool::of((0..count).map(named).collect());
        let claim = claim("c", json!({}));
        let rounds = (0..200).map(|_| {
            let started = std::time::Instant::now();
            assert!(matches!(pool.reserve(&claim), Choice::Reserved(_)));
            started.elapsed()
        });
        rounds.min().unwrap()
    };
    let (few, many) = (price(100), price(20_000));
    println!("one of 100: {few:?}, one of 20,000: {many:?}");
    assert!(many < few * 10, "one of 100: {few:?}, one of 20,000: {many:?}");
}

/// One thing that can happen to the index.
#[derive(Debug, Clone)]
enum Event {
    See(usize, u8),
    Gone(usize),
    Wait(usize),
    Served(usize),
    Reserve(usize),
    Release(usize),
    Transfer(usize),
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (0..6_usize, 0..4_u8).prop_map(|(member, state)| Event::See(member, state)),
        (0..6_usize).prop_map(Event::Gone),
        (0..5_usize).prop_map(Event::Wait),
        (0..5_usize).prop_map(Event::Served),
        (0..5_usize).prop_map(Event::Reserve),
        (0..5_usize).prop_map(Event::Release),
        (0..5_usize).prop_map(Event::Transfer),
    ]
}

fn in_state(member_: usize, state: u8) -> Sandbox {
    let sandbox = member(&format!("m{member_}"), i64::try_from(member_).unwrap());
    match state {
        0 => ready(sandbox),
        1 => running(sandbox),
        2 => sandbox,
        _ => leaving(sandbox),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() })]

    /// Whatever is seen, reserved and given back in whatever order: no member is ever in two hands, none is given
    /// out that is not there, and in the end every one that is free can be had.
    #[test]
    fn no_member_is_given_out_twice_and_none_is_lost(events in prop::collection::vec(any_event(), 0..60)) {
        let pool = Pool::of(vec![]);
        let mut known: BTreeMap<usize, u8> = BTreeMap::new();
        let mut held: BTreeMap<usize, Reservation> = BTreeMap::new();
        let index = |reservation: &Reservation| -> usize {
            name(Some(reservation))[1..].parse().unwrap()
        };
        let claim = |n: usize| born(&format!("c{n}"), i64::try_from(n).unwrap());
        for event in events {
            match event {
                Event::See(member, state) => {
                    known.insert(member, state);
                    pool.see(in_state(member, state));
                }
                Event::Gone(member) => {
                    known.remove(&member);
                    pool.gone(in_state(member, 0));
                }
                Event::Wait(n) => pool.candidates.wait(&claim(n)),
                Event::Served(n) => pool.candidates.served(&Key::of(&claim(n))),
                Event::Reserve(n) => {
                    if let Choice::Reserved(reservation) = pool.reserve(&claim(n)) {
                        let member = index(&reservation);
                        prop_assert!(held.values().all(|other| index(other) != member), "in two hands");
                        prop_assert!(known.get(&member).is_some_and(|state| *state < 2), "nothing to give");
                        held.insert(n, reservation);
                    }
                }
                Event::Release(n) => drop(held.remove(&n)),
                Event::Transfer(n) => {
                    if let Some(reservation) = held.remove(&n) {
                        known.remove(&index(&reservation));
                        pool.see(taken_by((*reservation.sandbox).clone(), &claim(n)));
                    }
                }
            }
        }
        held.clear();
        (0..5).for_each(|n| pool.candidates.served(&Key::of(&claim(n))));
        let rest: Vec<_> = std::iter::from_fn(|| pool.take("last")).collect();
        let usable: BTreeSet<usize> = known.iter().filter(|(_, state)| **state < 2).map(|(member, _)| *member).collect();
        prop_assert_eq!(rest.iter().map(index).collect::<BTreeSet<_>>(), usable);
        prop_assert_eq!(rest.len(), rest.iter().map(index).collect::<BTreeSet<_>>().len());
    }
}
