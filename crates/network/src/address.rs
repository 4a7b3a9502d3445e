//! One address per sandbox.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::{Mutex, PoisonError};

/// Hands out addresses in turn, so that one that was given back is the last to be given again: whatever still
/// remembers its old owner has time to forget.
#[derive(Debug)]
pub struct Addresses {
    first: u32,
    last: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    taken: BTreeSet<u32>,
    next: u32,
}

impl Addresses {
    pub fn new(first: Ipv4Addr, last: Ipv4Addr) -> Self {
        let (first, last) = (first.into(), last.into());
        Self { first, last, state: Mutex::new(State { taken: BTreeSet::new(), next: first }) }
    }

    /// The next address that nobody has, or `None` when all are taken.
    pub fn take(&self) -> Option<Ipv4Addr> {
        let mut state = self.lock();
        let free = (state.next..=self.last)
            .chain(self.first..state.next)
            .find(|address| !state.taken.contains(address))?;
        state.taken.insert(free);
        state.next = if free == self.last { self.first } else { free + 1 };
        Some(free.into())
    }

    /// Marks the address of a sandbox that was there before us.
    pub fn keep(&self, address: Ipv4Addr) {
        let address = u32::from(address);
        let mut state = self.lock();
        state.taken.insert(address);
        if (state.next..self.last).contains(&address) {
            state.next = address + 1;
        }
    }

    pub fn give_back(&self, address: Ipv4Addr) {
        self.lock().taken.remove(&address.into());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 88, 0, last)
    }

    #[test]
    fn no_address_is_given_twice_until_it_is_back_and_all_others_had_their_turn() {
        let addresses = Addresses::new(address(2), address(5));
        addresses.keep(address(3));
        assert_eq!(addresses.take(), Some(address(4)));
        addresses.give_back(address(4));
        assert_eq!(addresses.take(), Some(address(5)));
        assert_eq!(addresses.take(), Some(address(2)));
        assert_eq!(addresses.take(), Some(address(4)));
        assert_eq!(addresses.take(), None);
        addresses.give_back(address(3));
        assert_eq!(addresses.take(), Some(address(3)));
    }
}
