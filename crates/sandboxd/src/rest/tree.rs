//! Whole directories, removed and copied by descriptor: a link exchanged for a directory meanwhile is never entered.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::draft;
use crate::paths;

/// Each level holds a descriptor and some stack. Deeper directories are moved up before they are removed.
const DEEP: usize = 64;

/// Removes a directory and everything in it.
pub fn remove(parent: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
    let directory = match enter(parent, name) {
        Ok(directory) => directory,
        Err(Errno::NOTDIR | Errno::LOOP) => return rustix::fs::unlinkat(parent, name, AtFlags::empty()),
        Err(error) => return Err(error),
    };
    clear(&directory)?;
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
}

/// Removes everything in a directory.
pub fn clear(directory: &OwnedFd) -> Result<(), Errno> {
    // Directories that were too deep reappear here, so once may not be enough.
    while !names(directory)?.is_empty() {
        clear_level(directory, directory, 0)?;
    }
    Ok(())
}

fn clear_level(directory: &OwnedFd, top: &OwnedFd, depth: usize) -> Result<(), Errno> {
    for (name, _) in names(directory)? {
        match rustix::fs::unlinkat(directory, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => continue,
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(error) => return Err(error),
        }
        if depth >= DEEP {
            rustix::fs::renameat(directory, &name, top, draft::temporary_name())?;
            continue;
        }
        // Not a directory after all: the file system refused to remove a file.
        let below = enter(directory, &name)
            .map_err(|error| if error == Errno::NOTDIR { Errno::PERM } else { error })?;
        clear_level(&below, top, depth + 1)?;
        match rustix::fs::unlinkat(directory, &name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Copies a file, link or directory with everything in it. `name` must not exist in `target` yet. Sockets, pipes and
/// devices in a directory are left out.
pub fn copy(source: &OwnedFd, from: &OsStr, target: &OwnedFd, name: &OsStr) -> io::Result<()> {
    let copied = copy_level(source, from, target, name, None, 0);
    if copied.is_err() {
        let _ = remove(target, name);
    }
    copied
}

fn copy_level(
    source: &OwnedFd,
    from: &OsStr,
    target: &OwnedFd,
    name: &OsStr,
    top: Option<(u64, u64)>,
    depth: usize,
) -> io::Result<()> {
    let found = rustix::fs::statat(source, from, AtFlags::SYMLINK_NOFOLLOW)?;
    let mode = Mode::from_raw_mode(found.st_mode & 0o777);
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => copy_file(source, from, target, name, mode),
        FileType::Symlink => {
            let text = rustix::fs::readlinkat(source, from, Vec::new())?;
            Ok(rustix::fs::symlinkat(text, target, name)?)
        }
        FileType::Directory if depth >= DEEP => Err(Errno::NAMETOOLONG.into()),
        FileType::Directory => {
            let source = enter(source, from)?;
            rustix::fs::mkdirat(target, name, Mode::from_raw_mode(0o700))?;
            let target = enter(target, name)?;
            let top = top.or_else(|| identity(&target));
            if identity(&source) == top {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "a directory cannot be copied into itself",
                ));
            }
            for (name, _) in names(&source)? {
                copy_level(&source, &name, &target, &name, top, depth + 1)?;
            }
            Ok(rustix::fs::fchmod(&target, mode)?)
        }
        _ if depth == 0 => Err(Errno::NXIO.into()),
        _ => Ok(()),
    }
}

fn copy_file(source: &OwnedFd, from: &OsStr, target: &OwnedFd, name: &OsStr, mode: Mode) -> io::Result<()> {
    let mut read = paths::open_regular(source, from).map_err(|error| match error {
        paths::Error::Io(error) => error,
        paths::Error::Escape | paths::Error::Nul => Errno::ACCESS.into(),
    })?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut written = File::from(rustix::fs::openat(target, name, flags, Mode::from_raw_mode(0o600))?);
    io::copy(&mut read, &mut written)?;
    Ok(rustix::fs::fchmod(&written, mode)?)
}

fn enter(parent: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

fn identity(directory: impl AsFd) -> Option<(u64, u64)> {
    rustix::fs::fstat(directory).ok().map(|stat: Stat| (stat.st_dev, stat.st_ino))
}

/// Read before anything is changed: what `readdir` shows of a directory that changes is not defined.
pub fn names(directory: impl AsFd) -> Result<Vec<(OsString, FileType)>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let readable = rustix::fs::openat(directory, ".", flags, Mode::empty())?;
    let mut found = Vec::new();
    for item in Dir::new(readable)? {
        let item = item?;
        let name = OsStr::from_bytes(item.file_name().to_bytes());
        if name != "." && name != ".." {
            found.push((name.to_owned(), item.file_type()));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn open(path: &std::path::Path) -> OwnedFd {
        rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    #[test]
    fn a_very_deep_directory_is_removed() {
        let world = tempfile::tempdir().unwrap();
        let mut at = open(world.path());
        rustix::fs::mkdirat(&at, "deep", Mode::from_raw_mode(0o755)).unwrap();
        at = enter(&at, OsStr::new("deep")).unwrap();
        for _ in 0..1000 {
            rustix::fs::mkdirat(&at, "d", Mode::from_raw_mode(0o755)).unwrap();
            at = enter(&at, OsStr::new("d")).unwrap();
        }
        remove(&open(world.path()), OsStr::new("deep")).unwrap();
        assert_eq!(fs::read_dir(world.path()).unwrap().count(), 0);
    }

    #[test]
    fn links_in_a_removed_directory_are_not_followed() {
        let world = tempfile::tempdir().unwrap();
        fs::create_dir_all(world.path().join("kept/sub")).unwrap();
        fs::create_dir(world.path().join("gone")).unwrap();
        std::os::unix::fs::symlink("../kept", world.path().join("gone/link")).unwrap();
        remove(&open(world.path()), OsStr::new("gone")).unwrap();
        assert!(world.path().join("kept/sub").is_dir() && !world.path().join("gone").exists());
    }

    #[test]
    fn a_directory_is_not_copied_into_itself() {
        let world = tempfile::tempdir().unwrap();
        fs::create_dir_all(world.path().join("a/b")).unwrap();
        let (top, inside) = (open(world.path()), open(&world.path().join("a/b")));
        assert!(copy(&top, OsStr::new("a"), &inside, OsStr::new("c")).is_err());
        assert!(!world.path().join("a/b/c").exists(), "nothing is left behind");
    }
}
