//! Removing a directory that a sandbox has filled.
//!
//! What is inside may be nested deeper than there are descriptors or stack, or than a path can be long. So nothing is
//! descended into: a directory that is not empty is moved up next to its top and emptied there in its turn.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags, open, openat, renameat_with, unlinkat};
use rustix::io::Errno;

/// Removes a directory and everything in it. It is fine when there is none.
pub fn directory(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    directory_at(&open(parent, flags, Mode::empty())?, name)
}

/// The same for a directory with this name in `parent`.
pub fn directory_at(parent: &impl AsFd, name: &OsStr) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = match openat(parent, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        top => top?,
    };
    let mut moved = 0u64;
    let mut waiting: VecDeque<OsString> = VecDeque::new();
    empty(&top, None, &mut moved, &mut waiting)?;
    while let Some(name) = waiting.pop_front() {
        empty(&top, Some(&name), &mut moved, &mut waiting)?;
        unlinkat(&top, &name, AtFlags::REMOVEDIR)?;
    }
    Ok(unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

/// Empties `top` itself or one directory in it; what is not empty goes to `waiting`, under a name of its own in `top`.
fn empty(
    top: &OwnedFd,
    name: Option<&OsString>,
    moved: &mut u64,
    waiting: &mut VecDeque<OsString>,
) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = match name {
        Some(name) => openat(top, name, flags, Mode::empty())?,
        None => openat(top, ".", flags, Mode::empty())?,
    };
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        let child = OsStr::from_bytes(entry.file_name().to_bytes());
        if child == "." || child == ".." {
            continue;
        }
        match unlinkat(&directory, child, AtFlags::empty()) {
            Err(Errno::ISDIR | Errno::PERM) => {}
            Ok(()) | Err(Errno::NOENT) => continue,
            Err(errno) => return Err(errno.into()),
        }
        match unlinkat(&directory, child, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => waiting.push_back(lift(&directory, child, top, moved)?),
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Moves a directory up into `top`.
fn lift(from: &impl AsFd, child: &OsStr, top: &OwnedFd, moved: &mut u64) -> io::Result<OsString> {
    loop {
        *moved += 1;
        let name = OsString::from(format!(".removed-{moved}"));
        match renameat_with(from, child, top, &name, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            other => return other.map(|()| name).map_err(Into::into),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_deeper_than_any_path_is_removed() {
        let parent = tempfile::tempdir().expect("temporary directory");
        let top = parent.path().join("top");
        std::fs::create_dir(&top).expect("made");
        std::fs::write(top.join("file"), "x").expect("written");
        std::os::unix::fs::symlink("/etc", top.join("link")).expect("linked");
        let mut directory = open(&top, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("opened");
        // Two characters a level: past the 4096 that a path can have.
        for _ in 0..2_100 {
            rustix::fs::mkdirat(&directory, "d", Mode::RWXU).expect("made");
            directory =
                openat(&directory, "d", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("opened");
        }
        drop(directory);
        super::directory(&top).expect("removed");
        assert!(!top.exists() && Path::new("/etc").exists());
        super::directory(&top).expect("nothing left to do");
    }
}
