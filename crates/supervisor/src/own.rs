//! Namespaces that root of a privileged sandbox has every right over.
//!
//! All others are in namespaces that belong to the machine's user namespace, so that nothing inside can be mounted, renamed or
//! undone whatever capability a program has. For a privileged one they are made once more, below the sandbox's own user
//! namespace: the kernel then takes every mount that was there for locked. Its pid namespace and the network that it was given
//! remain the machine's. Programs inside make further ones as they like.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::identity::with_child;
use crate::rights;
use crate::step::{Result, Step};

pub struct Own(Vec<(OwnedFd, LinkNameSpaceType)>);

const IPC: LinkNameSpaceType = LinkNameSpaceType::InterProcessCommunication;

/// As `/proc` calls them. The mount namespace comes last: to enter it changes what paths mean.
const KINDS: [(&str, LinkNameSpaceType, UnshareFlags); 4] = [
    ("uts", LinkNameSpaceType::HostNameAndNISDomainName, UnshareFlags::NEWUTS),
    ("ipc", IPC, UnshareFlags::NEWIPC),
    ("cgroup", LinkNameSpaceType::ControlGroup, UnshareFlags::NEWCGROUP),
    ("mnt", LinkNameSpaceType::Mount, UnshareFlags::NEWNS),
];

impl Own {
    /// Makes them from those of this process. IPC that is shared with another sandbox stays what it is.
    pub fn make(user: &OwnedFd, shares_ipc: bool) -> Result<Self> {
        let kinds = || KINDS.into_iter().filter(move |(_, kind, _)| *kind != IPC || !shares_ipc);
        let new = kinds().fold(UnshareFlags::empty(), |all, (_, _, flag)| all | flag);
        let become_root = || {
            rights::enter(user, None)?;
            // SAFETY: the descriptor table is not among what is unshared.
            unsafe { rustix::thread::unshare_unsafe(new) }
        };
        with_child("make namespaces of its own", become_root, |pid| {
            let namespace = |(name, kind, _)| {
                let path = format!("/proc/{pid}/ns/{name}");
                let opened = open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
                opened.step_at("open", path).map(|opened| (opened, kind))
            };
            kinds().map(namespace).collect::<Result<_>>().map(Self)
        })
    }

    /// What another process needs to have the same: each namespace and the place of its kind among [`KINDS`].
    pub fn parts(&self) -> impl Iterator<Item = (u8, BorrowedFd<'_>)> {
        self.0.iter().filter_map(|(namespace, kind)| {
            let place = KINDS.iter().position(|(_, known, _)| known == kind)?;
            Some((place as u8, namespace.as_fd()))
        })
    }

    /// The same from its parts.
    pub fn of(kinds: &[u8], namespaces: impl IntoIterator<Item = OwnedFd>) -> Self {
        let kinds = kinds.iter().filter_map(|place| KINDS.get(usize::from(*place)));
        Self(namespaces.into_iter().zip(kinds).map(|(namespace, (_, kind, _))| (namespace, *kind)).collect())
    }

    /// Only for whoever has every capability in the sandbox's user namespace.
    pub fn enter(&self) -> std::result::Result<(), Errno> {
        self.0
            .iter()
            .try_for_each(|(namespace, kind)| move_into_link_name_space(namespace.as_fd(), Some(*kind)))
    }
}
