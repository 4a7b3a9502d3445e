//! What the probes ask: whether the process is alive, and whether it is ready.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::sync::watch;

/// Between two beats.
const BEAT: Duration = Duration::from_secs(1);
/// A process whose loops do not turn for this long is not slow but stuck.
const STUCK: Duration = Duration::from_secs(30);

/// Shared by the loops, which tell, and the probes, which ask.
#[derive(Clone)]
pub struct Health {
    beat: Arc<Mutex<Instant>>,
    /// What must be true before the process is ready.
    conditions: Vec<(&'static str, watch::Receiver<bool>)>,
}

impl Health {
    pub fn new(conditions: Vec<(&'static str, watch::Receiver<bool>)>) -> Self {
        Self { beat: Arc::new(Mutex::new(Instant::now())), conditions }
    }

    /// Beats for ever. Polled in the same task as what it watches over: if that blocks, so does this.
    pub async fn beat(&self) {
        loop {
            *self.beat.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            tokio::time::sleep(BEAT).await;
        }
    }

    fn alive(&self, now: Instant) -> Result<(), String> {
        let beat = *self.beat.lock().unwrap_or_else(PoisonError::into_inner);
        let silence = now.saturating_duration_since(beat);
        if silence < STUCK { Ok(()) } else { Err(format!("stuck for {}s", silence.as_secs())) }
    }

    fn ready(&self) -> Result<(), String> {
        let missing: Vec<_> =
            self.conditions.iter().filter(|(_, met)| !*met.borrow()).map(|(name, _)| *name).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("not yet: {}", missing.join(", "))) }
    }
}

/// `/healthz` and `/readyz`.
pub fn routes(health: Health) -> Router {
    let live = health.clone();
    Router::new()
        .route("/healthz", get(async move || answer(live.alive(Instant::now()))))
        .route("/readyz", get(async move || answer(health.ready())))
}

fn answer(state: Result<(), String>) -> (StatusCode, String) {
    match state {
        Ok(()) => (StatusCode::OK, "ok".to_owned()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_names_what_is_missing() {
        let (caches, met) = watch::channel(false);
        let health = Health::new(vec![("caches", met)]);
        assert_eq!(health.ready(), Err("not yet: caches".to_owned()));
        caches.send_replace(true);
        assert_eq!(health.ready(), Ok(()));
    }

    #[test]
    fn silence_is_not_life() {
        let health = Health::new(Vec::new());
        let now = Instant::now();
        assert_eq!(health.alive(now), Ok(()));
        assert_eq!(health.alive(now + Duration::from_secs(45)), Err("stuck for 45s".to_owned()));
    }
}
