//! How much one caller and one sandbox may use.
//!
//! ```text
//! connection ─► peer ──────────────► connections
//! request ─┬─► headers, length ────► 431, 413
//!          ├─► caller (identity or address) ─► concurrent, tunnels, rate ─┐
//!          └─► sandbox ──────────────────────► concurrent, tunnels, rate ─┴─► Admission, until the response ends
//! ```
//!
//! A limit that is not configured costs nothing. Tables are bounded and keyed by a hash, so a request that was seen
//! before allocates nothing.

mod body;
mod client;
mod exceeded;
mod rate;
mod table;

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Instant;

use http::HeaderMap;
use http::header::CONTENT_LENGTH;
pub use ipnet::IpNet;

pub use body::{Meter, Metered};
pub use exceeded::{Exceeded, Of};
pub use rate::Rate;
use table::{Table, Usage};

use crate::activity::Progress;
use crate::address::Address;
use crate::authorize::Identity;

/// What callers and sandboxes may use. The default limits nothing.
#[derive(Debug, Clone)]
pub struct Quotas {
    pub caller: Quota,
    pub sandbox: Quota,
    /// Open connections of one address (IPv6: one /64).
    pub connections_per_address: Option<u32>,
    /// Requests of one address that are refused with 401 or 403. Beyond it the address waits before it may try again, so
    /// that guessing tokens is slow and the API server is not flooded with reviews.
    pub refusals_per_address: Option<Rate>,
    /// The body of one request.
    pub body_bytes: Option<u64>,
    /// Header fields of one request.
    pub header_count: Option<usize>,
    /// Names and values of all header fields of one request.
    pub header_bytes: Option<usize>,
    /// Peers whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<IpNet>,
    /// Their `X-Forwarded-Proto` is believed too: they end TLS.
    pub trust_forwarded_proto: bool,
    /// Callers, and sandboxes, that are counted at once. Idle ones are forgotten first.
    pub entries: NonZeroUsize,
}

/// What one caller or one sandbox may use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quota {
    /// Requests at once, without tunnels.
    pub requests: Option<u32>,
    /// WebSockets and other upgraded connections at once.
    pub tunnels: Option<u32>,
    pub rate: Option<Rate>,
}

impl Default for Quotas {
    fn default() -> Self {
        Self {
            caller: Quota::default(),
            sandbox: Quota::default(),
            connections_per_address: None,
            refusals_per_address: None,
            body_bytes: None,
            header_count: None,
            header_bytes: None,
            trusted_proxies: Vec::new(),
            trust_forwarded_proto: false,
            entries: NonZeroUsize::new(65536).expect("not zero"),
        }
    }
}

/// Counts what is in use.
pub struct Limiter {
    quotas: Quotas,
    callers: Table,
    sandboxes: Table,
    peers: Table,
    hasher: RandomState,
    start: Instant,
}

/// A request or a tunnel; only one of them counts for an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Request,
    Tunnel,
}

/// The right to go on. Counts until it is dropped.
#[must_use = "dropping it ends what it counts"]
#[derive(Debug, Default)]
pub struct Admission {
    _caller: Option<Held>,
    _sandbox: Option<Held>,
}

/// An open connection. Counts until it is dropped.
#[must_use = "dropping it ends what it counts"]
#[derive(Debug, Default)]
pub struct Connected {
    _held: Option<Held>,
}

#[derive(Debug)]
struct Held {
    usage: Arc<Usage>,
    kind: Option<Kind>,
}

// === impl Limiter ===

impl Limiter {
    pub fn new(quotas: Quotas) -> Self {
        let table = || Table::new(quotas.entries);
        let (callers, sandboxes, peers) = (table(), table(), table());
        Self { quotas, callers, sandboxes, peers, hasher: RandomState::new(), start: Instant::now() }
    }

    /// Counts a new connection of an address.
    pub fn connect(&self, peer: IpAddr) -> Result<Connected, Exceeded> {
        let Some(max) = self.quotas.connections_per_address else { return Ok(Connected::default()) };
        let usage = self.peers.get(self.peer_key(peer))?;
        let held = Held::take(&usage, None, Some(max)).ok_or(Exceeded::Connections)?;
        Ok(Connected { _held: Some(held) })
    }

    /// Whether an address may try again to be authorised.
    pub fn check_refusals(&self, client: IpAddr) -> Result<(), Exceeded> {
        let Some(rate) = self.quotas.refusals_per_address else { return Ok(()) };
        let Some(usage) = self.peers.peek(self.peer_key(client)) else { return Ok(()) };
        usage.rate.check(rate, self.now()).map_err(|wait| Exceeded::Refusals { wait })
    }

