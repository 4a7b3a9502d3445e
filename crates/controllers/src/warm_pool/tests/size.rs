//! How many members a pool has, who counts as one, and how fast they come.

use std::time::Duration;

use serde_json::json;

use super::world::*;
use asb_types::key;

fn ready_members(count: usize) -> Vec<asb_types::Sandbox> {
    (0..count).map(|n| ready(member(&format!("m{n}")))).collect()
}

/// WP-01
#[test]
fn pool_is_filled_and_emptied_to_its_size() {
    for (replicas, there, created, deleted) in [
        (json!(null), 0, 1, 0),
        (json!(3), 0, 3, 0),
        (json!(3), 1, 2, 0),
        (json!(3), 5, 0, 2),
        (json!(3), 3, 0, 0),
        (json!(0), 2, 0, 2),
    ] {
        let mut world = World::new(json!({"replicas": replicas}), ready_members(there));
        assert_eq!(world.counts(), (created, deleted), "{there} of {replicas}");
        assert_eq!(world.counts(), (0, 0), "settled");
    }
}

/// WP-02, WP-04, WP-05, WP-06
#[test]
fn status_tells_what_is_there() {
    let mut sandboxes = ready_members(2);
    sandboxes.push(with_ready(member("false"), "False"));
    sandboxes.push(with_ready(member("unknown"), "Unknown"));
    sandboxes.push(member("silent"));
    sandboxes.push(claimed(ready(member("taken"))));
    sandboxes.push(leaving(ready(member("leaving"))));
    let mut world = World::new(json!({"replicas": 5}), sandboxes);
    let status = world.status();
    assert_eq!((status.replicas, status.ready_replicas, status.observed_generation), (5, 2, Some(4)));
    let selector = format!("agents.x-k8s.io/warm-pool-sandbox={}", pool_hash());
    assert_eq!(status.selector.as_deref(), Some(selector.as_str()));
    world.sandboxes.clear();
    let empty = json!(world.status());
    assert_eq!((&empty["replicas"], &empty["readyReplicas"]), (&json!(0), &json!(0)), "zero is said");
    assert_eq!(empty["selector"], selector);
}

/// WP-03
#[test]
fn orphans_are_adopted_and_others_left_alone() {
    let unlabelled = edit(&ready(member("old")), json!({"metadata": {"labels": {key::LAUNCH_TYPE: null}}}));
    let sandboxes = vec![orphan(ready(member("orphan"))), unlabelled, claimed(ready(member("taken")))];
    let mut world = World::new(json!({"replicas": 2}), sandboxes);
    let before = world.sandboxes[2].clone();
    let plan = world.pass();
    assert_eq!((plan.create, plan.deletions), (None, vec![]), "both count as members");
    assert!(
        plan.patches.iter().all(|(_, patch)| patch["metadata"]["resourceVersion"] == "1"),
        "bound to what was seen"
    );
    for sandbox in &world.sandboxes[..2] {
        assert!(is_ours(sandbox));
        assert_eq!(sandbox.metadata.labels.as_ref().unwrap()[key::LAUNCH_TYPE], "warm");
    }
    assert_eq!(world.sandboxes[2], before);
    assert_eq!(world.counts(), (0, 0));
}

#[test]
fn surplus_goes_by_readiness_then_by_age() {
    let born = |name: &str, second| made_from(&template(json!({})), name, at(second));
    let sandboxes =
        vec![ready(born("old", 1)), ready(born("new", 9)), born("starting", 2), ready(born("middle", 5))];
    let mut world = World::new(json!({"replicas": 3}), sandboxes);
    world.pass();
    assert!(!world.names().contains(&"starting"), "what is not Ready goes first");
    world.pool = pool(json!({"replicas": 2}));
    world.pass();
    assert!(!world.names().contains(&"new"), "then the youngest");
}

#[test]
fn one_pass_makes_and_deletes_no_more_than_a_batch() {
    let mut world = World::new(json!({"replicas": 5}), vec![]);
    world.settings.max_batch_size = 2;
    assert_eq!([world.counts(), world.counts(), world.counts()], [(2, 0), (2, 0), (1, 0)]);
    world.pool = pool(json!({"replicas": 0}));
    assert_eq!([world.counts(), world.counts(), world.counts()], [(0, 2), (0, 2), (0, 1)]);
}

/// WP-62
#[test]
fn member_on_its_way_out_holds_its_place() {
    let mut world = World::new(json!({"replicas": 2}), vec![ready(member("a")), leaving(ready(member("b")))]);
    assert_eq!(world.counts(), (0, 0));
    assert_eq!(world.status().replicas, 1);
    world.sandboxes.pop();
    assert_eq!(world.counts(), (1, 0));
}

#[test]
fn pool_without_its_template_makes_nothing_but_still_shrinks() {
    let mut world = World::new(json!({"replicas": 3}), ready_members(2));
    world.template = None;
    assert_eq!(world.counts(), (0, 0));
    world.pool = pool(json!({"replicas": 1}));
    assert_eq!(world.counts(), (0, 1));
}

/// WP-51, WP-52, WP-54
#[test]
fn pool_waits_before_it_replaces_what_was_taken() {
    let mut world = World::new(json!({"replicas": 3}), vec![]);
    world.settings.replenish_delay = Duration::from_secs(10);
    assert_eq!(world.counts(), (3, 0), "the first fill is not delayed");
    world.sandboxes = world.sandboxes.into_iter().map(ready).collect();
    world.pass();
    world.sandboxes[0] = claimed(world.sandboxes[0].clone());
    let plan = world.pass();
    assert_eq!((plan.create, plan.look_again), (None, Some(Duration::from_secs(10))));
    assert_eq!(world.status().replicas, 2, "the status stays true");
    world.now = at(14);
    assert_eq!(world.plan().look_again, Some(Duration::from_secs(6)));
    world.sandboxes[1] = made_from(&template(json!({})), "stuck", at(-1000));
    assert_eq!(world.counts(), (0, 1), "stuck members still go");
    world.now = at(60);
    assert_eq!(world.counts(), (2, 0));
    world.settings.replenish_delay = Duration::ZERO;
    world.sandboxes.pop();
    assert_eq!(world.counts(), (1, 0), "without a delay, at once");
}

/// WP-57, WP-59
#[test]
fn refill_follows_its_rate() {
    let mut world = World::new(json!({"replicas": 5}), vec![]);
    world.settings.max_refill_rate = 2.0;
    let plan = world.pass();
    assert_eq!((plan.create.unwrap().1, world.sandboxes.len()), (2, 2));
    assert_eq!(plan.look_again, None, "a partial grant asks for no timer: the members wake the pool");
    let plan = world.pass();
    assert_eq!((plan.create, plan.look_again), (None, Some(Duration::from_millis(500))));
    world.now = at(10) + Duration::from_millis(500);
    assert_eq!(world.counts(), (1, 0));
    world.now = at(12);
    assert_eq!(world.counts(), (2, 0));

    world.settings.replenish_delay = Duration::from_secs(5);
    world.pass();
    world.now = at(20);
    world.sandboxes.truncate(1);
    let before = world.memory.pace.clone();
    assert_eq!(world.counts(), (0, 0), "held");
    world.now = at(25);
    assert_eq!(world.counts(), (2, 0), "the bucket was not touched: {before:?}");
}
