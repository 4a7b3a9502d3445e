//! Where an engine's network is on the machine: names that no other engine uses, and addresses that lead nowhere else.
//!
//! Chosen once, remembered in the data directory, and chosen anew only when the addresses were taken by somebody
//! else while no sandbox had one.

use std::fs::File;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::address6::Block6;
use crate::cidr::Cidr;
use crate::forwarding;
use crate::link::{self, Links, Route};

/// Blocks to choose from: the middle of 10.64.0.0/10, which few networks use.
const CANDIDATES: Cidr = Cidr::literal(FIRST.octets(), 10);
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 64, 0, 0);
/// Room for 16 thousand sandboxes.
const LENGTH: u8 = 18;
/// The candidate to look at first.
const FAVOURITE: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 0);

/// Where the addresses of services are: no sandbox has one of them, and no packet leaves for them.
pub const SERVICES: Cidr = Cidr::literal([10, 127, 0, 0], 16);

const FILE: &str = "network.json";

/// Names and addresses of one engine's network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Six hexadecimal digits, part of every name.
    tag: String,
    range: Cidr,
    /// Whether sandboxes have IPv6 addresses, too.
    #[serde(default)]
    six: bool,
}

impl Place {
    /// The interface that holds the gateway's address, and what other names begin with.
    pub fn holder(&self) -> String {
        format!("asb{}", self.tag)
    }

    /// The reverse of [`Place::holder`], for names alone: the addresses are not known.
    pub fn of_holder(interface: &str) -> Option<Self> {
        let tag = interface.strip_prefix("asb").filter(|tag| tag.len() == 6)?;
        let is_tag = tag.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_tag.then(|| Self { tag: tag.to_owned(), range: CANDIDATES, six: false })
    }

    /// What the names of the machine's ends of all sandboxes begin with.
    pub fn prefix(&self) -> String {
        format!("asb{}-", self.tag)
    }

    pub fn interface_of(&self, address: Ipv4Addr) -> String {
        let number = u32::from(address).wrapping_sub(self.first());
        format!("{}{number:04x}", self.prefix())
    }

    /// Whose interface it is: the reverse of [`Place::interface_of`].
    pub fn address_of(&self, interface: &str) -> Option<Ipv4Addr> {
        let number = u32::from_str_radix(interface.strip_prefix(&self.prefix())?, 16).ok()?;
        Some(self.first().wrapping_add(number).into())
    }

    /// The table of packet filter rules.
    pub fn table(&self) -> String {
        format!("asb-{}", self.tag)
    }

    pub fn range(&self) -> Cidr {
        self.range
    }

    /// Where sandboxes send what is not for themselves, and where names are resolved.
    pub fn gateway(&self) -> Ipv4Addr {
        (self.first() + 1).into()
    }

    /// The addresses beside those of sandboxes; `None`: there are none.
    pub fn six(&self) -> Option<Block6> {
        self.six.then(|| Block6::of_tag(&self.tag))
    }

    /// An address and the one beside it, if there is one.
    pub fn both(&self, address: Ipv4Addr) -> Vec<IpAddr> {
        let six = self.six().map(|six| six.beside(address).into());
        std::iter::once(address.into()).chain(six).collect()
    }

    /// Which sandbox an address is for, by its IPv4 address.
    pub fn owner(&self, address: IpAddr) -> Option<Ipv4Addr> {
        match address {
            IpAddr::V4(address) => self.range.contains(address).then_some(address),
            six => self.six()?.owner(six),
        }
    }

    /// The first and the last address for sandboxes.
    pub fn sandboxes(&self) -> (Ipv4Addr, Ipv4Addr) {
        let size = 1 << (32 - self.range.length());
        ((self.first() + 2).into(), (self.first() + size - 2).into())
    }

    fn first(&self) -> u32 {
        match self.range.first() {
            IpAddr::V4(first) => first.into(),
            IpAddr::V6(_) => 0,
        }
    }

    /// What a data directory remembers.
    pub fn read(data_dir: &Path) -> io::Result<Option<Self>> {
        match std::fs::read(path(data_dir)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            text => Ok(Some(serde_json::from_slice(&text?)?)),
        }
    }

