//! The network of one engine: namespaces for sandboxes, and the rules between them.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::address::Addresses;
use crate::dns::Zone;
use crate::link::{self, Links};
use crate::namespace::{self, Namespace, set_ipv6};
use crate::nft::Family;
use crate::place::Place;
use crate::policy::{Facts, compile};
use crate::rules::Ruleset;
use crate::{apply, forwarding, nft, tracking};

/// Namespaces that wait for a sandbox: making one takes longer than the rest of a start.
const PARKED: usize = 4;
/// Interfaces of sandboxes that have just ended may still have the name that is wanted.
const ATTEMPTS: usize = 64;
/// How long interfaces of sandboxes that have ended may take to go.
const LAST_WIRES: Duration = Duration::from_secs(3);
/// What the kernel keeps of a note on an interface.
const LONGEST_NOTE: usize = 256;
/// Where the machine does not say how large packets may be.
const USUAL_MTU: u32 = 1500;

#[derive(Debug, thiserror::Error)]
#[error("failed to {step}")]
pub struct Error {
    pub step: &'static str,
    #[source]
    pub source: io::Error,
}

fn failed(step: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error { step, source }
}

/// Cheap to clone. Everything in here blocks, though never for long.
#[derive(Clone)]
pub struct Network {
    inner: Arc<Inner>,
}

struct Inner {
    place: Place,
    guarded: forwarding::Guarded,
    mtu: u32,
    addresses: Addresses,
    /// Addresses of sandboxes that are gone. The kernel may remember connections of theirs.
    left: Mutex<BTreeSet<Ipv4Addr>>,
    parked: Mutex<VecDeque<Namespace>>,
    /// Held by whoever makes a namespace: the kernel changes interfaces one after the other.
    making: Mutex<()>,
    rules: Mutex<Rules>,
    zone: Mutex<Arc<Zone>>,
}

struct Rules {
    facts: Facts,
    /// What the kernel has; `None` until this engine has said it.
    current: Option<Ruleset>,
}

