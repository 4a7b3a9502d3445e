//! Leader election on a Lease: of several replicas one writes.
//!
//! ```text
//! candidate ── win ──► term ── keep ──► lost: candidate again
//!                        └──── release ──► the next candidate takes over at once
//! ```
//!
//! Candidates watch the Lease, so a released one is taken without waiting; they also look from time to time,
//! because watches break. Every write carries the resourceVersion of what was seen: of two writers one fails.
//!
//! (`kube-leader-election` calls itself unfenced, and `kube-lease-manager` allows for clock skew instead of doing
//! without clocks; a holder must stop for sure before somebody else may take over.)

pub mod decide;

use std::time::Duration;

use futures::{StreamExt, stream::BoxStream};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use decide::{Seen, Step, decide, held, holder, released};

/// The name of the Lease; the reference implementation uses the same, so the two never write together.
pub const LEASE: &str = "a3317529.agent-sandbox.x-k8s.io";

#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// How long a holder that says nothing is respected.
    pub lease: Duration,
    /// How long a holder goes on without a renewal. Less than `lease`: the rest is for stopping.
    pub renew: Duration,
    /// Between two tries.
    pub retry: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self { lease: Duration::from_secs(15), renew: Duration::from_secs(10), retry: Duration::from_secs(2) }
    }
}

/// A name that no other process has, and that tells a person where it runs.
pub fn identity() -> String {
    let machine = rustix::system::uname();
    format!("{}_{}", machine.nodename().to_string_lossy(), uuid::Uuid::new_v4())
}

/// One replica that wants to write.
pub struct Candidate {
    api: Api<Lease>,
    me: String,
    timing: Timing,
}

/// The time during which a replica is the only one that writes.
pub struct Term<'a> {
    candidate: &'a Candidate,
    lease: Lease,
    /// Before the last renewal that succeeded was sent.
    renewed: Instant,
}

impl Candidate {
    /// `me` must be another name for every process.
    pub fn new(client: Client, namespace: &str, me: String, timing: Timing) -> Self {
        Self { api: Api::namespaced(client, namespace), me, timing }
    }

    /// Waits until the Lease is ours.
    pub async fn win(&self) -> Term<'_> {
        let mut changes = self.changes();
        let mut seen = None;
        loop {
            match timeout(self.timing.renew, self.attempt(&mut seen)).await {
                Ok(Ok(Some(term))) => return term,
                Ok(Ok(None)) => {}
                Ok(Err(error)) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(lease = LEASE, error, "could not ask for the lease");
                }
                Err(_) => tracing::warn!(lease = LEASE, "the API server does not answer"),
            }
            tokio::select! {
                () = sleep(self.timing.retry) => {}
                // Only a bell: what the Lease says is asked for above.
                _ = changes.next() => {}
            }
        }
    }

    /// Looks at the Lease, and takes it if it may be taken.
    async fn attempt(&self, seen: &mut Option<Seen>) -> Result<Option<Term<'_>>, kube::Error> {
        let lease = self.api.get_opt(LEASE).await?;
        *seen = lease.map(|lease| Seen::look(seen.as_ref(), lease, Instant::now()));
        let now = Instant::now();
        if decide(seen.as_ref(), &self.me, now) == Step::Wait {
            return Ok(None);
        }
        match self.write(seen.as_ref().map(|seen| &seen.lease)).await {
            Ok(lease) => Ok(Some(Term { candidate: self, lease, renewed: now })),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(None), // another one was faster
            Err(error) => Err(error),
        }
    }

    async fn write(&self, before: Option<&Lease>) -> Result<Lease, kube::Error> {
        let params = PostParams::default();
        let write = |before| held(before, &self.me, self.timing.lease, Timestamp::now());
        match before {
            Some(before) => self.api.replace(LEASE, &params, &write(before)).await,
            None => {
                let mut lease = write(&Lease::default());
                lease.metadata.name = Some(LEASE.to_owned());
                self.api.create(&params, &lease).await
            }
        }
    }

    fn changes(&self) -> BoxStream<'static, ()> {
        let config = watcher::Config::default().fields(&format!("metadata.name={LEASE}"));
        watcher(self.api.clone(), config).default_backoff().map(drop).boxed()
    }
}

impl Term<'_> {
    /// Renews the Lease; returns when it is lost, and always before anybody else can have it.
    pub async fn keep(&mut self) {
        let Timing { renew, retry, .. } = self.candidate.timing;
        loop {
            let deadline = self.renewed + renew;
            if timeout_at(deadline, sleep(retry)).await.is_err() {
                return;
            }
            let now = Instant::now();
            match timeout_at(deadline, self.renew()).await {
                Ok(Ok(true)) => self.renewed = now,
                Ok(Ok(false)) => return,
                Ok(Err(error)) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(lease = LEASE, error, "could not renew the lease");
                }
                Err(_) => return,
            }
        }
    }

    /// Gives the Lease back. Whoever waits for it need not wait for its end.
    pub async fn release(mut self) -> Result<(), kube::Error> {
        let api = &self.candidate.api;
        // What we know may be older than a renewal whose answer was not waited for.
        self.lease = api.get(LEASE).await?;
        if holder(&self.lease) == self.candidate.me {
            api.replace(LEASE, &PostParams::default(), &released(&self.lease, Timestamp::now())).await?;
        }
        Ok(())
    }

    /// Renews once; `false` means that the Lease is somebody else's.
    async fn renew(&mut self) -> Result<bool, kube::Error> {
        match self.candidate.write(Some(&self.lease)).await {
            Ok(lease) => self.lease = lease,
            Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => {
                // Somebody touched it; perhaps only its labels.
                let Some(lease) = self.candidate.api.get_opt(LEASE).await? else { return Ok(false) };
                if holder(&lease) != self.candidate.me {
                    return Ok(false);
                }
                self.lease = self.candidate.write(Some(&lease)).await?;
            }
            Err(error) => return Err(error),
        }
        Ok(true)
    }
}
