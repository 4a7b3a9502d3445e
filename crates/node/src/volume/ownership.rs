//! `fsGroup`: gives a volume to a group, as the kubelet does it.
//!
//! Sandboxes write to volumes, also while this runs: nothing is followed, everything is changed by descriptor.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, chownat, fstat, openat, openat2,
};
use rustix::io::Errno;

use crate::pod::groups::FsGroup;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Gives `volume` and all in it to the group, which may then read it and, unless it is `read_only`, write to it.
pub fn give(volume: &Path, group: FsGroup, read_only: bool) -> io::Result<()> {
    let top = openat(CWD, volume, DIRECTORY, Mode::empty())?;
    if group.only_if_the_top_differs && is_given(&fstat(&top)?, group.id, read_only) {
        return Ok(());
    }
    let mut directories = vec![PathBuf::new()];
    while let Some(path) = directories.pop() {
        let directory = match open_below(&top, &path) {
            // Replaced since it was listed.
            Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR) => continue,
            opened => opened?,
        };
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let child = match openat(&directory, name, flags, Mode::empty()) {
                Err(Errno::NOENT) => continue,
                opened => opened?,
            };
            if FileType::from_raw_mode(fstat(&child)?.st_mode) == FileType::Directory {
                directories.push(path.join(name));
            } else {
                give_one(&child, group.id, read_only)?;
            }
        }
        give_one(&directory, group.id, read_only)?;
    }
    Ok(())
}

fn open_below(top: &OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
    if path.as_os_str().is_empty() {
        return openat(top, ".", DIRECTORY, Mode::empty());
    }
    openat2(top, path, DIRECTORY, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
}

fn give_one(file: &impl AsFd, group: u32, read_only: bool) -> io::Result<()> {
    let stat = fstat(file)?;
    if is_given(&stat, group, read_only) {
        return Ok(());
    }
    chownat(file, "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind == FileType::Symlink {
        return Ok(()); // its mode means nothing
    }
    // Not set-user-id and set-group-id, which a file loses with its owner.
    let mode = (stat.st_mode & 0o1777) | added(kind, read_only);
    let by_descriptor = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    std::fs::set_permissions(by_descriptor, std::fs::Permissions::from_mode(mode))
}

fn is_given(stat: &Stat, group: u32, read_only: bool) -> bool {
    let kind = FileType::from_raw_mode(stat.st_mode);
    let added = if kind == FileType::Symlink { 0 } else { added(kind, read_only) };
    stat.st_gid == group && stat.st_mode & added == added
}

/// What the group may do. Files made in a directory of the group belong to the group too.
fn added(kind: FileType, read_only: bool) -> u32 {
    let files = if read_only { 0o440 } else { 0o660 };
    if kind == FileType::Directory { files | 0o2110 } else { files }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    /// Group and mode.
    fn of(path: &Path) -> (u32, u32) {
        let metadata = path.symlink_metadata().unwrap();
        (metadata.gid(), metadata.mode() & 0o7777)
    }

    #[test]
    fn all_of_a_volume_and_nothing_else_is_given_to_the_group() {
        assert!(rustix::process::getuid().is_root(), "only root can give files away");
        let (volume, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (top, key) = (volume.path(), outside.path().join("key"));
        fs::write(&key, "").unwrap();
        fs::create_dir_all(top.join("a/b")).unwrap();
        fs::write(top.join("a/b/file"), "").unwrap();
        fs::set_permissions(top.join("a/b/file"), fs::Permissions::from_mode(0o4700)).unwrap();
        symlink(&key, top.join("a/link")).unwrap();
        symlink(outside.path(), top.join("directory")).unwrap();
        let before = (of(&key), of(outside.path()));
        give(top, FsGroup { id: 2000, only_if_the_top_differs: false }, false).unwrap();
        assert_eq!(of(&top.join("a/b/file")), (2000, 0o760));
        assert_eq!(of(&top.join("a/b")), (2000, 0o2775));
        assert_eq!((of(top).0, of(top).1 & 0o2070), (2000, 0o2070));
        assert_eq!(of(&top.join("a/link")).0, 2000);
        assert_eq!((of(&key), of(outside.path())), before, "links are not followed");
    }

    #[test]
    fn policy_can_leave_a_volume_whose_top_is_right_alone() {
        assert!(rustix::process::getuid().is_root(), "only root can give files away");
        let volume = tempfile::tempdir().unwrap();
        let group = FsGroup { id: 2000, only_if_the_top_differs: true };
        give(volume.path(), group, false).unwrap();
        let late = volume.path().join("late");
        fs::write(&late, "").unwrap();
        std::os::unix::fs::chown(&late, None, Some(7)).unwrap();
        give(volume.path(), group, false).unwrap();
        assert_eq!(of(&late).0, 7);
        give(volume.path(), FsGroup { only_if_the_top_differs: false, ..group }, true).unwrap();
        assert_eq!(of(&late).0, 2000);
    }
}
