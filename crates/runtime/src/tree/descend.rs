//! Down into a tree that somebody else may be changing, with memory and descriptors that do not depend on the tree.
//!
//! One directory is open per level, and none is listed ahead: a directory that is moved away meanwhile is still gone
//! through, and the way back needs no path. So there is a deepest level, far below any that a program needs.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, openat2, statat};
use rustix::io::Errno;

/// Levels below the top that are gone into.
pub const DEEPEST: usize = 256;

/// What is met on the way.
pub enum Event<'a> {
    /// Something in the directory that was entered last.
    Entry { parent: BorrowedFd<'a>, name: &'a OsStr, stat: &'a Stat },
    /// The directory that was just met, opened.
    Enter { directory: BorrowedFd<'a> },
    /// All of the directory that was entered last has been met.
    Leave,
}

/// Where to go from an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    On,
    Stop,
}

/// How a descent ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Complete,
    /// There are directories below [`DEEPEST`], which were not entered.
    TooDeep,
    Stopped,
}

/// Meets everything below a directory, in no order but that parents come before what is in them. No link is followed and
/// no mount entered; what vanishes meanwhile is passed over.
pub fn descend(root: &OwnedFd, mut meet: impl FnMut(Event<'_>) -> io::Result<Step>) -> io::Result<End> {
    let mut end = End::Complete;
    let mut open = vec![Dir::new(open_in(root, OsStr::new("."))?)?];
    while let Some(directory) = open.last_mut() {
        let Some(entry) = directory.read() else {
            open.pop();
            if !open.is_empty() {
                meet(Event::Leave)?;
            }
            continue;
        };
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        let parent = directory.fd()?;
        let stat = match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => continue,
            stat => stat?,
        };
        match meet(Event::Entry { parent, name, stat: &stat })? {
            Step::Stop => return Ok(End::Stopped),
            Step::On if FileType::from_raw_mode(stat.st_mode) != FileType::Directory => continue,
            Step::On => {}
        }
        if open.len() > DEEPEST {
            end = End::TooDeep;
            continue;
        }
        let parent = open[open.len() - 1].fd()?;
        match open_in(&parent, name) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => {
                // Something else by now.
            }
            child => {
                let child = child?;
                meet(Event::Enter { directory: child.as_fd() })?;
                open.push(Dir::new(child)?);
            }
        }
    }
    Ok(end)
}

fn open_in(parent: &impl AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    openat2(parent, name, flags, Mode::empty(), resolve)
}
