//! Where the entries of a layer go: below one directory, whatever names and links the layer has.
//!
//! Every path is resolved by the kernel with that directory as its root (`openat2`, `RESOLVE_IN_ROOT`), so `..`, absolute
//! names and links made by earlier entries all end inside. The last part of a path is never followed.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, XattrFlags, chmodat, fsetxattr, mkdirat, openat,
    openat2, statat, unlinkat,
};
use rustix::io::Errno;

use crate::image::{Error, Limits};
use crate::powers;

/// A directory that a layer is unpacked to.
pub struct Place {
    root: OwnedFd,
}

/// Where one entry goes: its directory, and its name there.
pub struct Spot {
    pub parent: OwnedFd,
    pub name: PathBuf,
}

/// The parts of an entry's path: relative, plain, within the limits. Empty for the root itself.
pub fn parts(path: &[u8], limits: &Limits) -> Result<PathBuf, Error> {
    let refuse = |problem: String| Err(refused(path, problem));
    if path.len() > limits.path_bytes {
        return refuse(format!("its path is longer than {} bytes", limits.path_bytes));
    }
    if path.contains(&0) {
        return refuse("its path holds a NUL".to_owned());
    }
    let mut plain = PathBuf::new();
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return refuse("its path leads upwards (`..`)".to_owned()),
            part => plain.push(OsStr::from_bytes(part)),
        }
    }
    if plain.components().count() > limits.depth {
        return refuse(format!("it is deeper than {} directories", limits.depth));
    }
    Ok(plain)
}

pub fn refused(path: &[u8], problem: impl Into<String>) -> Error {
    let mut entry = String::from_utf8_lossy(path).into_owned();
    if entry.len() > 200 {
        entry = entry.chars().take(200).chain(['…']).collect();
    }
    Error::Entry { entry, problem: problem.into() }
}

pub fn failed(path: &Path) -> impl FnOnce(Errno) -> Error {
    let path = path.to_owned();
    move |errno| Error::Unpack { path, source: errno.into() }
}

impl Place {
    pub fn new(root: OwnedFd) -> Self {
        Self { root }
    }

    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Where `path` goes. Directories on the way that the layer does not have are made, and told to `implied`.
    pub fn spot(&self, path: &Path, implied: &mut Vec<PathBuf>) -> Result<Spot, Error> {
        let (parent, name) = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => (parent, PathBuf::from(name)),
            _ => return Err(refused(path.as_os_str().as_bytes(), "it has no name")),
        };
        Ok(Spot { parent: self.directory(parent, implied)?, name })
    }

    /// A file or directory that the layer has, by a path as entries have it.
    pub fn existing(&self, path: &Path) -> Result<Spot, Errno> {
        let name = path.file_name().ok_or(Errno::INVAL)?.into();
        let parent = self.open(path.parent().unwrap_or(Path::new("")))?;
        Ok(Spot { parent, name })
    }

    /// Whether there is a directory at `path`, and no link on the way.
    pub fn has_plain(&self, path: &Path) -> bool {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat2(&self.root, path, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
            .is_ok()
    }

    fn directory(&self, path: &Path, implied: &mut Vec<PathBuf>) -> Result<OwnedFd, Error> {
        match self.open(path) {
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            other => return other.map_err(failed(path)),
        }
        let mut reached = PathBuf::new();
        let mut directory = self.open(&reached).map_err(failed(path))?;
        for part in path {
            let spot = Spot { parent: directory, name: part.into() };
            reached.push(part);
            directory = match self.open(&reached) {
                Ok(found) => found,
                Err(Errno::NOENT | Errno::NOTDIR) => {
                    spot.make_implied(&reached)?;
                    implied.push(reached.clone());
                    self.open(&reached).map_err(failed(&reached))?
                }
                Err(errno) => return Err(failed(&reached)(errno)),
            };
        }
        Ok(directory)
    }

    fn open(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        loop {
            match openat2(&self.root, path, flags, Mode::empty(), resolve) {
                // Something somewhere was renamed while the kernel followed a `..` in a link.
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return other,
            }
        }
    }
}

impl Spot {
    pub fn stat(&self) -> Result<Option<Stat>, Errno> {
        match statat(&self.parent, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Marks what is here as deleted from the layers below.
    pub fn white_out(&self) -> Result<(), Errno> {
        match self.stat()? {
            None => {
                rustix::fs::mknodat(&self.parent, &self.name, FileType::CharacterDevice, Mode::empty(), 0)
            }
            // What this layer itself brings stays; only what is below is hidden.
            Some(stat) if is_directory(&stat) => self.hide_below(),
            Some(_) => Ok(()),
        }
    }

    /// Hides what layers below have in this directory.
    pub fn hide_below(&self) -> Result<(), Errno> {
        fsetxattr(self.open_directory()?, powers::here().opaque(), b"y", XattrFlags::empty())
    }

    pub fn open_directory(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&self.parent, &self.name, flags, Mode::empty())
    }

    /// Makes room for something that is not a directory.
    pub fn clear(&self) -> Result<(), Errno> {
        match self.stat()? {
            None => Ok(()),
            Some(stat) if is_directory(&stat) => {
                let removed = crate::remove::directory_at(&self.parent, self.name.as_os_str());
                removed.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
            }
            Some(_) => unlinkat(&self.parent, &self.name, AtFlags::empty()),
        }
    }

    /// A directory here, be it there already. In place of a deleted one it hides what is below.
    pub fn make_directory(&self) -> Result<(), Errno> {
        let found = self.stat()?;
        if found.as_ref().is_some_and(is_directory) {
            return Ok(());
        }
        if found.is_some() {
            unlinkat(&self.parent, &self.name, AtFlags::empty())?;
        }
        mkdirat(&self.parent, &self.name, Mode::from_raw_mode(0o755))?;
        self.set_mode(0o755)?;
        if found.as_ref().is_some_and(is_whiteout) { self.hide_below() } else { Ok(()) }
    }

    /// The mode of what was just made here, whatever the mask of this process took from it. Not for links.
    pub fn set_mode(&self, mode: u32) -> Result<(), Errno> {
        chmodat(&self.parent, &self.name, Mode::from_raw_mode(mode), AtFlags::empty())
    }

    fn make_implied(&self, path: &Path) -> Result<(), Error> {
        let found = self.stat().map_err(failed(path))?;
        match found {
            Some(stat) if !is_whiteout(&stat) => {
                let problem = "it is below something that is not a directory of this layer";
                Err(refused(path.as_os_str().as_bytes(), problem))
            }
            _ => self.make_directory().map_err(failed(path)),
        }
    }
}

pub fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

pub fn is_symlink(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Symlink
}

/// How overlayfs knows a deleted file.
pub fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_plain_or_are_refused() {
        let limits = Limits::default();
        for (path, expected) in [("./a/./b/", "a/b"), ("/a//b", "a/b"), (".", ""), ("", "")] {
            assert_eq!(parts(path.as_bytes(), &limits).expect("fine"), Path::new(expected));
        }
        let (long, deep) = ("a".repeat(4096), "a/".repeat(129));
        for path in ["..", "a/../b", "a\0b", &long, &deep] {
            assert!(matches!(parts(path.as_bytes(), &limits), Err(Error::Entry { .. })), "{path:?}");
        }
    }
}
