//! How often each sandbox may ask. Pure: `now` is an argument.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::time::Instant;

/// Questions that may come at once.
const BURST: f64 = 500.0;
/// Questions for each second after that.
const RATE: f64 = 100.0;
/// More sandboxes than this are not told apart for long.
const SANDBOXES: usize = 4096;

/// A purse for each sandbox, which fills as time goes by.
#[derive(Debug, Default)]
pub struct Pace(HashMap<Ipv4Addr, (f64, Instant)>);

impl Pace {
    /// Whether a question of this sandbox is answered now.
    pub fn allows(&mut self, sandbox: Ipv4Addr, now: Instant) -> bool {
        if self.0.len() >= SANDBOXES && !self.0.contains_key(&sandbox) {
            // Those with a full purse need not be remembered.
            self.0.retain(|_, (purse, since)| filled(*purse, *since, now) < BURST);
        }
        let (purse, since) = self.0.entry(sandbox).or_insert((BURST, now));
        let full = filled(*purse, *since, now);
        let allowed = full >= 1.0;
        (*purse, *since) = (if allowed { full - 1.0 } else { full }, now);
        allowed
    }
}

fn filled(purse: f64, since: Instant, now: Instant) -> f64 {
    (purse + now.saturating_duration_since(since).as_secs_f64() * RATE).min(BURST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_flood_is_held_back_and_others_are_not() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        let [loud, quiet] = [1, 2].map(|last| Ipv4Addr::new(10, 88, 0, last));
        let answered = (0..10_000).filter(|_| pace.allows(loud, now)).count();
        assert_eq!(answered, BURST as usize);
        assert!(pace.allows(quiet, now));
        let later = now + Duration::from_secs(1);
        assert_eq!((0..10_000).filter(|_| pace.allows(loud, later)).count(), RATE as usize);
    }
}
