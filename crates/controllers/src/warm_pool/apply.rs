//! Carries a plan out. The only effects of the SandboxWarmPool controller; it makes no choices.

use asb_types::{WarmPool, WarmPoolStatus};
use futures::future::join_all;
use serde_json::{Value, json};

use super::plan::Plan;
use super::{World, progress};
use crate::object::Key;
use crate::write::{self, Refused, Writer};

const MANAGER: &str = "sandboxwarmpool-controller";

/// What became of a plan.
#[derive(Debug, Default)]
pub struct Applied {
    pub created: usize,
    /// The event was not written.
    pub unreported: bool,
    /// Somebody else was faster; not worth a word.
    pub conflicts: usize,
    pub problems: Vec<String>,
}

/// Does everything that a plan says; what fails does not stop the rest.
pub async fn apply(world: &World, pool: &WarmPool, plan: &Plan) -> Applied {
    let Key { namespace, .. } = Key::of(pool);
    let writer = Writer { client: &world.client, namespace: &namespace, manager: MANAGER };
    let mut applied = Applied::default();
    for (name, patch) in &plan.patches {
        applied.note(writer.merge(name, patch, &world.caches.sandboxes).await);
    }
    let deletions = plan.deletions.clone();
    let (_, errors) =
        slow_start(deletions, |identity| writer.delete(identity, &world.caches.sandboxes)).await;
    errors.into_iter().for_each(|error| applied.note(Err(error)));
    if let Some((sandbox, count)) = &plan.create {
        let (created, errors) =
            slow_start(vec![(); *count], |()| writer.create(sandbox, &world.caches.sandboxes)).await;
        applied.created = created;
        errors.into_iter().for_each(|error| applied.note(Err(error)));
    }
    if let Some(report) = &plan.report {
        let reported = progress::report(&world.client, pool, report).await;
        applied.unreported = reported.is_err();
        applied.note(reported);
    }
    applied
}

/// Writes the status; fields that are gone are named with null, because a merge patch keeps the rest.
pub async fn write_status(
    world: &World,
    pool: &WarmPool,
    status: &WarmPoolStatus,
) -> Result<(), kube::Error> {
    let Key { namespace, name } = Key::of(pool);
    let writer = Writer { client: &world.client, namespace: &namespace, manager: MANAGER };
    let mut patch = json!(status);
    for field in ["conditions", "updatedReplicas"] {
        if patch.get(field).is_none() {
            patch[field] = Value::Null;
        }
    }
    writer.merge_status(&name, &patch, &world.caches.pools).await
}

/// Calls `act` for 1, 2, 4, 8… items at a time, so that one error costs one call and not hundreds.
///
/// Ends after the first batch with an error. Returns the number of successes and all errors.
async fn slow_start<T, W, E>(mut items: Vec<T>, act: impl Fn(T) -> W) -> (usize, Vec<E>)
where
    W: Future<Output = Result<(), E>>,
{
    let (mut done, mut errors, mut size) = (0, Vec::new(), 1);
    while !items.is_empty() && errors.is_empty() {
        let batch = items.drain(..size.min(items.len())).map(&act);
        for result in join_all(batch).await {
            match result {
                Ok(()) => done += 1,
                Err(error) => errors.push(error),
            }
        }
        size *= 2;
    }
    (done, errors)
}

impl Applied {
    fn note(&mut self, result: Result<(), kube::Error>) {
        match result {
            Err(error) if Refused::by(&error) == Refused::Conflict => self.conflicts += 1,
            Err(error) => self.problems.push(write::message(&error)),
            Ok(()) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// WP-50
    #[tokio::test]
    async fn batches_double_and_stop_after_one_with_an_error() {
        for (count, fails_at, calls, done) in [(14, None, 14, 14), (0, None, 0, 0), (14, Some(5), 7, 6)] {
            let called = RefCell::new(0);
            let act = |item: usize| {
                *called.borrow_mut() += 1;
                async move { if Some(item) == fails_at { Err("no") } else { Ok(()) } }
            };
            let (succeeded, errors) = slow_start((0..count).collect(), act).await;
            assert_eq!((*called.borrow(), succeeded), (calls, done), "{count} items, {fails_at:?} fails");
            assert_eq!(errors.len(), usize::from(fails_at.is_some()));
        }
    }

    /// WP-50: who drops the work stops it before the next batch
    #[tokio::test]
    async fn dropped_work_begins_no_further_batch() {
        let called = RefCell::new(0);
        let act = |item: usize| {
            *called.borrow_mut() += 1;
            async move {
                if item == 2 {
                    std::future::pending::<()>().await;
                }
                Ok::<_, ()>(())
            }
        };
        let mut work = Box::pin(slow_start((0..14).collect(), act));
        assert!(futures::poll!(&mut work).is_pending());
        drop(work);
        assert_eq!(*called.borrow(), 3);
    }
}
