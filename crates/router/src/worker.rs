//! Threads that serve connections, each with an event loop and connections into sandboxes of its own.
//!
//! A request stays on one thread from its first byte to the last, so that no thread ever waits for another: with one
//! shared event loop, most of a small request's time was spent waking threads. For the same reason a few connections
//! share one worker: a thread that has more to do at each wake-up does it with fewer of them, and leaves the other
//! processors to the sandboxes.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;

use tokio::io::DuplexStream;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio_util::task::TaskTracker;

use crate::Limits;
use crate::address::Addressing;
use crate::authorize::Authorizer;
use crate::connection;
use crate::dial::Dial;
use crate::directory::Directory;
use crate::limits::{Connected, Limiter};
use crate::observe::Observe;
use crate::proxy::Proxy;
use crate::serve::{Handshake, Peer, Phase};
use crate::upstream::Upstream;

/// Beyond this, more threads do not serve more requests: the sandboxes want processors too.
const MAX_WORKERS: usize = 8;
/// Connections that a worker gets before the next one is used. Few: one HTTP/2 connection may carry 256 requests, and a TLS handshake
/// takes a millisecond of processor time; all others of the worker wait for them, while other workers idle.
const SHARED_BY: usize = 4;

/// A connection that a caller has made.
pub struct Arrival {
    pub socket: Socket,
    pub peer: Peer,
    pub permit: (OwnedSemaphorePermit, Connected),
    /// Set by [`Workers::give`].
    pub load: Option<Load>,
}

/// One connection of a worker. Counts until it is dropped.
pub struct Load(Arc<AtomicUsize>);

pub enum Socket {
    Tcp(std::net::TcpStream, Option<Handshake>),
    InProcess(DuplexStream),
}

/// What all workers use.
#[derive(Clone)]
pub struct Shared {
    pub directory: Arc<Directory>,
    pub dial: Arc<dyn Dial>,
    pub addressing: Addressing,
    pub authorizer: Arc<Authorizer>,
    pub limiter: Arc<Limiter>,
    pub limits: Limits,
    pub phase: watch::Receiver<Phase>,
    pub observe: Observe,
}

pub struct Workers {
    workers: Vec<Worker>,
    /// Closes when the last worker has ended.
    alive: watch::Sender<()>,
}

struct Worker {
    queue: mpsc::UnboundedSender<Arrival>,
    /// Connections, tunnels included.
    open: Arc<AtomicUsize>,
}

/// The worker for a new connection: the first that has few, else the one that has fewest.
fn choose(open: impl Iterator<Item = usize> + Clone) -> usize {
    let first = open.clone().position(|open| open < SHARED_BY);
    first.or(open.enumerate().min_by_key(|&(_, open)| open).map(|(at, _)| at)).unwrap_or_default()
}

// === impl Load ===