impl Network {
    /// Makes what all sandboxes share, or takes over what an earlier engine made.
    ///
    /// `used` are the addresses of sandboxes that run already. Rules that are there stay in force until the first
    /// [`Network::update`]; where there are none, nothing passes until then.
    pub fn open(data_dir: &Path, used: &[Ipv4Addr]) -> Result<Self, Error> {
        let lock = forwarding::lock().map_err(failed("wait for other engines"))?;
        if let Err(error) = remove_orphans(&lock) {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "what is left of another engine was not removed"
            );
        }
        let place =
            Place::choose(data_dir, !used.is_empty()).map_err(failed("choose a range of addresses"))?;
        let opened = Self::set_up(&place, data_dir, used, &lock);
        if opened.is_err() && used.is_empty() {
            // Half a network is none; what is left of it is for whoever looks into the log.
            if let Err(error) = take_down(&place, &lock) {
                tracing::warn!(%error, "a network that could not be made was not removed");
            }
        }
        opened
    }

    fn set_up(
        place: &Place,
        data_dir: &Path,
        used: &[Ipv4Addr],
        lock: &forwarding::Lock,
    ) -> Result<Self, Error> {
        if !nft::table_exists(&place.table()).map_err(failed("look for packet filter rules (nftables)"))? {
            apply::replace(place, &Ruleset::default())
                .map_err(failed("make packet filter rules (nftables)"))?;
        }
        let is_left = |address| place.owner(address).is_some_and(|owner| !used.contains(&owner));
        // Takes as long as all the rest, which does not need it.
        let (forgotten, opened) = std::thread::scope(|scope| {
            let forgetting = scope.spawn(|| tracking::forget(is_left));
            let opened = Self::set_up_beside(place, data_dir, used, lock);
            (forgetting.join().expect("forgetting connections does not panic"), opened)
        });
        forgotten.map_err(failed("forget the connections of sandboxes that are gone"))?;
        opened
    }

    fn set_up_beside(
        place: &Place,
        data_dir: &Path,
        used: &[Ipv4Addr],
        lock: &forwarding::Lock,
    ) -> Result<Self, Error> {
        hold_gateway(place, data_dir).map_err(failed("make the interface of the gateway"))?;
        if place.six().is_none() {
            tracing::info!(
                "sandboxes have IPv4 alone: this machine has no IPv6, or would lose routes that routers told it of"
            );
        }
        let families = if place.six().is_some() { &Family::BOTH[..] } else { &[Family::V4] };
        let guarded =
            forwarding::switch_on(families, lock).map_err(failed("let packets of sandboxes through"))?;
        let (first, last) = place.sandboxes();
        let inner = Inner {
            place: place.clone(),
            guarded,
            mtu: mtu().unwrap_or(USUAL_MTU),
            addresses: Addresses::new(first, last),
            left: Mutex::default(),
            parked: Mutex::default(),
            making: Mutex::default(),
            rules: Mutex::new(Rules { facts: Facts::default(), current: None }),
            zone: Mutex::default(),
        };
        let network = Self { inner: Arc::new(inner) };
        used.iter().for_each(|address| network.keep(*address));
        // Nothing may be missing that a start needs: the first one is made here and now.
        let first = network.make()?;
        network.parked().push_back(first);
        network.sweep(used);
        Ok(network)
    }

    /// The machine's address as sandboxes know it.
    pub fn gateway(&self) -> Ipv4Addr {
        self.inner.place.gateway()
    }

    /// The IPv6 address of the sandbox that has this one, if sandboxes have any.
    pub fn beside(&self, address: Ipv4Addr) -> Option<Ipv6Addr> {
        self.inner.place.six().map(|six| six.beside(address))
    }

    /// The names that follow from what is known.
    pub fn zone(&self) -> Arc<Zone> {
        self.zone_slot().clone()
    }

    /// A namespace for a sandbox, if one is waiting. Nothing passes to or from it until [`Network::update`] has told
    /// of the sandbox.
    pub fn take_parked(&self) -> Option<Namespace> {
        self.parked().pop_front()
    }

    /// Makes a namespace, which takes some milliseconds.
    pub fn make(&self) -> Result<Namespace, Error> {
        self.try_make().map_err(failed("make a network namespace"))
    }

    /// Makes a namespace that a sandbox has left what it was when it was made, for the next one of the same address.
    pub fn restore(&self, namespace: &impl AsFd, address: Ipv4Addr) -> Result<(), Error> {
        namespace::restore(&self.inner.place, namespace, address)
            .map_err(failed("restore a network namespace"))
    }

    /// Makes namespaces until enough wait.
    pub fn park(&self) -> Result<(), Error> {
        while self.parked().len() < PARKED {
            let namespace = self.make()?;
            self.parked().push_back(namespace);
        }
        Ok(())
    }

    /// Marks an address as somebody's.
    pub fn keep(&self, address: Ipv4Addr) {
        self.inner.addresses.keep(address);
    }

    /// Gives an address back whose sandbox is gone.
    pub fn give_back(&self, address: Ipv4Addr) {
        self.left().insert(address);
        self.inner.addresses.give_back(address);
    }

    /// Changes what is known, without any effect until [`Network::apply`].
    pub fn note(&self, change: impl FnOnce(&mut Facts)) {
        change(&mut self.rules().facts);
    }

    /// Changes what is known, and the rules that follow from it; returns when they are in force.
    pub fn update(&self, change: impl FnOnce(&mut Facts)) -> Result<(), Error> {
        let mut rules = self.rules();
        change(&mut rules.facts);
        self.enforce(&mut rules)
    }

    /// Makes the rules that follow from what is known. Before that, the old ones hold.
    pub fn apply(&self) -> Result<(), Error> {
        self.enforce(&mut self.rules())
    }

    /// Puts the rules back if somebody has removed them, as a reloaded firewall does.
    pub fn heal(&self) -> Result<(), Error> {
        self.inner.guarded.heal().map_err(failed("refuse to pass on the packets of others"))?;
        let mut rules = self.rules();
        // Before the first rules of this engine those of the last one hold, if there are any.
        if rules.current.is_none() || nft::table_exists(&self.inner.place.table()).unwrap_or(false) {
            return Ok(());
        }
        let table = self.inner.place.table();
        tracing::warn!(table, "the packet filter rules of sandboxes were removed; making them anew");
        rules.current = None;
        self.enforce(&mut rules)
    }

    /// Removes every trace of this network, unless a sandbox is left in it: that needs its rules.
    ///
    /// Goes on past failures and tells the first.
    pub fn close(self) -> Result<(), Error> {
        let lock = forwarding::lock().map_err(failed("wait for other engines"))?;
        let until = Instant::now() + LAST_WIRES;
        while self.has_others() {
            // Sandboxes that have just ended are not quite gone yet.
            if Instant::now() > until {
                tracing::info!("the network stays: a sandbox is in it");
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.parked().clear();
        take_down(&self.inner.place, &lock)
    }

    /// Whether there are interfaces of more than the namespaces that wait.
    fn has_others(&self) -> bool {
        let parked: Vec<_> = self.parked().iter().map(|namespace| namespace.address).collect();
        let address = |name: String| self.inner.place.address_of(&name);
        let mut all = link::names().unwrap_or_default().into_iter().filter_map(address);
        all.any(|address| !parked.contains(&address))
    }

    fn try_make(&self) -> io::Result<Namespace> {
        let Inner { place, mtu, addresses, making, .. } = &*self.inner;
        let _one_at_a_time = making.lock().unwrap_or_else(PoisonError::into_inner);
        let mut busy = Vec::new();
        let made = loop {
            let address = addresses.take().ok_or_else(|| io::Error::other("all addresses are taken"))?;
            let made = self.forget_left(address).and_then(|()| Namespace::make(place, address, *mtu));
            match made {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && busy.len() < ATTEMPTS => {
                    busy.push(address);
                }
                Err(error) => {
                    addresses.give_back(address);
                    break Err(error);
                }
                made => break made,
            }
        };
        busy.into_iter().for_each(|address| addresses.give_back(address));
        made
    }

    /// Before an address gets another owner: the connections of the one before are forgotten, and those of all others
    /// that are gone. Addresses are given in turn, so this is seldom.
    fn forget_left(&self, address: Ipv4Addr) -> io::Result<()> {
        let mut left = self.left();
        if !left.contains(&address) {
            return Ok(());
        }
        let place = &self.inner.place;
        tracking::forget(|address| place.owner(address).is_some_and(|owner| left.contains(&owner)))?;
        left.clear();
        Ok(())
    }

    fn enforce(&self, rules: &mut Rules) -> Result<(), Error> {
        let place = &self.inner.place;
        *self.zone_slot() = Arc::new(Zone::of(&rules.facts, place.six()));
        let to_be = compile(&rules.facts, place.gateway());
        let done = match &rules.current {
            Some(current) if *current == to_be => return Ok(()),
            Some(current) => apply::change(place, current, &to_be).or_else(|error| {
                // Somebody else's hand was in our table: say all of it again.
                tracing::warn!(%error, "packet filter rules could not be changed; replacing all of them");
                apply::replace(place, &to_be)
            }),
            None => apply::replace(place, &to_be),
        };
        done.map_err(failed("change packet filter rules"))?;
        rules.current = Some(to_be);
        Ok(())
    }

    /// Removes what an engine that was killed has left: interfaces of neither a sandbox nor a waiting namespace.
    fn sweep(&self, used: &[Ipv4Addr]) {
        let place = &self.inner.place;
        let parked: Vec<_> = self.parked().iter().map(|namespace| namespace.address).collect();
        let left = link::names().unwrap_or_default().into_iter().filter(|name| {
            place
                .address_of(name)
                .is_some_and(|address| !used.contains(&address) && !parked.contains(&address))
        });
        let Ok(links) = Links::open() else { return };
        for name in left {
            if let Err(error) = links.remove(&name) {
                tracing::warn!(interface = name, %error, "an interface that nobody uses was not removed");
            }
        }
    }

    fn zone_slot(&self) -> MutexGuard<'_, Arc<Zone>> {
        self.inner.zone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn parked(&self) -> MutexGuard<'_, VecDeque<Namespace>> {
        self.inner.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn left(&self) -> MutexGuard<'_, BTreeSet<Ipv4Addr>> {
        self.inner.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.inner.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes what all sandboxes shared.
fn take_down(place: &Place, lock: &forwarding::Lock) -> Result<(), Error> {
    let links = Links::open().map_err(failed("remove interfaces"))?;
    let gone = links.remove(&place.holder()).map_err(failed("remove the interface of the gateway"));
    let rules = apply::remove(place).map_err(failed("remove packet filter rules"));
    let off = forwarding::switch_off(lock).map_err(failed("switch the passing on of packets off"));
    gone.and(rules).and(off)
}

/// Removes the networks of engines that were killed and whose data directories are gone: no engine will come back to
/// them. One with a sandbox or a waiting namespace in it is somebody's, wherever that has its data.
fn remove_orphans(lock: &forwarding::Lock) -> Result<(), Error> {
    let look = || Ok((Links::open()?.owners()?, link::names()?));
    let (owners, names) = look().map_err(failed("look for what other engines have left"))?;
    for (holder, data_dir) in owners {
        let Some(place) = Place::of_holder(&holder) else { continue };
        let in_use = names.iter().any(|name| name.starts_with(&place.prefix()));
        if !in_use && !Path::new(&data_dir).exists() {
            tracing::info!(interface = holder, data_dir, "removing the network of an engine that is gone");
            take_down(&place, lock)?;
        }
    }
    Ok(())
}

/// The gateway's address on an interface of its own, there for as long as the network is.
fn hold_gateway(place: &Place, data_dir: &Path) -> io::Result<()> {
    let links = Links::open()?;
    let exists = |error: &io::Error| error.kind() == io::ErrorKind::AlreadyExists;
    match links.add_holder(&place.holder()) {
        Err(error) if !exists(&error) => return Err(error),
        _ => {}
    }
    let interface = link::index(&place.holder())?;
    let owner = data_dir.canonicalize()?;
    if let Some(owner) = owner.to_str().filter(|owner| owner.len() < LONGEST_NOTE) {
        links.note_owner(interface, owner)?;
    }
    links.make_no_addresses(interface)?;
    set_ipv6(&place.holder(), place.six().is_some());
    links.set_up(interface)?;
    for address in place.both(place.gateway()) {
        match links.add_address(interface, address) {
            Err(error) if !exists(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// How large packets may be on the way out: what the interface of the default route takes.
fn mtu() -> Option<u32> {
    let routes = Links::open().ok()?.routes().ok()?;
    let default = routes.iter().find(|route| route.to.length() == 0)?;
    let name = link::name(default.interface).ok()?;
    std::fs::read_to_string(format!("/sys/class/net/{name}/mtu")).ok()?.trim().parse().ok()
}