    /// The remembered place if it is (still) ours or free, else a new one, which is remembered.
    ///
    /// `used` says that sandboxes have addresses there: then it is kept, come what may.
    pub fn choose(data_dir: &Path, used: bool) -> io::Result<Self> {
        let remembered = Self::read(data_dir)?;
        let interfaces = link::names()?;
        if let Some(place) = &remembered
            && (used || interfaces.contains(&place.holder()))
        {
            return Ok(Self { six: place.six && forwarding::has_six(), ..place.clone() });
        }
        let routes = Links::open()?.routes()?;
        let favourite = remembered.as_ref().map(|place| place.range);
        let range = free_range(&routes, favourite).ok_or_else(|| {
            io::Error::other(format!("every block of {CANDIDATES} leads somewhere already"))
        })?;
        let tag = match remembered {
            Some(place) => place.tag,
            None => free_tag(&interfaces),
        };
        let place = Self { tag, range, six: forwarding::may_pass_six()? };
        place.remember(data_dir)?;
        Ok(place)
    }

    /// On disk before it is used: a file that a reset of the machine has emptied would leave sandboxes without a network.
    fn remember(&self, data_dir: &Path) -> io::Result<()> {
        let fresh = data_dir.join(format!(".{FILE}.new"));
        let mut file = File::create(&fresh)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.sync_all()?;
        std::fs::rename(fresh, path(data_dir))
    }
}

fn path(data_dir: &Path) -> PathBuf {
    data_dir.join(FILE)
}

fn free_tag(interfaces: &[String]) -> String {
    loop {
        let tag = format!("{:06x}", rand::random::<u32>() >> 8);
        if !interfaces.iter().any(|name| name.starts_with(&format!("asb{tag}"))) {
            return tag;
        }
    }
}

/// The first candidate that no route leads into. The default route leads everywhere and does not count.
fn free_range(routes: &[Route], favourite: Option<Cidr>) -> Option<Cidr> {
    let size = 1u32 << (32 - LENGTH);
    let count = 1u32 << (LENGTH - CANDIDATES.length());
    let all = u32::from(FIRST);
    let first = (u32::from(FAVOURITE) - all) / size;
    let candidates = (0..count).filter_map(|number| {
        let at = all + (first + number) % count * size;
        Cidr::new(Ipv4Addr::from(at), LENGTH)
    });
    let leads_there = |range: &Cidr, route: &Route| route.to.length() > 0 && route.to.overlaps(range);
    let free =
        |range: &Cidr| !SERVICES.overlaps(range) && !routes.iter().any(|route| leads_there(range, route));
    favourite.into_iter().chain(candidates).find(free)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(to: &str) -> Route {
        Route { to: to.parse().unwrap(), interface: 1 }
    }

    #[test]
    fn ranges_that_lead_somewhere_are_passed_over() {
        let all = |routes: &[&str]| {
            let routes: Vec<_> = routes.iter().map(|to| route(to)).collect();
            free_range(&routes, None).map(|range| range.to_string())
        };
        assert_eq!(all(&["0.0.0.0/0", "192.168.0.0/16"]).as_deref(), Some("10.88.0.0/18"));
        assert_eq!(all(&["10.88.0.1/32"]).as_deref(), Some("10.88.64.0/18"));
        assert_eq!(all(&["10.88.0.0/13"]).as_deref(), Some("10.96.0.0/18"));
        assert_eq!(all(&["10.88.0.0/13", "10.96.0.0/11"]).as_deref(), Some("10.64.0.0/18"), "wraps around");
        assert_eq!(all(&["10.0.0.0/8"]), None);
        assert_eq!(
            all(&[
                "10.64.0.0/11",
                "10.96.0.0/12",
                "10.112.0.0/13",
                "10.120.0.0/14",
                "10.124.0.0/15",
                "10.126.0.0/16"
            ]),
            None,
            "services have the last"
        );
        let kept = free_range(&[route("10.88.0.0/18")], Some("10.100.0.0/18".parse().unwrap()));
        assert_eq!(kept, Some("10.100.0.0/18".parse().unwrap()));
    }

    #[test]
    fn names_fit_into_an_interface_and_tell_the_address() {
        let place = Place { tag: "0a1b2c".to_owned(), range: "10.88.64.0/18".parse().unwrap(), six: false };
        let (first, last) = place.sandboxes();
        for address in [first, last] {
            let name = place.interface_of(address);
            assert!(name.len() < 16, "{name}");
            assert_eq!(place.address_of(&name), Some(address));
        }
        assert_eq!(place.address_of("asb0a1b2d-0002"), None);
        let with_six = Place { six: true, ..place.clone() };
        assert_eq!((place.both(first).len(), with_six.both(first).len()), (1, 2));
        assert!(with_six.both(first).into_iter().all(|address| with_six.owner(address) == Some(first)));
        assert_eq!(with_six.owner(Ipv4Addr::new(10, 88, 0, 2).into()), None, "of another engine");
        assert_eq!((place.gateway(), first), (Ipv4Addr::new(10, 88, 64, 1), Ipv4Addr::new(10, 88, 64, 2)));
    }
}
