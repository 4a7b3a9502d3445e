//! A second tree like the first: files share their blocks where the filesystem can do that (FICLONE), and are copied
//! where it cannot, without their holes.
//!
//! Whoever uses the first tree may go on: each file is as it was at some moment, not all at the same one.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, Uid, XattrFlags, chownat,
    copy_file_range, fchmod, fchown, fsetxattr, fstat, ftruncate, futimens, ioctl_ficlone, linkat, mkdirat,
    mknodat, openat, readlinkat, seek, symlinkat, syncfs, utimensat,
};
use rustix::io::{Errno, pread, pwrite};

use super::descend::{DEEPEST, End, Event, Step, descend};
use super::{directory, xattr};

/// Files with several names that are remembered; further names become files of their own.
const REMEMBERED: usize = 1 << 20;
const BUFFER: usize = 128 << 10;

/// How a tree was cloned.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cloned {
    pub files: u64,
    /// Bytes that take room of their own; the rest is shared with the first tree.
    pub copied: u64,
}

/// Makes `into`, which is empty or not there yet, a clone of `from`, contents on disk. Owners, modes, times, links and
/// attributes are kept; sockets and devices are left out. No more than `room` is copied. On failure, what was made stays.
pub fn clone(from: &Path, into: &Path, room: u64) -> io::Result<Cloned> {
    let source = directory(from)?;
    match rustix::fs::mkdir(into, Mode::RWXU) {
        Err(Errno::EXIST) if std::fs::read_dir(into)?.next().is_none() => {}
        made => made?,
    }
    let top = directory(into)?;
    let mut cloner = Cloner {
        open: vec![(top.try_clone()?, Attributes::of(&source)?)],
        top,
        path: PathBuf::new(),
        next: OsString::new(),
        links: HashMap::new(),
        share: true,
        room,
        done: Cloned::default(),
    };
    let end = descend(&source, |event| cloner.meet(event))?;
    if end == End::TooDeep {
        return Err(io::Error::other(format!("directories are nested deeper than {DEEPEST} levels")));
    }
    cloner.leave()?;
    if cloner.done.copied > 0 {
        // Once for all: a machine that crashes must not find the clone with files that are empty. Those that share their
        // blocks are never: what they share is on disk before it is shared.
        syncfs(&cloner.top)?;
    }
    Ok(cloner.done)
}

struct Cloner {
    top: OwnedFd,
    /// The directories that are being filled, and what they are given when they are full.
    open: Vec<(OwnedFd, Attributes)>,
    /// Where the last of them is, from the top.
    path: PathBuf,
    /// The directory that was just met.
    next: OsString,
    /// Files with several names, and the first of those.
    links: HashMap<(u64, u64), PathBuf>,
    /// Whether the filesystem may be able to share blocks.
    share: bool,
    room: u64,
    done: Cloned,
}

struct Attributes {
    stat: Stat,
    extended: Vec<(OsString, Vec<u8>)>,
}

impl Cloner {
    fn meet(&mut self, event: Event<'_>) -> io::Result<Step> {
        match event {
            Event::Entry { parent, name, stat } => {
                name.clone_into(&mut self.next);
                self.entry(parent, name, stat).map_err(|error| self.named(name, &error))?;
            }
            Event::Enter { directory } => {
                let name = std::mem::take(&mut self.next);
                self.enter(directory, &name).map_err(|error| self.named(&name, &error))?;
            }
            Event::Leave => {
                self.leave()?;
                self.path.pop();
            }
        }
        Ok(Step::On)
    }

