//! Connections into sandboxes that wait for the next request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures::FutureExt;
use hyper::client::conn::{http1, http2};
use tokio::time::Instant;

use super::{Endpoint, RequestBody, Upstream};

/// Below the 5 seconds after which many servers close an idle connection, so that a request rarely meets a closed one.
const MAX_IDLE: Duration = Duration::from_secs(4);
/// As many as callers that send one request after the other are likely to use at once.
const MAX_IDLE_PER_ENDPOINT: usize = 256;
const MAX_IDLE_TOTAL: usize = 1024;

pub type Sender = http1::SendRequest<RequestBody>;
pub type Http2Sender = http2::SendRequest<RequestBody>;

#[derive(Default)]
pub struct Pool(Mutex<Idle>);

#[derive(Default)]
struct Idle {
    /// The one used last is taken first: the others grow old together and are closed.
    senders: HashMap<Endpoint, Vec<(Sender, Instant)>>,
    count: usize,
    /// In use or not; the last use.
    http2: HashMap<Endpoint, (Http2Sender, Instant)>,
    /// A task closes the old ones.
    is_swept: bool,
}

// === impl Pool ===

impl Pool {
    /// A kept connection that still seems to be alive.
    pub fn take(&self, endpoint: &Endpoint) -> Option<Sender> {
        let mut idle = self.idle();
        loop {
            let (mut sender, since) = idle.pop(endpoint)?;
            if since.elapsed() < MAX_IDLE && matches!(sender.ready().now_or_never(), Some(Ok(()))) {
                return Some(sender);
            }
        }
    }

    pub fn give_back(&self, upstream: &Arc<Upstream>, endpoint: Endpoint, sender: Sender) {
        if sender.is_closed() {
            return;
        }
        let mut idle = self.idle();
        idle.push(endpoint, sender);
        idle.sweep_later(upstream);
    }

    pub fn http2(&self, endpoint: &Endpoint) -> Option<Http2Sender> {
        let mut idle = self.idle();
        let (sender, used) = idle.http2.get_mut(endpoint).filter(|(sender, _)| !sender.is_closed())?;
        *used = Instant::now();
        Some(sender.clone())
    }

    pub fn keep_http2(&self, upstream: &Arc<Upstream>, endpoint: Endpoint, sender: Http2Sender) {
        let mut idle = self.idle();
        idle.http2.insert(endpoint, (sender, Instant::now()));
        idle.sweep_later(upstream);
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Idle> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes connections that are not used, until there are none: an open one would keep its sandbox from being idle.
async fn sweep(upstream: Weak<Upstream>) {
    loop {
        tokio::time::sleep(MAX_IDLE).await;
        let Some(upstream) = upstream.upgrade() else { return };
        let mut idle = upstream.pool.idle();
        idle.drop_old();
        if idle.count == 0 && idle.http2.is_empty() {
            idle.is_swept = false;
            return;
        }
    }
}

// === impl Idle ===

impl Idle {
    fn pop(&mut self, endpoint: &Endpoint) -> Option<(Sender, Instant)> {
        let popped = self.senders.get_mut(endpoint)?.pop();
        self.count -= usize::from(popped.is_some());
        popped
    }

    fn push(&mut self, endpoint: Endpoint, sender: Sender) {
        if self.count >= MAX_IDLE_TOTAL {
            self.drop_old();
        }
        let senders = self.senders.entry(endpoint).or_default();
        if senders.len() < MAX_IDLE_PER_ENDPOINT && self.count < MAX_IDLE_TOTAL {
            senders.push((sender, Instant::now()));
            self.count += 1;
        }
    }

    fn drop_old(&mut self) {
        self.senders.retain(|_, senders| {
            senders.retain(|(sender, since)| since.elapsed() < MAX_IDLE && !sender.is_closed());
            !senders.is_empty()
        });
        self.count = self.senders.values().map(Vec::len).sum();
        // Calls in flight hold clones of the sender: the connection ends with the last of them.
        self.http2.retain(|_, (sender, used)| used.elapsed() < MAX_IDLE && !sender.is_closed());
    }

    fn sweep_later(&mut self, upstream: &Arc<Upstream>) {
        // Without a runtime the process ends, and every connection with it.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if !std::mem::replace(&mut self.is_swept, true) {
            runtime.spawn(sweep(Arc::downgrade(upstream)));
        }
    }
}
