//! The planner by tables, and by property: whatever containers do, the order holds and it comes to rest.

use super::*;
use proptest::prelude::*;

const START: SystemTime = SystemTime::UNIX_EPOCH;
const NONE: [usize; 0] = [];

fn at(seconds: u64) -> SystemTime {
    START + Duration::from_secs(seconds)
}

fn rules(roles: &[Role], policy: Policy) -> Rules {
    Rules { roles: roles.to_vec(), images: vec![String::new(); roles.len()], policy, deadline: None }
}

fn doing(doing: Doing) -> Seen {
    Seen { doing, ..Seen::default() }
}

fn absent() -> Seen {
    Seen::default()
}

fn running() -> Seen {
    doing(Doing::Running(Running {
        since: START,
        greeted: true,
        started: true,
        ready: true,
        stopping: false,
        restart: false,
    }))
}

fn ended(code: i32) -> Seen {
    let mut seen = running();
    seen.ended(Finished::new(Exit::Code(code), START, at(1), 0));
    seen
}

fn with(seen: Seen, change: impl FnOnce(&mut Running)) -> Seen {
    let Doing::Running(mut it) = seen.doing else { panic!("does not run") };
    change(&mut it);
    doing(Doing::Running(it))
}

use Policy::{Always, Never, OnFailure};
use Role::{Ephemeral, Init, Main, Sidecar};

#[test]
fn containers_begin_in_order() {
    let roles = [Init, Sidecar, Init, Main, Main];
    let starts = |seen: &[Seen]| plan(&rules(&roles, Always), seen, false, at(2)).start;
    let a = absent;
    for (seen, expected) in [
        ([a(), a(), a(), a(), a()], Some(0)),
        ([running(), a(), a(), a(), a()], None),
        ([ended(0), a(), a(), a(), a()], Some(1)),
        ([ended(0), with(running(), |it| it.started = false), a(), a(), a()], None),
        ([ended(0), running(), a(), a(), a()], Some(2)),
        ([ended(0), running(), doing(Doing::Starting), a(), a()], None),
        ([ended(0), ended(1), running(), a(), a()], Some(1)),
        ([ended(0), running(), ended(0), a(), a()], Some(3)),
        ([ended(0), running(), ended(0), with(running(), |it| it.greeted = false), a()], None),
        ([ended(0), running(), ended(0), running(), a()], Some(4)),
        ([ended(0), ended(0), ended(0), running(), running()], Some(1)),
        ([ended(0), running(), ended(0), running(), running()], None),
        ([a(), running(), a(), running(), running()], None),
    ] {
        assert_eq!(starts(&seen), expected, "{seen:?}");
    }
}

#[test]
fn restart_policy_decides_what_follows_an_end() {
    for (policy, code, start, outcome) in [
        (Always, 0, Some(0), None),
        (Always, 1, Some(0), None),
        (OnFailure, 0, None, Some(Outcome::Succeeded)),
        (OnFailure, 1, Some(0), None),
        (Never, 0, None, Some(Outcome::Succeeded)),
        (Never, 1, None, Some(Outcome::Failed)),
    ] {
        let plan = plan(&rules(&[Main], policy), &[ended(code)], false, at(2));
        assert_eq!((plan.start, plan.outcome), (start, outcome), "{policy:?} {code}");
    }
    let init = |policy| plan(&rules(&[Init, Main], policy), &[ended(1), absent()], false, at(2));
    assert_eq!(init(Never).outcome, Some(Outcome::Failed));
    assert_eq!((init(Always).start, init(OnFailure).start), (Some(0), Some(0)));
}

#[test]
fn container_that_a_probe_has_killed_starts_again_whatever_its_exit_code() {
    for (policy, killed, code, start, outcome) in [
        (Always, true, 0, Some(0), None),
        (OnFailure, true, 0, Some(0), None),
        (OnFailure, true, 143, Some(0), None),
        (OnFailure, false, 0, None, Some(Outcome::Succeeded)),
        (Never, true, 0, None, Some(Outcome::Succeeded)),
        (Never, true, 143, None, Some(Outcome::Failed)),
    ] {
        let rules = rules(&[Main], policy);
        let restart = killed && rules.restarts_unhealthy();
        let mut seen = with(running(), |it| (it.stopping, it.restart) = (true, restart));
        seen.ended(Finished::new(Exit::Code(code), START, at(1), 0));
        let plan = plan(&rules, &[seen], false, at(2));
        assert_eq!((plan.start, plan.outcome), (start, outcome), "{policy:?} {killed} {code}");
    }
}