    fn entry(&mut self, parent: BorrowedFd<'_>, name: &OsStr, stat: &Stat) -> io::Result<()> {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => self.file(parent, name),
            FileType::Symlink => {
                let target = match readlinkat(parent, name, Vec::new()) {
                    Err(Errno::NOENT | Errno::INVAL) => return Ok(()),
                    target => OsString::from_vec(target?.into_bytes()),
                };
                self.plain(name, stat, |here| symlinkat(&target, here, name))
            }
            FileType::Fifo => {
                let mode = Mode::from_raw_mode(stat.st_mode & 0o777);
                self.plain(name, stat, |here| mknodat(here, name, FileType::Fifo, mode, 0))
            }
            _ => Ok(()), // a directory is made when it is entered
        }
    }

    /// What has no contents.
    fn plain(
        &mut self,
        name: &OsStr,
        stat: &Stat,
        make: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> io::Result<()> {
        let here = self.here();
        match make(here) {
            Err(Errno::EXIST) => return Ok(()), // met under this name already: it was moved away and back
            made => made?,
        }
        let (user, group) = owners(stat);
        chownat(here, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
        utimensat(here, name, &times(stat), AtFlags::SYMLINK_NOFOLLOW)?;
        self.done.files += 1;
        Ok(())
    }

    fn file(&mut self, parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
        // Should it have become something else meanwhile, opening that must not wait.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let from = match openat(parent, name, flags, Mode::empty()) {
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(()),
            opened => opened?,
        };
        let attributes = Attributes::of(&from)?;
        let stat = &attributes.stat;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || self.linked(name, stat)? {
            return Ok(());
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let to = match openat(self.here(), name, flags, Mode::RUSR | Mode::WUSR) {
            Err(Errno::EXIST) => return Ok(()),
            made => made?,
        };
        self.contents(&from, &to, u64::try_from(stat.st_size).unwrap_or(0))?;
        self.done.files += 1;
        attributes.give(&to)
    }

    /// Makes a further name of a file that has one.
    fn linked(&mut self, name: &OsStr, stat: &Stat) -> io::Result<bool> {
        if stat.st_nlink < 2 {
            return Ok(false);
        }
        let file = (stat.st_dev, stat.st_ino);
        let Some(first) = self.links.get(&file) else {
            if self.links.len() < REMEMBERED {
                self.links.insert(file, self.path.join(name));
            }
            return Ok(false);
        };
        match linkat(&self.top, first, self.here(), name, AtFlags::empty()) {
            Ok(()) | Err(Errno::EXIST) => Ok(true),
            Err(Errno::NAMETOOLONG | Errno::MLINK) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    fn contents(&mut self, from: &OwnedFd, to: &OwnedFd, size: u64) -> io::Result<()> {
        if self.share && size > 0 {
            match ioctl_ficlone(to, from) {
                Ok(()) => return Ok(()),
                Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::XDEV) => self.share = false,
                // Of this file only: one for swapping, say.
                Err(Errno::INVAL | Errno::TXTBSY | Errno::PERM) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        let mut at = 0;
        while at < size {
            let data = match seek(from, SeekFrom::Data(at)) {
                Err(Errno::NXIO) => break, // holes to the end
                Err(Errno::INVAL) => at,
                data => data?,
            };
            let hole = match seek(from, SeekFrom::Hole(data)) {
                Err(Errno::NXIO) => break, // it became shorter
                Err(Errno::INVAL) => size,
                hole => hole?,
            };
            self.copy(from, to, data..hole.min(size))?;
            at = hole;
        }
        Ok(ftruncate(to, size)?)
    }

    fn copy(&mut self, from: &OwnedFd, to: &OwnedFd, range: std::ops::Range<u64>) -> io::Result<()> {
        let (mut at, mut by_kernel) = (range.start, true);
        while at < range.end {
            let left = usize::try_from(range.end - at).unwrap_or(usize::MAX).min(1 << 30);
            let copied = if by_kernel {
                let (mut read, mut written) = (at, at);
                match copy_file_range(from, Some(&mut read), to, Some(&mut written), left) {
                    Err(Errno::NOSYS | Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP) => {
                        by_kernel = false;
                        continue;
                    }
                    copied => copied?,
                }
            } else {
                let mut buffer = vec![0; left.min(BUFFER)];
                let read = pread(from, &mut buffer[..], at)?;
                pwrite(to, &buffer[..read], at)?
            };
            if copied == 0 {
                return Ok(()); // it became shorter
            }
            at += copied as u64;
            self.done.copied += copied as u64;
            if self.done.copied > self.room {
                return Err(io::Error::new(
                    io::ErrorKind::StorageFull,
                    "there is not enough room for a copy",
                ));
            }
        }
        Ok(())
    }

    fn enter(&mut self, from: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
        match mkdirat(self.here(), name, Mode::RWXU) {
            Err(Errno::EXIST) => {}
            made => made?,
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = openat(self.here(), name, flags, Mode::empty())?;
        self.open.push((made, Attributes::of(&from)?));
        self.path.push(name);
        self.done.files += 1;
        Ok(())
    }

    /// The last directory is full: from now on its time does not change.
    fn leave(&mut self) -> io::Result<()> {
        match self.open.pop() {
            Some((directory, attributes)) => attributes.give(&directory),
            None => Ok(()),
        }
    }

    fn here(&self) -> BorrowedFd<'_> {
        self.open.last().map_or(self.top.as_fd(), |(directory, _)| directory.as_fd())
    }

    fn named(&self, name: &OsStr, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: {error}", self.path.join(name).display()))
    }
}

impl Attributes {
    fn of(file: &impl AsFd) -> io::Result<Self> {
        Ok(Self { stat: fstat(file)?, extended: xattr::read(file, xattr::is_local)? })
    }

    fn give(&self, to: &OwnedFd) -> io::Result<()> {
        let (user, group) = owners(&self.stat);
        fchown(to, Some(user), Some(group))?;
        // After the owner: with another one a file loses rights.
        for (name, value) in &self.extended {
            fsetxattr(to, name, value, XattrFlags::empty())?;
        }
        fchmod(to, Mode::from_raw_mode(self.stat.st_mode & 0o7777))?;
        Ok(futimens(to, &times(&self.stat))?)
    }
}

fn owners(stat: &Stat) -> (Uid, Gid) {
    (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid))
}

fn times(stat: &Stat) -> Timestamps {
    let time = |seconds, nanos| Timespec { tv_sec: seconds, tv_nsec: nanos };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec as _),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec as _),
    }
}
