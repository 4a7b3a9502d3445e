//! Members that do not become Ready: given time, held, or replaced.

use std::time::Duration;

use serde_json::json;

use super::world::*;
use crate::warm_pool::plan::Report;

const GRACE: i64 = 300;

/// WP-20, WP-23
#[test]
fn member_that_had_its_time_is_deleted_and_replaced_in_the_next_pass() {
    for stuck in [member("a"), with_ready(member("a"), "False"), with_ready(member("a"), "Unknown")] {
        let mut world = World::new(json!({}), vec![stuck]);
        world.now = at(GRACE + 1);
        assert_eq!(world.counts(), (0, 1));
        assert_eq!(world.counts(), (1, 0));
    }
}

/// WP-21, WP-24
#[test]
fn young_member_is_kept_and_looked_at_when_its_grace_ends() {
    let mut world = World::new(json!({"replicas": 2}), vec![member("a"), ready(member("b"))]);
    world.sandboxes.push(made_from(&template(json!({})), "later", at(5)));
    world.pool = pool(json!({"replicas": 3}));
    let plan = world.plan();
    assert_eq!((plan.create, plan.deletions), (None, vec![]));
    assert_eq!(
        plan.look_again,
        Some(Duration::from_secs(290 + 2)),
        "the earliest deadline, and a moment more"
    );
    world.now = at(GRACE);
    assert_eq!(world.plan().deletions, [], "exactly the grace is within it");
    world.sandboxes = world.sandboxes.into_iter().map(ready).collect();
    assert_eq!(world.plan().look_again, None, "a pool that is all Ready asks for nothing");
}

/// WP-24
#[test]
fn looks_are_spread() {
    let world = World::new(json!({}), vec![member("a")]);
    let seen = crate::warm_pool::plan::Seen {
        sandboxes: world.sandboxes.iter().cloned().map(std::sync::Arc::new).collect(),
        ..Default::default()
    };
    for (jitter, seconds) in [(0.0, 292), (0.5, 365), (1.0, 438)] {
        let plan =
            crate::warm_pool::plan::plan(&world.pool, &seen, &world.memory, &world.settings, at(10), jitter);
        assert_eq!(plan.look_again, Some(Duration::from_secs(seconds)));
    }
}

/// WP-22, WP-25
#[test]
fn unschedulable_member_is_held_and_told_once() {
    let mut world = World::new(json!({"replicas": 2}), vec![unschedulable(member("a")), ready(member("b"))]);
    assert_eq!(world.pass().report, None, "within its grace");
    world.now = at(GRACE + 2);
    let plan = world.pass();
    let grace = Duration::from_secs(300);
    assert_eq!(plan.report, Some(Report::NotProgressing { held: 1, members: 2, grace }));
    assert_eq!((plan.create, plan.deletions), (None, vec![]));
    assert_eq!(plan.look_again, Some(Duration::from_secs(60)));
    assert_eq!((world.status().replicas, world.status().ready_replicas), (2, 1));
    assert_eq!(world.pass().report, None, "not repeated");
    world.sandboxes[0] = ready(world.sandboxes[0].clone());
    let plan = world.pass();
    assert_eq!((plan.report, plan.look_again), (Some(Report::Progressing), None));
    assert_eq!(world.pass().report, None);
}

/// Weak spot 2 of the reference: templates whose names have one hash share their NetworkPolicies.
#[test]
fn nothing_is_made_from_a_refused_template_and_that_is_told_once() {
    let mut world = World::new(json!({"replicas": 2}), vec![ready(member("a"))]);
    world.refusal = Some("another was first".to_owned());
    let plan = world.pass();
    assert_eq!((plan.create, plan.deletions), (None, vec![]), "what is there stays");
    assert_eq!(plan.report, Some(Report::Refused("another was first".to_owned())));
    assert_eq!(plan.look_again, Some(Duration::from_secs(60)), "nobody tells when the other goes");
    assert_eq!(world.pass().report, None, "not repeated");
    world.refusal = None;
    assert!(world.pass().create.is_some());
}

/// WP-26
#[test]
fn grace_and_recheck_can_be_chosen() {
    let mut world = World::new(json!({}), vec![unschedulable(member("a"))]);
    world.settings.readiness_grace = Duration::from_secs(5);
    world.settings.unschedulable_recheck = Duration::from_secs(7);
    let plan = world.plan();
    assert_eq!(plan.look_again, Some(Duration::from_secs(7)));
    assert!(plan.report.is_some());
    world.sandboxes = vec![member("a")];
    assert_eq!(world.plan().deletions.len(), 1);
}