#[test]
fn container_whose_image_is_another_one_now_is_replaced() {
    let other = |seen: Seen| Seen { image: "before".to_owned(), ..seen };
    let all = [other(running()), other(running()), running(), other(running())];
    for policy in [Always, OnFailure, Never] {
        let plan = plan(&rules(&[Init, Sidecar, Main, Main], policy), &all, false, at(2));
        assert_eq!((plan.replace, plan.stop), (vec![1, 3], vec![]), "{policy:?}");
    }
    for (seen, refused) in [
        (other(with(running(), |it| it.stopping = true)), false),
        (other(ended(0)), false),
        (other(running()), true),
    ] {
        assert_eq!(plan(&rules(&[Main], Never), &[seen], refused, at(2)).replace, NONE);
    }
    let mut replaced = other(with(running(), |it| (it.stopping, it.restart) = (true, true)));
    replaced.failures = 3;
    replaced.forgive();
    replaced.ended(Finished::new(Exit::Code(0), START, at(1), 0));
    assert_eq!(plan(&rules(&[Main], Never), &[replaced], false, at(1)).start, Some(0), "at once");
}

#[test]
fn pod_with_one_end_goes_on_for_as_long_as_another_container_runs() {
    let plan = plan(&rules(&[Main, Main], Never), &[ended(1), running()], false, at(2));
    assert_eq!(plan, Plan::default());
}

#[test]
fn sidecars_are_stopped_after_the_main_ones_and_the_last_first() {
    let rules = rules(&[Sidecar, Sidecar, Main], Never);
    let stops = |seen: &[Seen]| plan(&rules, seen, false, at(2)).stop;
    assert_eq!(stops(&[running(), running(), running()]), NONE);
    assert_eq!(stops(&[running(), running(), ended(0)]), [1]);
    assert_eq!(stops(&[running(), with(running(), |it| it.stopping = true), ended(0)]), NONE);
    assert_eq!(stops(&[running(), ended(0), ended(0)]), [0]);
    assert_eq!(stops(&[ended(0), ended(0), ended(0)]), NONE);
}

#[test]
fn restarts_pause_longer_and_longer_and_a_good_run_forgives() {
    let mut seen = running();
    let mut pause_after = |from: u64, to: u64| {
        seen.ended(Finished::new(Exit::Code(1), at(from), at(to), 0));
        seen.not_before.unwrap().duration_since(at(to)).unwrap().as_secs()
    };
    let pauses: Vec<_> = (0..8).map(|_| pause_after(0, 1)).collect();
    assert_eq!(pauses, [0, 10, 20, 40, 80, 160, 300, 300]);
    assert_eq!(pause_after(0, 600), 0);
    let early = plan(&rules(&[Main], Always), &[seen.clone()], false, at(599));
    assert_eq!((early.start, early.wake), (None, Some(at(600))));
}

#[test]
fn one_container_that_waits_holds_up_no_other_main_one() {
    let waits = Seen { not_before: Some(at(9)), ..absent() };
    let plan = plan(&rules(&[Main, Main], Always), &[waits, absent()], false, at(2));
    assert_eq!((plan.start, plan.wake), (Some(1), Some(at(9))));
}

#[test]
fn deadline_ends_what_runs_but_not_what_ended_before() {
    let rules = Rules { deadline: Some(at(5)), ..rules(&[Sidecar, Main], Never) };
    let early = plan(&rules, &[running(), running()], false, at(4));
    assert_eq!((early.stop.len(), early.wake), (0, Some(at(5))));
    let late = plan(&rules, &[running(), running()], false, at(5));
    assert_eq!((late.stop, late.outcome), (vec![1], Some(Outcome::DeadlineExceeded)));
    let mut killed = running();
    killed.ended(Finished::new(Exit::Code(0), START, at(6), 0));
    let after = plan(&rules, &[ended(0), killed], false, at(9));
    assert_eq!(after.outcome, Some(Outcome::DeadlineExceeded), "that it ended well came too late");
    assert_eq!(plan(&rules, &[ended(0), ended(0)], false, at(9)).outcome, Some(Outcome::Succeeded));
}

#[test]
fn refused_pod_starts_nothing_and_stops_the_rest() {
    let plan = plan(&rules(&[Main, Main], Always), &[running(), absent()], true, at(1));
    assert_eq!((plan.start, plan.stop, plan.outcome), (None, vec![0], Some(Outcome::Refused)));
}

#[test]
fn an_added_container_is_started_once_whatever_the_others_do() {
    let rules = rules(&[Init, Main, Ephemeral], Always);
    let step = |seen: &[Seen]| plan(&rules, seen, false, at(1)).start;
    assert_eq!(step(&[running(), absent(), absent()]), Some(2), "while the Pod initializes");
    assert_eq!(step(&[ended(0), running(), absent()]), Some(2));
    assert_eq!(step(&[ended(0), running(), ended(1)]), None, "never again");
    assert_eq!(step(&[ended(0), ended(1), ended(1)]), Some(1), "unlike a main one");
    let never = Rules { policy: Never, ..rules.clone() };
    let over = plan(&never, &[ended(0), ended(0), running()], false, at(1));
    assert_eq!((over.stop, over.outcome), (vec![2], Some(Outcome::Succeeded)), "it does not keep the Pod");
}

