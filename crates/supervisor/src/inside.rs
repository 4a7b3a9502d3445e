//! Paths inside the new root, resolved so that no symbolic link in an image or volume leads out of it.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use asb_supervisor::launch::Failure;
use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, mkdirat, openat, openat2, unlinkat,
};
use rustix::io::Errno;

use crate::step::{Result, Step};

/// The root of a sandbox that is being made, seen from outside.
pub struct Inside {
    root: OwnedFd,
    /// Who owns what is made in it: id 0 inside.
    owner: u32,
    /// Mode of directories that are made in it.
    mode: u32,
}

impl Inside {
    pub fn new(root: OwnedFd, owner: u32) -> Self {
        Self { root, owner, mode: 0o755 }
    }

    /// The same of a directory that is kept open elsewhere.
    pub fn of(root: &OwnedFd, owner: u32) -> Result<Self> {
        Ok(Self::new(root.try_clone().step("keep a directory open")?, owner))
    }

    /// Directories that are made in it can be used by any user.
    pub fn for_everybody(self) -> Self {
        Self { mode: 0o777, ..self }
    }

    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// What is at `path`, of whatever kind.
    pub fn find(&self, path: &Path) -> std::result::Result<OwnedFd, Errno> {
        self.open(path, OFlags::PATH)
    }

    /// The directory at `path`; missing ones are made.
    pub fn directory(&self, path: &Path) -> Result<OwnedFd> {
        let mut reached = PathBuf::from("/");
        let mut directory = self.open(&reached, OFlags::PATH).step_at("open the root", &reached)?;
        for name in names(path)? {
            let parent = directory;
            reached.push(name);
            directory = match self.open(&reached, OFlags::PATH | OFlags::DIRECTORY) {
                Err(Errno::NOENT) => {
                    mkdirat(&parent, name, Mode::from_raw_mode(self.mode))
                        .step_at("make directory", &reached)?;
                    self.own(&parent, name).step_at("own directory", &reached)?;
                    self.open(&reached, OFlags::PATH | OFlags::DIRECTORY)
                        .step_at("open directory", &reached)?
                }
                other => other.step_at("open directory", &reached)?,
            };
        }
        Ok(directory)
    }

    /// The file at `path`, to mount something over; an empty one is made when there is none.
    pub fn file(&self, path: &Path) -> Result<OwnedFd> {
        match self.open(path, OFlags::PATH) {
            Err(Errno::NOENT) => {
                self.write(path, b"")?;
                self.open(path, OFlags::PATH).step_at("open file", path)
            }
            other => other.step_at("open file", path),
        }
    }

    /// The file at `path`, to read from.
    pub fn readable(&self, path: &Path) -> Result<OwnedFd> {
        self.open(path, OFlags::RDONLY | OFlags::NONBLOCK).step_at("open file", path)
    }

    /// Puts a file with these contents at `path`, in place of whatever is there, be it a link.
    pub fn write(&self, path: &Path, contents: &[u8]) -> Result<()> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::INVAL).step_at("write file", path);
        };
        let parent = self.directory(parent)?;
        match unlinkat(&parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno).step_at("replace file", path),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(&parent, name, flags, Mode::from_raw_mode(0o644)).step_at("create file", path)?;
        std::fs::File::from(file).write_all(contents).step_at("write file", path)?;
        self.own(&parent, name).step_at("own file", path)
    }

    fn own(&self, parent: &OwnedFd, name: &std::ffi::OsStr) -> std::result::Result<(), Errno> {
        let (uid, gid) = (Uid::from_raw(self.owner), Gid::from_raw(self.owner));
        chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
    }

    fn open(&self, path: &Path, flags: OFlags) -> std::result::Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        // The kernel gives up with EAGAIN when anything anywhere was renamed while it followed a `..`.
        for _ in 0..128 {
            match openat2(&self.root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
                Err(Errno::AGAIN) => continue,
                other => return other,
            }
        }
        Err(Errno::AGAIN)
    }
}

/// The components of an absolute path that has no `..` in it.
fn names(path: &Path) -> std::result::Result<Vec<&std::ffi::OsStr>, Failure> {
    path.components()
        .filter(|component| !matches!(component, Component::RootDir | Component::CurDir))
        .map(|component| match component {
            Component::Normal(name) => Ok(name),
            _ => Err(Errno::INVAL).step_at("resolve path", path),
        })
        .collect()
}
