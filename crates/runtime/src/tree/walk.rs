//! Everything in a tree, one entry at a time, by descriptor: no link leads anywhere else, whoever changes it meanwhile.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, openat2, statat};
use rustix::io::Errno;

/// One entry of a tree.
pub struct Item<'a> {
    pub parent: BorrowedFd<'a>,
    pub name: &'a OsStr,
    /// From the root of the tree.
    pub path: &'a Path,
    pub stat: Stat,
}

impl Item<'_> {
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }
}

/// Visits everything below a directory, in an order that depends on names alone; parents before what is in them.
///
/// `visit` says whether to go on below. Other filesystems, such as /proc of a running system, are not entered, and what
/// vanishes meanwhile is passed over. An error names the entry.
pub fn walk(root: &OwnedFd, mut visit: impl FnMut(&Item<'_>) -> io::Result<bool>) -> io::Result<()> {
    let mut waiting = vec![PathBuf::new()];
    while let Some(directory) = waiting.pop() {
        let named = |error: io::Error| of(&directory, error);
        let here = match open_below(root, &directory) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => continue,
            here => here.map_err(|errno| named(errno.into()))?,
        };
        let mut below = Vec::new();
        for name in names(&here).map_err(named)? {
            let path = directory.join(&name);
            let stat = match statat(&here, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => continue,
                stat => stat.map_err(|errno| of(&path, errno.into()))?,
            };
            let item = Item { parent: here.as_fd(), name: &name, path: &path, stat };
            let further = visit(&item).map_err(|error| of(&path, error))?;
            if further && item.kind() == FileType::Directory {
                below.push(path);
            }
        }
        // Popped from the end: the first name comes first.
        waiting.extend(below.into_iter().rev());
    }
    Ok(())
}

fn names(directory: &OwnedFd) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name));
        }
    }
    names.sort();
    Ok(names)
}

fn open_below(root: &OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    openat2(root, path, flags, Mode::empty(), resolve)
}

fn of(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
