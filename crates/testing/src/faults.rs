//! A client between a controller and its API server through which things go wrong.
//!
//! Requests fail before or after they took effect, conflicts come from nowhere, answers and watch events are late, and
//! watches break off. Every decision follows from a seed, so that a failing run can be had again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyDataStream, BodyExt, Full, StreamBody};
use kube::Client;
use kube::client::Body;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

type Error = Box<dyn std::error::Error + Send + Sync>;
type Answer = Response<UnsyncBoxBody<Bytes, Error>>;

/// What goes wrong, and how often so far.
pub struct Faults {
    seed: u64,
    requests: AtomicU64,
    injected: AtomicU64,
    on: AtomicBool,
}

/// What becomes of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Pass,
    /// The server refuses and nothing happens.
    Fail(StatusCode, &'static str),
    /// It happens, but the answer is lost.
    LoseAnswer,
    Late(Duration),
    /// A watch that breaks off after so many pieces.
    BreakOff(usize),
}

impl Faults {
    pub fn new(seed: u64) -> Arc<Self> {
        let (requests, injected) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { seed, requests, injected, on: AtomicBool::new(true) })
    }

    /// From now on everything works.
    pub fn stop(&self) {
        self.on.store(false, Ordering::Relaxed);
    }

    /// How many requests went wrong.
    pub fn injected(&self) -> u64 {
        self.injected.load(Ordering::Relaxed)
    }

    /// A client whose requests reach `client` by way of these faults.
    pub fn between(self: &Arc<Self>, client: &Client) -> Client {
        let (faults, inner) = (self.clone(), client.clone());
        let service = tower::service_fn(move |request| faults.clone().send(inner.clone(), request));
        Client::new(service, client.default_namespace())
    }

    async fn send(self: Arc<Self>, client: Client, request: Request<Body>) -> Result<Answer, Error> {
        let (fate, mut dice) = self.fate(&request);
        match fate {
            Fate::Fail(code, reason) => return Ok(refusal(code, reason)),
            Fate::Late(delay) => tokio::time::sleep(delay).await,
            _ => {}
        }
        let answer = client.send(request).await?;
        match fate {
            Fate::LoseAnswer => {
                // Read to the end: it has happened for sure.
                answer.into_body().collect_bytes().await?;
                Ok(refusal(StatusCode::GATEWAY_TIMEOUT, "Timeout"))
            }
            Fate::BreakOff(pieces) => Ok(answer.map(|body| {
                let pieces = BodyDataStream::new(body).take(pieces).then(move |piece| {
                    let late = dice.random_range(0..50) == 0;
                    let delay = Duration::from_millis(dice.random_range(1..200));
                    async move {
                        if late {
                            tokio::time::sleep(delay).await;
                        }
                        piece.map(http_body::Frame::data).map_err(Error::from)
                    }
                });
                StreamBody::new(pieces).boxed_unsync()
            })),
            _ => Ok(answer.map(|body| body.map_err(Error::from).boxed_unsync())),
        }
    }

    fn fate(&self, request: &Request<Body>) -> (Fate, StdRng) {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let mut dice = StdRng::seed_from_u64(self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        if !self.on.load(Ordering::Relaxed) {
            return (Fate::Pass, dice);
        }
        let fate = fate(request, &mut dice);
        if fate != Fate::Pass {
            self.injected.fetch_add(1, Ordering::Relaxed);
        }
        (fate, dice)
    }
}

fn fate(request: &Request<Body>, dice: &mut StdRng) -> Fate {
    let watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
    let changes = matches!(*request.method(), Method::PATCH | Method::PUT | Method::DELETE);
    let percent = dice.random_range(0..100);
    if watch {
        return match percent {
            0..4 => Fate::Fail(StatusCode::GONE, "Expired"),
            _ => Fate::BreakOff(dice.random_range(1..300)),
        };
    }
    match percent {
        0..2 => Fate::Fail(StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
        2..3 => Fate::Fail(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests"),
        3..6 if changes => Fate::Fail(StatusCode::CONFLICT, "Conflict"),
        6..9 if *request.method() != Method::GET => Fate::LoseAnswer,
        9..14 => Fate::Late(Duration::from_millis(dice.random_range(1..20))),
        _ => Fate::Pass,
    }
}

fn refusal(code: StatusCode, reason: &str) -> Answer {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": format!("made to fail: {reason}"), "reason": reason, "code": code.as_u16(),
    });
    let body = Full::new(Bytes::from(status.to_string())).map_err(|never| match never {}).boxed_unsync();
    let mut answer = Response::new(body);
    *answer.status_mut() = code;
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fates(seed: u64) -> Vec<Fate> {
        let faults = Faults::new(seed);
        let request = Request::patch("/api/v1/pods/x").body(Body::empty()).expect("a request");
        (0..500).map(|_| faults.fate(&request).0).collect()
    }

    #[test]
    fn a_seed_decides_everything() {
        assert_eq!(fates(7), fates(7));
        assert_ne!(fates(7), fates(8));
        assert!(fates(7).contains(&Fate::LoseAnswer));
    }

    #[test]
    fn nothing_goes_wrong_after_the_end() {
        let faults = Faults::new(7);
        faults.stop();
        let request = Request::get("/api/v1/pods?watch=true").body(Body::empty()).expect("a request");
        assert!((0..500).all(|_| faults.fate(&request).0 == Fate::Pass));
        assert_eq!(faults.injected(), 0);
    }
}
