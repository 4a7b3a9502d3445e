//! A layer from its tar archive to a directory that overlayfs can stack: owners as in the archive, deletions
//! (`.wh.NAME`, `.wh..wh..opq`) in the form that overlayfs reads.

use std::ffi::OsStr;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use asb_supervisor::launch::IDS;
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags, chownat, fchmod, fchown,
    fsetxattr, futimens, linkat, mknodat, openat, symlinkat, utimensat,
};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};
use serde::{Deserialize, Serialize};

use super::archive::{Archive, Entry, Kind};
use super::place::{Place, Spot, failed, is_directory, is_symlink, parts, refused};
use crate::image::Error;
use crate::image::limits::Budget;
use crate::powers;

const NOBODY: u32 = 65534;
const BUFFER: usize = 128 << 10;
/// What a file costs beside its bytes.
const ENTRY_BYTES: u64 = 512;
/// Skipped entries that are remembered; nobody reads more.
const REMEMBERED: usize = 20;
pub(crate) const HIDE_BELOW: &str = ".wh..wh..opq";
pub(crate) const DELETED: &str = ".wh.";

/// What an archive is, which decides what its entries may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A layer of an image, with deletions, into an empty directory.
    Layer,
    /// The files of a volume: every name means itself; owners, modes and links are kept.
    Volume,
    /// Somebody's copy: it is theirs, with plain rights, and no link in it leads elsewhere.
    Copy,
}

/// What was unpacked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contents {
    pub entries: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// Entries that were left out or changed, each with the reason; the first of them.
    pub skipped: Vec<String>,
    /// How many more there were.
    #[serde(default)]
    pub more_skipped: u64,
    /// Directories that the layer uses without saying what they are like.
    pub implied: Vec<PathBuf>,
}

/// Unpacks `source`, uncompressed, into the directory `root`. Gives the source back, read to its end.
pub fn unpack<R: Read>(
    source: R,
    root: OwnedFd,
    budget: &Budget,
    purpose: Purpose,
) -> Result<(Contents, R), Error> {
    let mut archive = Archive::new(source, budget.limits);
    let mut unpacker = Unpacker {
        place: Place::new(root),
        purpose,
        budget,
        contents: Contents::default(),
        directories: Vec::new(),
        buffer: vec![0; BUFFER],
    };
    while let Some(entry) = archive.next()? {
        unpacker.entry(entry, &mut archive)?;
    }
    let source = archive.finish()?;
    Ok((unpacker.finish()?, source))
}

struct Unpacker<'a> {
    place: Place,
    purpose: Purpose,
    budget: &'a Budget,
    contents: Contents,
    /// Times of directories are set last: every file in them changes them.
    directories: Vec<(PathBuf, Timestamps)>,
    buffer: Vec<u8>,
}