    /// Counts a request that was refused with 401 or 403.
    pub fn count_refusal(&self, client: IpAddr) {
        if let Some(rate) = self.quotas.refusals_per_address
            && let Ok(usage) = self.peers.get(self.peer_key(client))
        {
            let _ = usage.rate.take(rate, self.now());
        }
    }

    fn peer_key(&self, peer: IpAddr) -> u64 {
        self.hasher.hash_one(client::group(peer))
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Checks the head of a request.
    pub fn check_head(&self, headers: &HeaderMap) -> Result<(), Exceeded> {
        if self.quotas.header_count.is_some_and(|max| headers.len() > max) {
            return Err(Exceeded::HeaderCount { limit: self.quotas.header_count.unwrap_or_default() });
        }
        if let Some(limit) = self.quotas.header_bytes {
            let size =
                |(name, value): (&http::HeaderName, &http::HeaderValue)| name.as_str().len() + value.len();
            if headers.iter().map(size).sum::<usize>() > limit {
                return Err(Exceeded::HeaderBytes { limit });
            }
        }
        if let Some(limit) = self.quotas.body_bytes {
            let length =
                headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
            if length.is_some_and(|length| length > limit) {
                return Err(Exceeded::Body { limit });
            }
        }
        Ok(())
    }

    /// The meter for a request's body.
    pub fn meter(&self, connection: &Progress) -> Meter {
        Meter::new(self.quotas.body_bytes, connection.clone())
    }

    /// The address of the caller: the peer, or what trusted proxies say.
    pub fn client_address(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        client::address(peer, headers, &self.quotas.trusted_proxies)
    }

    /// Whether the caller speaks TLS: with this router, or with a trusted proxy that says so.
    pub fn is_tls(&self, peer: IpAddr, tls: bool, headers: &HeaderMap) -> bool {
        if !self.quotas.trust_forwarded_proto || !client::is_trusted(peer, &self.quotas.trusted_proxies) {
            return tls;
        }
        // The last one is of the proxy that is connected.
        let said = headers.get_all("x-forwarded-proto").iter().next_back();
        let said = said.and_then(|proto| proto.to_str().ok()?.rsplit(',').next());
        said.map_or(tls, |proto| proto.trim().eq_ignore_ascii_case("https"))
    }

    /// Counts a request or tunnel against its caller and its sandbox.
    pub fn admit(
        &self,
        identity: &Identity,
        client: IpAddr,
        address: &Address,
        kind: Kind,
    ) -> Result<Admission, Exceeded> {
        let caller = match self.quotas.caller {
            quota if quota == Quota::default() => None,
            quota => {
                let key = if identity.is_individual() {
                    self.hasher.hash_one((identity.by, &identity.subject))
                } else {
                    self.peer_key(client)
                };
                Some(self.count(&self.callers, key, quota, kind, Of::Caller)?)
            }
        };
        let sandbox = match self.quotas.sandbox {
            quota if quota == Quota::default() => None,
            quota => {
                let key = self.hasher.hash_one((&address.namespace, &address.name));
                Some(self.count(&self.sandboxes, key, quota, kind, Of::Sandbox)?)
            }
        };
        Ok(Admission { _caller: caller, _sandbox: sandbox })
    }

    fn count(&self, table: &Table, key: u64, quota: Quota, kind: Kind, of: Of) -> Result<Held, Exceeded> {
        let usage = table.get(key)?;
        let max = match kind {
            Kind::Request => quota.requests,
            Kind::Tunnel => quota.tunnels,
        };
        let held = Held::take(&usage, Some(kind), max).ok_or(match kind {
            Kind::Request => Exceeded::Requests { of },
            Kind::Tunnel => Exceeded::Tunnels { of },
        })?;
        if let Some(rate) = quota.rate {
            held.usage.rate.take(rate, self.now()).map_err(|wait| Exceeded::Rate { of, wait })?;
        }
        Ok(held)
    }
}

// === impl Held ===

impl Held {
    fn take(usage: &Arc<Usage>, kind: Option<Kind>, max: Option<u32>) -> Option<Self> {
        let max = max.unwrap_or(u32::MAX);
        // Built only after counting: dropping it subtracts.
        usage.counter(kind).try_add(max).then(|| Self { usage: usage.clone(), kind })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.usage.counter(self.kind).subtract();
    }
}

#[cfg(test)]
mod tests;
