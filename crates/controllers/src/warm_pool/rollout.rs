//! Replacing the members of an older template gradually: how many at a time, and how far it got.

use asb_types::WarmPool;
use asb_types::condition::{Status, Verdict};
use asb_types::warm_pool::{Amount, RollingUpdate, UpdateStrategyType};

use super::plan::strategy;

/// The condition that tells how far a rolling update got.
pub const PROGRESSING: &str = "Progressing";

/// How far a pool may be from its size while its members are replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Members above the size.
    pub surge: usize,
    /// Ready members below the size.
    pub unavailable: usize,
}

impl Limits {
    /// Shares are taken of the pool's size: of the surge rounded up, of the unavailable rounded down.
    pub fn of(pool: &WarmPool, desired: usize) -> Self {
        let Some(rolling) = rolling(pool) else { return Self::default() };
        let surge = rolling.max_surge.unwrap_or(Amount::Percent(25)).of(desired, true);
        let unavailable = rolling.max_unavailable.unwrap_or(Amount::Percent(25)).of(desired, false);
        match (surge, unavailable) {
            (0, 0) => Self { surge: 0, unavailable: 1 }, // or nothing could ever move
            (surge, unavailable) => Self { surge, unavailable },
        }
    }

    /// How many of the `available` members may be deleted now.
    pub fn may_go(self, available: usize, desired: usize) -> usize {
        available.saturating_sub(desired.saturating_sub(self.unavailable))
    }
}

fn rolling(pool: &WarmPool) -> Option<RollingUpdate> {
    let given = pool.spec.update_strategy.as_ref()?.rolling_update.clone();
    (strategy(pool) == UpdateStrategyType::RollingUpdate).then(|| given.unwrap_or_default())
}

/// What the condition says; `None` when members are not rolled.
pub fn progress(pool: &WarmPool, updated: usize, members: usize, stuck: bool) -> Option<Verdict> {
    rolling(pool)?;
    let verdict = |status, reason: &str, message: String| Verdict::new(PROGRESSING, status, reason, message);
    let counts = format!("{updated} of {members} members follow the template");
    Some(match updated == members {
        _ if stuck => verdict(Status::False, "NotProgressing", format!("{counts}; some find no node")),
        true => verdict(Status::True, "RolloutComplete", "all members follow the template".to_owned()),
        false => verdict(Status::True, "RollingUpdate", counts),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::warm_pool::tests::world::pool;
    use serde_json::{Value, json};

    fn limits(rolling: Value, desired: usize) -> (usize, usize) {
        let pool = pool(json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": rolling}}));
        let Limits { surge, unavailable } = Limits::of(&pool, desired);
        (surge, unavailable)
    }

    #[test]
    fn limits_are_numbers_or_shares() {
        assert_eq!(limits(Value::Null, 10), (3, 2), "a quarter, rounded to the safe side");
        assert_eq!(limits(json!({"maxSurge": 2, "maxUnavailable": "50%"}), 3), (2, 1));
        assert_eq!(limits(json!({"maxSurge": "100%", "maxUnavailable": 0}), 4), (4, 0));
        assert_eq!(limits(json!({"maxSurge": 0, "maxUnavailable": 0}), 4), (0, 1), "something must move");
        assert_eq!(Limits::of(&pool(json!({})), 10), Limits::default(), "other strategies have none");
    }

    #[test]
    fn condition_tells_how_far_it_got() {
        let rolling = pool(json!({"updateStrategy": {"type": "RollingUpdate"}}));
        let said = |updated, stuck| {
            let verdict = progress(&rolling, updated, 3, stuck).unwrap();
            (verdict.status, verdict.reason, verdict.message)
        };
        let counts = "1 of 3 members follow the template";
        assert_eq!(said(1, false), (Status::True, "RollingUpdate".to_owned(), counts.to_owned()));
        assert_eq!(said(1, true).0, Status::False);
        assert_eq!(said(3, false).1, "RolloutComplete");
        assert_eq!(progress(&pool(json!({})), 1, 3, false), None);
    }
}
