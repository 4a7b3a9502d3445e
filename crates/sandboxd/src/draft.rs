//! A file that is being written and takes its name when it is whole.
//!
//! The bytes go to a temporary file in the target's directory, so a reader sees the old file or the new one, and a broken
//! upload leaves nothing behind.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use crate::paths::{Error, Place, Root};

pub struct Draft {
    directory: OwnedFd,
    temporary: OsString,
    name: OsString,
    published: bool,
}

pub enum Rights {
    /// Those of the file that is replaced, else what the umask leaves.
    Inherited,
    Exactly(u32),
}

impl Draft {
    /// Fails with EISDIR for a directory and with EINVAL for anything else that is not a regular file.
    pub fn create(root: &Root, path: &[u8], rights: Rights) -> Result<(Self, File), Error> {
        let (directory, name, replaced) = match root.resolve(path)? {
            Place::Directory(_) => return Err(Errno::ISDIR.into()),
            Place::File { parent, name } => {
                let replaced = rustix::fs::statat(&parent, &name, AtFlags::SYMLINK_NOFOLLOW)?;
                if FileType::from_raw_mode(replaced.st_mode) != FileType::RegularFile {
                    return Err(Errno::INVAL.into());
                }
                (parent, name, Some(replaced))
            }
            Place::Missing { parent, rest } => {
                let (parent, name) = create_parents(parent, rest)?;
                (parent, name, None)
            }
        };
        let (temporary, file) = create_temporary(&directory)?;
        let draft = Self { directory, temporary, name, published: false };
        if let Some(old) = &replaced {
            // Replacing must look like overwriting: the same owner, where we may give files away.
            let _ =
                rustix::fs::fchown(&file, Some(Uid::from_raw(old.st_uid)), Some(Gid::from_raw(old.st_gid)));
        }
        let mode = match rights {
            Rights::Exactly(mode) => Some(mode),
            Rights::Inherited => replaced.map(|old| old.st_mode & 0o7777),
        };
        if let Some(mode) = mode {
            rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        }
        Ok((draft, File::from(file)))
    }

    pub fn publish(mut self) -> io::Result<()> {
        rustix::fs::renameat(&self.directory, &self.temporary, &self.directory, &self.name)?;
        self.published = true;
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.published {
            let _ = rustix::fs::unlinkat(&self.directory, &self.temporary, AtFlags::empty());
        }
    }
}

/// Makes all directories of `rest` but the last component, which is returned with its parent.
pub fn create_parents(mut parent: OwnedFd, rest: Vec<OsString>) -> Result<(OwnedFd, OsString), Error> {
    let mut rest = rest.into_iter();
    let mut name = rest.next().ok_or(Errno::ISDIR)?;
    for next in rest {
        parent = make_directory(&parent, &name)?;
        name = next;
    }
    Ok((parent, name))
}

/// Makes the directory, if it is not there yet, and enters it.
pub fn make_directory(parent: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Error> {
    match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    // A link put here since the walk is not followed: it could lead anywhere.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

/// A name in the form that other implementations use for unfinished files, too.
pub fn temporary_name() -> OsString {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    OsStr::from_bytes(format!(".sandboxd-tmp-{}-{number}", std::process::id()).as_bytes()).to_owned()
}

fn create_temporary(directory: &OwnedFd) -> Result<(OsString, OwnedFd), Error> {
    loop {
        let name = temporary_name();
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(directory, &name, flags, Mode::from_raw_mode(0o666)) {
            Ok(file) => return Ok((name, file)),
            Err(Errno::EXIST) => {} // left by a daemon that had our process id and was killed
            Err(error) => return Err(error.into()),
        }
    }
}