impl Unpacker<'_> {
    fn entry<R: Read>(&mut self, mut entry: Entry, data: &mut Archive<R>) -> Result<(), Error> {
        let limits = &self.budget.limits;
        self.contents.entries += 1;
        if self.contents.entries > limits.entries {
            let problem = format!("a layer has more than {} entries", limits.entries);
            return Err(Error::TooLarge { problem });
        }
        let path = parts(&entry.path, limits)?;
        self.budget.take(ENTRY_BYTES)?;
        if self.purpose == Purpose::Copy {
            (entry.uid, entry.gid) = (geteuid().as_raw(), getegid().as_raw());
            entry.mode &= 0o777;
            entry.xattrs.clear();
        } else if !self.keeps(entry.uid) || !self.keeps(entry.gid) {
            self.skip(
                &path,
                &format!("its owner {}:{} cannot be kept here, so nobody owns it", entry.uid, entry.gid),
            );
        }
        if path.as_os_str().is_empty() {
            return self.root(&entry);
        }
        let name = path.file_name().unwrap_or_default().as_bytes();
        let is_layer = self.purpose == Purpose::Layer;
        if is_layer && name == HIDE_BELOW.as_bytes() {
            let directory = path.parent().unwrap_or(Path::new(""));
            return self.hide_below(directory);
        }
        if let Some(deleted) = name.strip_prefix(DELETED.as_bytes()).filter(|_| is_layer) {
            return self.delete(&path, deleted);
        }
        let spot = self.place.spot(&path, &mut self.contents.implied)?;
        match entry.kind {
            Kind::Directory => return self.directory(&spot, path, &entry),
            Kind::File => return self.file(&spot, &path, &entry, data),
            Kind::HardLink => return self.hard_link(&spot, &path, &entry),
            Kind::Symlink if self.purpose == Purpose::Copy && !self.stays(&path, &entry.link) => {
                self.skip(&path, "left out: it is a link to something outside of what is copied");
                Ok(())
            }
            Kind::Symlink => self.clear(&spot).and_then(|()| self.symlink(&spot, &entry)),
            Kind::Fifo if self.purpose == Purpose::Copy => {
                self.skip(&path, "left out: it is a pipe");
                Ok(())
            }
            Kind::Fifo => self.clear(&spot).and_then(|()| self.fifo(&spot, &entry)),
            Kind::Device => {
                self.skip(&path, "devices are not made; a sandbox has its own");
                Ok(())
            }
            Kind::Other(kind) => {
                self.skip(&path, &format!("entries of kind {:?} are not known", char::from(kind)));
                Ok(())
            }
        }
        .map_err(failed(&path))
    }

    fn root(&mut self, entry: &Entry) -> Result<(), Error> {
        self.open_root().and_then(|root| self.own(&root, entry)).map_err(failed(Path::new("/")))?;
        self.directories.push((PathBuf::new(), times(entry)));
        Ok(())
    }

    fn hide_below(&mut self, directory: &Path) -> Result<(), Error> {
        if directory.as_os_str().is_empty() {
            let root = self.open_root().map_err(failed(directory))?;
            return fsetxattr(root, powers::here().opaque(), b"y", XattrFlags::empty())
                .map_err(failed(directory));
        }
        let spot = self.place.spot(directory, &mut self.contents.implied)?;
        if spot.stat().map_err(failed(directory))?.is_none_or(|stat| !is_directory(&stat)) {
            self.contents.implied.push(directory.to_owned());
        }
        spot.make_directory().and_then(|()| spot.hide_below()).map_err(failed(directory))
    }

    fn open_root(&self) -> Result<OwnedFd, Errno> {
        openat(self.place.root(), ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    }

    fn delete(&mut self, path: &Path, deleted: &[u8]) -> Result<(), Error> {
        if matches!(deleted, b"" | b"." | b"..") || deleted.starts_with(b".wh.") {
            return Err(refused(path.as_os_str().as_bytes(), "it deletes something that cannot be a file"));
        }
        let target = path.with_file_name(OsStr::from_bytes(deleted));
        let spot = self.place.spot(&target, &mut self.contents.implied)?;
        spot.white_out().map_err(failed(&target))
    }

    fn directory(&mut self, spot: &Spot, path: PathBuf, entry: &Entry) -> Result<(), Error> {
        let made = spot.make_directory().and_then(|()| spot.open_directory());
        let directory = made.map_err(failed(&path))?;
        self.own(&directory, entry).map_err(failed(&path))?;
        self.xattrs(&directory, &path, entry)?;
        self.contents.implied.retain(|implied| *implied != path);
        self.directories.push((path, times(entry)));
        Ok(())
    }

    fn file<R: Read>(
        &mut self,
        spot: &Spot,
        path: &Path,
        entry: &Entry,
        data: &mut Archive<R>,
    ) -> Result<(), Error> {
        let most = self.budget.limits.file_bytes;
        if entry.size > most {
            return Err(refused(&entry.path, format!("it has {} bytes; {most} are allowed", entry.size)));
        }
        let stored = entry.segments.as_ref().map(|all| all.iter().map(|it| it.length).sum());
        // Of a layer holes count as well: what reads the file later cannot tell. In a volume they stay holes.
        self.budget.take(stored.filter(|_| self.purpose == Purpose::Volume).unwrap_or(entry.size))?;
        self.contents.bytes += entry.size;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = self
            .clear(spot)
            .and_then(|()| openat(&spot.parent, &spot.name, flags, Mode::from_raw_mode(0o600)))
            .map_err(failed(path))?;
        let mut file = std::fs::File::from(opened);
        self.write(&mut file, path, entry, data)?;
        self.own(&file, entry).map_err(failed(path))?;
        self.xattrs(&file, path, entry)?;
        futimens(&file, &times(entry)).map_err(failed(path))
    }

    fn write<R: Read>(
        &mut self,
        file: &mut std::fs::File,
        path: &Path,
        entry: &Entry,
        data: &mut Archive<R>,
    ) -> Result<(), Error> {
        let unwritten = |source| Error::Unpack { path: path.to_owned(), source };
        let Some(segments) = &entry.segments else {
            return self.copy(file, path, data, entry.size);
        };
        for segment in segments {
            file.seek(SeekFrom::Start(segment.offset)).map_err(unwritten)?;
            self.copy(file, path, data, segment.length)?;
        }
        file.set_len(entry.size).map_err(unwritten)
    }

    fn copy<R: Read>(
        &mut self,
        file: &mut std::fs::File,
        path: &Path,
        data: &mut Archive<R>,
        mut left: u64,
    ) -> Result<(), Error> {
        while left > 0 {
            let wanted = left.min(self.buffer.len() as u64) as usize;
            let count = data.read(&mut self.buffer[..wanted]).map_err(super::archive::unreadable)?;
            if count == 0 {
                return Err(refused(path.as_os_str().as_bytes(), "the archive has less data than it says"));
            }
            let written = file.write_all(&self.buffer[..count]);
            written.map_err(|source| Error::Unpack { path: path.to_owned(), source })?;
            left -= count as u64;
        }
        Ok(())
    }

    /// To a file of this layer; the last part of the target is not followed either.
    fn hard_link(&mut self, spot: &Spot, path: &Path, entry: &Entry) -> Result<(), Error> {
        let target = parts(&entry.link, &self.budget.limits)?;
        let missing = |_| {
            let link = String::from_utf8_lossy(&entry.link).into_owned();
            refused(&entry.path, format!("it is a hard link to {link:?}, which is no file of this layer"))
        };
        let existing = self.place.existing(&target).map_err(missing)?;
        let found = existing.stat().map_err(missing)?;
        if found.as_ref().is_none_or(is_directory) {
            return Err(missing(Errno::NOENT));
        }
        // Elsewhere, a symbolic link leads elsewhere.
        if self.purpose == Purpose::Copy && found.as_ref().is_some_and(is_symlink) {
            self.skip(path, "left out: it is a second name of a link");
            return Ok(());
        }
        if target == path {
            return Ok(());
        }
        self.clear(spot).map_err(failed(path))?;
        linkat(&existing.parent, &existing.name, &spot.parent, &spot.name, AtFlags::empty()).map_err(missing)
    }

    /// Only attributes that mean the same inside a sandbox. In an image, none that the overlayfs of its root would obey; in a volume
    /// they belong to an overlay that a program keeps there.
    fn xattrs(&mut self, file: &impl AsFd, path: &Path, entry: &Entry) -> Result<(), Error> {
        for (name, value) in &entry.xattrs {
            let known = name == b"security.capability" || name.starts_with(b"user.");
            let obeyed = self.purpose != Purpose::Volume && name.starts_with(b"user.overlay.");
            if !known || obeyed || name.contains(&0) {
                continue;
            }
            match fsetxattr(file, name.as_slice(), value, XattrFlags::empty()) {
                Ok(()) => {}
                Err(
                    errno @ (Errno::OPNOTSUPP | Errno::INVAL | Errno::PERM | Errno::RANGE | Errno::TOOBIG),
                ) => {
                    let name = String::from_utf8_lossy(name);
                    self.skip(path, &format!("its attribute {name} cannot be stored here ({errno})"));
                }
                Err(errno) => return Err(failed(path)(errno)),
            }
        }
        Ok(())
    }

    /// Makes room for something that is not a directory. Only in a layer does it replace a whole directory.
    fn clear(&self, spot: &Spot) -> Result<(), Errno> {
        match self.purpose {
            Purpose::Layer => spot.clear(),
            Purpose::Volume | Purpose::Copy => match spot.stat()? {
                Some(stat) if is_directory(&stat) => Err(Errno::ISDIR),
                _ => spot.clear(),
            },
        }
    }

    /// Whether a link at `path` leads to something below the root, whatever other links there are.
    fn stays(&self, path: &Path, link: &[u8]) -> bool {
        let parent = path.parent().unwrap_or(Path::new(""));
        self.place.has_plain(parent) && stays(parent.components().count(), link)
    }

    fn symlink(&self, spot: &Spot, entry: &Entry) -> Result<(), Errno> {
        symlinkat(std::ffi::OsString::from_vec(entry.link.clone()), &spot.parent, &spot.name)?;
        self.settle(spot, entry)
    }

    fn fifo(&self, spot: &Spot, entry: &Entry) -> Result<(), Errno> {
        mknodat(&spot.parent, &spot.name, FileType::Fifo, Mode::empty(), 0)?;
        self.settle(spot, entry)?;
        spot.set_mode(entry.mode)
    }

    /// Owner and time of what cannot be opened.
    fn settle(&self, spot: &Spot, entry: &Entry) -> Result<(), Errno> {
        let (uid, gid) = self.ids(entry);
        chownat(&spot.parent, &spot.name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        utimensat(&spot.parent, &spot.name, &times(entry), AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Owner first: changing it takes set-user-id away.
    fn own(&self, file: &impl AsFd, entry: &Entry) -> Result<(), Errno> {
        let (uid, gid) = self.ids(entry);
        fchown(file, Some(uid), Some(gid))?;
        fchmod(file, Mode::from_raw_mode(entry.mode))
    }

    /// Whether a file can belong to this id. In a volume to any that the machine has: sandboxes can ask for it. In a layer only
    /// to those that every sandbox has: unmapped ones cannot even be removed inside.
    fn keeps(&self, id: u32) -> bool {
        id < IDS || (self.purpose == Purpose::Volume && !powers::here().is_rootless() && id != u32::MAX)
    }

    fn ids(&self, entry: &Entry) -> (Uid, Gid) {
        let known = |id: u32| match self.purpose {
            Purpose::Copy => id,
            _ => powers::here().owner(if self.keeps(id) { id } else { NOBODY }),
        };
        (Uid::from_raw(known(entry.uid)), Gid::from_raw(known(entry.gid)))
    }

    fn skip(&mut self, path: &Path, reason: &str) {
        if self.contents.skipped.len() < REMEMBERED {
            self.contents.skipped.push(format!("{}: {reason}", path.display()));
        } else {
            self.contents.more_skipped += 1;
        }
    }

    fn finish(mut self) -> Result<Contents, Error> {
        for (path, times) in self.directories.drain(..).rev() {
            let set = match path.as_os_str().is_empty() {
                true => utimensat(self.place.root(), ".", &times, AtFlags::empty()),
                false => self
                    .place
                    .existing(&path)
                    .and_then(|spot| utimensat(&spot.parent, &spot.name, &times, AtFlags::SYMLINK_NOFOLLOW)),
            };
            match set {
                // A later entry took its place.
                Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(errno) => return Err(failed(&path)(errno)),
            }
        }
        Ok(self.contents)
    }
}

/// Whether a link that is `depth` directories below the root leads to something below the root.
///
/// Only as many `..` as there are directories, and only at the beginning: after a name, which may be that of another
/// link, nobody knows where `..` is.
fn stays(depth: usize, link: &[u8]) -> bool {
    let mut parts = link.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b".")).peekable();
    let mut up = 0;
    while parts.next_if_eq(&b"..".as_slice()).is_some() {
        up += 1;
    }
    !link.is_empty() && !link.starts_with(b"/") && up <= depth && parts.all(|part| part != b"..")
}

fn times(entry: &Entry) -> Timestamps {
    let (seconds, nanoseconds) = entry.mtime;
    let time = Timespec {
        tv_sec: seconds.min(i64::MAX as u64) as i64,
        tv_nsec: i64::from(nanoseconds.min(999_999_999)),
    };
    Timestamps { last_access: time, last_modification: time }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_stay_when_they_go_up_first_and_not_too_far() {
        for (depth, link) in [(0, "a"), (0, "./a/b"), (1, "../a"), (2, "../../a/b"), (2, ".././a")] {
            assert!(stays(depth, link.as_bytes()), "{link} at {depth}");
        }
        for (depth, link) in
            [(0, ".."), (0, ""), (0, "/a"), (1, "../../a"), (3, "a/../b"), (2, "../a/../../b")]
        {
            assert!(!stays(depth, link.as_bytes()), "{link} at {depth}");
        }
    }
}