impl Load {
    fn on(worker: &Worker) -> Self {
        worker.open.fetch_add(1, Ordering::Relaxed);
        Self(worker.open.clone())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Workers ===

impl Workers {
    pub fn start(shared: &Shared, count: Option<NonZeroUsize>) -> io::Result<Self> {
        let processors = || available_parallelism().map_or(1, usize::from).min(MAX_WORKERS);
        let count = count.map_or_else(processors, usize::from);
        let (alive, living) = watch::channel(());
        let mut workers = Vec::with_capacity(count);
        for number in 0..count {
            let (queue, arrivals) = mpsc::unbounded_channel();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let (shared, living) = (shared.clone(), living.clone());
            std::thread::Builder::new().name(format!("router-{number}")).spawn(move || {
                runtime.block_on(work(shared, arrivals));
                drop(living);
            })?;
            workers.push(Worker { queue, open: Arc::default() });
        }
        Ok(Self { workers, alive })
    }

    /// Gives a connection to a worker, or to another one if that has ended; `false` when all have.
    pub fn give(&self, mut arrival: Arrival) -> bool {
        let chosen = choose(self.workers.iter().map(|worker| worker.open.load(Ordering::Relaxed)));
        let (before, from) = self.workers.split_at(chosen);
        for worker in from.iter().chain(before) {
            arrival.load = Some(Load::on(worker));
            match worker.queue.send(arrival) {
                Ok(()) => return true,
                Err(mpsc::error::SendError(back)) => arrival = back,
            }
        }
        false
    }

    /// Waits until every worker has ended, after [`Phase::Draining`].
    pub async fn drained(&self) {
        self.alive.closed().await;
    }
}

/// Serves connections until the router is dropped, or has drained.
async fn work(shared: Shared, mut arrivals: mpsc::UnboundedReceiver<Arrival>) {
    let mut phase = shared.phase.clone();
    let connections = TaskTracker::new();
    let retries = shared.limits.dial_retries.clone();
    let proxy = Arc::new(Proxy {
        upstream: Arc::new(Upstream::new(
            shared.dial,
            shared.directory.clone(),
            retries,
            shared.observe.clone(),
        )),
        directory: shared.directory,
        addressing: shared.addressing,
        authorizer: shared.authorizer,
        limiter: shared.limiter,
        limits: shared.limits,
        phase: shared.phase,
        tunnels: connections.clone(),
        observe: shared.observe,
    });
    let serving = async {
        while let Some(arrival) = arrivals.recv().await {
            connections.spawn(connection::serve(arrival, proxy.clone()));
        }
    };
    tokio::select! {
        () = serving => {}
        // `Err` means that the router was dropped: then everything ends here, with this thread's event loop.
        phase = phase.wait_for(|phase| *phase == Phase::Draining) => if phase.is_err() { return },
    }
    // What the listeners took before they stopped was accepted: it is served, or told that the router ends.
    arrivals.close();
    while let Some(arrival) = arrivals.recv().await {
        connections.spawn(connection::serve(arrival, proxy.clone()));
    }
    connections.close();
    tokio::select! {
        () = connections.wait() => {}
        () = closed(&mut phase) => {}
    }
}

/// Waits until the router is dropped.
async fn closed(phase: &mut watch::Receiver<Phase>) {
    while phase.changed().await.is_ok() {}
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::sync::Semaphore;

    use super::*;

    async fn arrival() -> Arrival {
        let permit = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
        let peer = Peer { address: Ipv4Addr::LOCALHOST.into(), trusted: false, tls: false };
        let socket = Socket::InProcess(tokio::io::duplex(1).0);
        Arrival { socket, peer, permit: (permit, Connected::default()), load: None }
    }

    fn workers(count: usize) -> (Workers, Vec<mpsc::UnboundedReceiver<Arrival>>) {
        let (queues, ends): (Vec<_>, Vec<_>) = (0..count).map(|_| mpsc::unbounded_channel()).unzip();
        let workers = queues.into_iter().map(|queue| Worker { queue, open: Arc::default() }).collect();
        (Workers { workers, alive: watch::channel(()).0 }, ends)
    }

    #[test]
    fn a_few_connections_share_a_worker_and_many_are_spread() {
        for (open, chosen) in [
            (vec![0, 0], 0),
            (vec![SHARED_BY - 1, 0], 0),
            (vec![SHARED_BY, 0], 1),
            (vec![SHARED_BY, SHARED_BY - 1], 1),
            (vec![3, 200], 0),
            (vec![40, 30, 30], 1),
            (vec![17, 16], 1),
        ] {
            assert_eq!(choose(open.iter().copied()), chosen, "{open:?}");
        }
    }

    #[tokio::test]
    async fn a_connection_counts_until_it_ends() {
        let (workers, mut ends) = workers(2);
        for _ in 0..SHARED_BY + 1 {
            assert!(workers.give(arrival().await));
        }
        assert_eq!((ends[0].len(), ends[1].len()), (SHARED_BY, 1));
        drop(ends[0].recv().await);
        assert!(workers.give(arrival().await));
        assert_eq!((ends[0].len(), ends[1].len()), (SHARED_BY, 1), "the first has room again");
    }

    #[tokio::test]
    async fn the_other_workers_take_over_from_one_that_has_ended() {
        let (workers, mut ends) = workers(3);
        ends[0].close();
        ends[1].close();
        for _ in 0..4 {
            assert!(workers.give(arrival().await));
        }
        assert_eq!(ends[2].len(), 4);
        ends[2].close();
        assert!(!workers.give(arrival().await), "the router has stopped");
    }
}
