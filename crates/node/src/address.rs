//! One address per Pod. Each lives on its sandbox's own loopback interface, so nothing on the host can clash.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::{Mutex, PoisonError};

const FIRST: u32 = u32::from_be_bytes([10, 88, 0, 2]);
const LAST: u32 = u32::from_be_bytes([10, 88, 255, 254]);

#[derive(Debug, Default)]
pub struct Addresses {
    taken: Mutex<BTreeSet<u32>>,
}

impl Addresses {
    /// The lowest address that nobody has, or `None` when all are taken.
    pub fn take(&self) -> Option<Ipv4Addr> {
        let mut taken = self.lock();
        let free = (FIRST..=LAST).find(|address| !taken.contains(address))?;
        taken.insert(free);
        Some(free.into())
    }

    /// Marks the address of a sandbox that was there before us.
    pub fn keep(&self, address: Ipv4Addr) {
        self.lock().insert(address.into());
    }

    pub fn give_back(&self, address: Ipv4Addr) {
        self.lock().remove(&address.into());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<u32>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_address_is_given_twice_until_it_is_back() {
        let addresses = Addresses::default();
        addresses.keep(Ipv4Addr::new(10, 88, 0, 3));
        let first = addresses.take().unwrap();
        let second = addresses.take().unwrap();
        assert_eq!((first, second), (Ipv4Addr::new(10, 88, 0, 2), Ipv4Addr::new(10, 88, 0, 4)));
        addresses.give_back(first);
        assert_eq!(addresses.take(), Some(first));
    }
}