fn any_role() -> impl Strategy<Value = Role> {
    prop_oneof![Just(Init), Just(Sidecar)]
}

proptest! {
    /// Plays Pods whose containers end as a list of exit codes says, and well after that.
    #[test]
    fn order_holds_and_every_pod_comes_to_rest(
        inits in prop::collection::vec(any_role(), 0..4),
        mains in 1..4_usize,
        policy in prop_oneof![Just(Always), Just(OnFailure), Just(Never)],
        codes in prop::collection::vec(0..2_i32, 0..12),
    ) {
        let roles: Vec<_> = inits.iter().copied().chain(std::iter::repeat_n(Main, mains)).collect();
        let rules = rules(&roles, policy);
        let mut seen = vec![Seen::default(); roles.len()];
        let (mut codes, mut now, mut turns) = (codes.into_iter(), START, 0);
        loop {
            turns += 1;
            prop_assert!(turns < 500, "never comes to rest: {seen:?}");
            let next = plan(&rules, &seen, false, now);
            if let Some(index) = next.start {
                let before = &seen[..index];
                if roles[index] == Main && !seen.iter().zip(&roles).any(|(one, role)| *role == Main && one.begun()) {
                    for (one, role) in before.iter().zip(&roles) {
                        let through = match role {
                            Init => matches!(&one.doing, Doing::Ended(end) if end.code == 0),
                            _ => one.has_started() || *role == Main,
                        };
                        prop_assert!(through, "a main container began before an init container was through");
                    }
                }
                seen[index].cleared();
                seen[index].not_before = None;
                seen[index].doing = running().doing;
                continue;
            }
            if !next.stop.is_empty() {
                for index in next.stop {
                    let others = seen.iter().zip(&roles).any(|(one, role)| *role != Sidecar && matches!(one.doing, Doing::Running(_)));
                    prop_assert!(roles[index] != Sidecar || !others, "a sidecar went first");
                    let restarts = seen[index].restarts;
                    seen[index].ended(Finished::new(Exit::Signal(15), now, now, restarts));
                }
                continue;
            }
            if let Some(time) = next.wake {
                now = time;
                continue;
            }
            // At rest: the first that is to end by itself does.
            let next = (0..seen.len()).find(|index| roles[*index] != Sidecar && matches!(seen[*index].doing, Doing::Running(_)));
            let code = codes.next();
            match (next, code) {
                (Some(index), code) if code.is_some() || policy != Always || roles[index] == Init => {
                    now += Duration::from_secs(1);
                    let restarts = seen[index].restarts;
                    seen[index].ended(Finished::new(Exit::Code(code.unwrap_or(0)), now, now, restarts));
                }
                _ => break,
            }
        }
        let settled = plan(&rules, &seen, false, now);
        prop_assert!(settled.start.is_none() && settled.stop.is_empty());
        if policy == Always {
            prop_assert!(roles.iter().zip(&seen).all(|(role, one)| *role == Init || one.has_started()));
        } else {
            prop_assert!(settled.outcome.is_some());
            prop_assert!(seen.iter().all(|one| !matches!(one.doing, Doing::Running(_))));
        }
    }
}

#[test]
fn pod_that_begins_again_runs_its_init_containers_again_before_all_others() {
    let roles = [Init, Sidecar, Init, Main];
    let starts = |seen: &[Seen]| plan(&rules(&roles, Always), seen, false, at(2)).start;
    let past = |seen: Seen| Seen { past: true, ..seen };
    let (done, killed) = (|| past(ended(0)), || past(ended(137)));
    for (seen, expected) in [
        ([done(), killed(), done(), killed()], Some(0)),
        ([running(), killed(), done(), killed()], None),
        ([ended(0), killed(), done(), killed()], Some(1)),
        ([ended(0), running(), done(), killed()], Some(2)),
        ([ended(0), running(), running(), killed()], None),
        ([ended(0), running(), ended(0), killed()], Some(3)),
        ([ended(0), ended(1), ended(0), running()], Some(1)),
    ] {
        assert_eq!(starts(&seen), expected, "{seen:?}");
    }
    let seen = [done(), killed(), done(), past(ended(0))];
    assert_eq!(plan(&rules(&roles, OnFailure), &seen, false, at(2)).outcome, Some(Outcome::Succeeded));
    assert_eq!(plan(&rules(&roles, Never), &seen, false, at(2)).start, None);
}
