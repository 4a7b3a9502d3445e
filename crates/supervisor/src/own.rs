//! Namespaces that root of a privileged sandbox has every right over.
//!
//! All others are in namespaces that belong to the machine's user namespace, so that nothing inside can be mounted, renamed or
//! undone whatever capability a program has. For a privileged one they are made once more, below the sandbox's own user
//! namespace: the kernel then takes every mount that was there for locked. Its pid namespace and the network that it was given
//! remain the machine's. Programs inside make further ones as they like.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::thread::{UnshareFlags, move_into_link_name_space};

use crate::identity::with_child;
use crate::rights;
use crate::step::{Result, Step};

pub struct Own(Vec<OwnedFd>);

/// As `/proc` calls them. The mount namespace comes last: to enter it changes what paths mean.
const KINDS: [(&str, UnshareFlags); 4] = [
    ("uts", UnshareFlags::NEWUTS),
    ("ipc", UnshareFlags::NEWIPC),
    ("cgroup", UnshareFlags::NEWCGROUP),
    ("mnt", UnshareFlags::NEWNS),
];

impl Own {
    /// Makes them from those of this process. IPC that is shared with another sandbox stays what it is.
    pub fn make(user: &OwnedFd, shares_ipc: bool) -> Result<Self> {
        let kinds =
            || KINDS.into_iter().filter(move |(_, flag)| *flag != UnshareFlags::NEWIPC || !shares_ipc);
        let new = kinds().fold(UnshareFlags::empty(), |all, (_, flag)| all | flag);
        let become_root = || {
            rights::enter(user, None)?;
            // SAFETY: the descriptor table is not among what is unshared.
            unsafe { rustix::thread::unshare_unsafe(new) }
        };
        with_child("make namespaces of its own", become_root, |pid| {
            let namespace = |(name, _)| {
                let path = format!("/proc/{pid}/ns/{name}");
                open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).step_at("open", path)
            };
            kinds().map(namespace).collect::<Result<_>>().map(Self)
        })
    }

    /// Another process makes the same of these, in this order.
    pub fn parts(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(AsFd::as_fd)
    }

    pub fn of(parts: Vec<OwnedFd>) -> Self {
        Self(parts)
    }

    /// Takes every capability in the sandbox's user namespace.
    pub fn enter(&self) -> std::result::Result<(), Errno> {
        // A namespace knows of which kind it is.
        self.0.iter().try_for_each(|namespace| move_into_link_name_space(namespace.as_fd(), None))
    }
}
