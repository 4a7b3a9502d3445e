//! Limits how often the API server is asked, for who sets --kube-api-qps. By default nobody waits: API
//! servers have priorities and fairness of their own.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::{Instant, sleep_until};
use tower::{Layer, Service};

/// A layer for the client.
#[derive(Debug, Clone)]
pub struct Limit {
    rate: Rate,
    /// When the next request would be due if requests came evenly.
    due: Arc<Mutex<Option<Instant>>>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Requests per second, in the long run.
    pub qps: f64,
    /// Requests that may be sent at once after a pause.
    pub burst: u32,
}

impl Limit {
    pub fn new(rate: Rate) -> Self {
        Self { rate, due: Arc::default() }
    }

    /// When a request that is made now may be sent.
    fn reserve(&self, now: Instant) -> Instant {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let even = due.map_or(now, |due| due.max(now));
        let interval = Duration::from_secs_f64(1.0 / self.rate.qps);
        *due = Some(even + interval);
        let ahead = interval.saturating_mul(self.rate.burst.saturating_sub(1));
        even.checked_sub(ahead).map_or(now, |at| at.max(now))
    }
}

impl<S> Layer<S> for Limit {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited { inner, limit: self.clone() }
    }
}

#[derive(Debug, Clone)]
pub struct Limited<S> {
    inner: S,
    limit: Limit,
}

impl<S, R> Service<R> for Limited<S>
where
    S: Service<R>,
    S::Future: Send + 'static,
    S::Response: 'static,
    S::Error: 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let at = self.limit.reserve(Instant::now());
        // Nothing is sent before this future is polled.
        let answer = self.inner.call(request);
        Box::pin(async move {
            sleep_until(at).await;
            answer.await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_goes_at_once_and_the_rest_evenly() {
        let limit = Limit::new(Rate { qps: 10.0, burst: 3 });
        let start = Instant::now();
        let waits: Vec<u128> = (0..5).map(|_| (limit.reserve(start) - start).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100, 200]);
        let later = start + Duration::from_secs(60);
        assert_eq!(limit.reserve(later), later, "a pause is not held against anybody");
    }
}
