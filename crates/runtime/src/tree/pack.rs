//! A tree as a tar archive: owners, modes, times, links and the attributes that mean the same everywhere.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, openat, readlinkat};
use rustix::io::Errno;

use super::walk::{Item, walk};
use super::{directory, xattr};
use crate::image::layer::place::is_whiteout;
use crate::image::layer::unpack::{DELETED, HIDE_BELOW};
use crate::powers;

/// Packs a directory: itself as `.`, everything in it below that. Sockets and devices are left out, but for the devices 0:0 with
/// which overlays mark what was deleted.
pub fn pack(from: &Path, out: impl Write) -> io::Result<()> {
    pack_where(from, out, |_| Ok(true))
}

/// The same without what is not `wanted`, and what is below that.
pub fn pack_where(
    from: &Path,
    out: impl Write,
    wanted: impl Fn(&Item<'_>) -> io::Result<bool>,
) -> io::Result<()> {
    let root = directory(from)?;
    let mut packer = Packer::new(out);
    packer.directory(Path::new("."), root.as_fd(), &fstat(&root)?)?;
    walk(&root, |item| match wanted(item)? {
        true => packer.item(item).map(|()| true),
        false => Ok(false),
    })?;
    packer.finish()
}

/// Packs an unpacked layer of an image, with its deletions in the form that archives of layers have.
pub(crate) fn pack_layer(from: &Path, out: impl Write) -> io::Result<()> {
    let root = directory(from)?;
    let mut packer = Packer { is_layer: true, ..Packer::new(out) };
    packer.directory(Path::new("."), root.as_fd(), &fstat(&root)?)?;
    walk(&root, |item| packer.item(item).map(|()| true))?;
    packer.finish()
}

/// Packs one file under a name.
pub fn pack_file(file: &File, name: &OsStr, out: impl Write) -> io::Result<()> {
    let mut packer = Packer::new(out);
    let stat = fstat(file)?;
    packer.file(Path::new(name), file.as_fd(), &stat)?;
    packer.finish()
}

struct Packer<W: Write> {
    out: tar::Builder<io::BufWriter<W>>,
    /// Files with several names, by number.
    links: HashMap<u64, PathBuf>,
    is_layer: bool,
}

impl<W: Write> Packer<W> {
    fn new(out: W) -> Self {
        let out = tar::Builder::new(io::BufWriter::with_capacity(128 << 10, out));
        Self { out, links: HashMap::new(), is_layer: false }
    }

    fn finish(self) -> io::Result<()> {
        self.out.into_inner()?.flush()
    }

    fn item(&mut self, item: &Item<'_>) -> io::Result<()> {
        match item.kind() {
            FileType::Directory => match open(item, OFlags::DIRECTORY) {
                Ok(opened) => self.directory(item.path, opened.as_fd(), &fstat(&opened)?),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
                Err(errno) => Err(errno.into()),
            },
            FileType::RegularFile => self.regular(item),
            FileType::Symlink => {
                let target = match readlinkat(item.parent, item.name, Vec::new()) {
                    Err(Errno::NOENT | Errno::INVAL) => return Ok(()),
                    target => OsString::from_vec(target?.into_bytes()),
                };
                self.out.append_link(&mut header(&item.stat, tar::EntryType::Symlink), item.path, target)
            }
            FileType::Fifo => {
                self.out.append_data(&mut header(&item.stat, tar::EntryType::Fifo), item.path, io::empty())
            }
            FileType::CharacterDevice if self.is_layer && is_whiteout(&item.stat) => {
                let mut name = OsString::from(DELETED);
                name.push(item.name);
                self.mark(&item.path.with_file_name(name))
            }
            // The deletion of an overlay that is kept in the tree. Whoever unpacks it makes it, or reports that it is left out.
            FileType::CharacterDevice if is_whiteout(&item.stat) => {
                let mut header = header(&item.stat, tar::EntryType::Char);
                header.set_device_major(0)?;
                header.set_device_minor(0)?;
                self.out.append_data(&mut header, item.path, io::empty())
            }
            _ => Ok(()),
        }
    }

    fn directory(&mut self, path: &Path, opened: BorrowedFd<'_>, stat: &Stat) -> io::Result<()> {
        self.attributes(opened)?;
        self.out.append_data(&mut header(stat, tar::EntryType::Directory), path, io::empty())?;
        let opaque = powers::here().opaque();
        if self.is_layer && !xattr::read(&opened, |name| name == opaque.as_bytes())?.is_empty() {
            self.mark(&path.join(HIDE_BELOW))?;
        }
        Ok(())
    }

    /// An empty file that says something by its name.
    fn mark(&mut self, path: &Path) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Regular);
        header.set_mode(0o600);
        header.set_size(0);
        self.out.append_data(&mut header, path, io::empty())
    }

    fn regular(&mut self, item: &Item<'_>) -> io::Result<()> {
        // Should it have become something else meanwhile, opening that must not wait.
        let opened = match open(item, OFlags::NONBLOCK) {
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(()),
            opened => opened?,
        };
        let stat = fstat(&opened)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(());
        }
        if stat.st_nlink > 1 {
            let first = self.links.entry(stat.st_ino).or_insert_with(|| item.path.to_owned());
            if first != item.path {
                let first = first.clone();
                return self.out.append_link(&mut header(&stat, tar::EntryType::Link), item.path, first);
            }
        }
        self.file(item.path, opened.as_fd(), &stat)
    }

    fn file(&mut self, path: &Path, opened: BorrowedFd<'_>, stat: &Stat) -> io::Result<()> {
        self.attributes(opened)?;
        let size = stat.st_size as u64;
        let mut header = header(stat, tar::EntryType::Regular);
        header.set_size(size);
        // A file that grows must not shift everything after it, and one that shrinks must not pass for whole.
        let data = File::from(opened.try_clone_to_owned()?).take(size);
        self.out.append_data(&mut header, path, Exactly { data, left: size })
    }

    /// Extended attributes travel in a pax header before the file.
    fn attributes(&mut self, opened: BorrowedFd<'_>) -> io::Result<()> {
        // In a layer they are marks of this machine's overlayfs. Elsewhere they are the files' own: those of an overlay that
        // somebody keeps in a volume.
        let is_mark = |name: &[u8]| self.is_layer && name.starts_with(b"user.overlay.");
        let found = xattr::read(&opened, |name| xattr::is_portable(name) && !is_mark(name))?;
        let named =
            |(name, value): (OsString, Vec<u8>)| (format!("SCHILY.xattr.{}", name.to_string_lossy()), value);
        let records: Vec<_> = found.into_iter().map(named).collect();
        if records.is_empty() {
            return Ok(());
        }
        self.out.append_pax_extensions(records.iter().map(|(key, value)| (key.as_str(), value.as_slice())))
    }
}

fn open(item: &Item<'_>, flags: OFlags) -> Result<std::os::fd::OwnedFd, Errno> {
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
    openat(item.parent, item.name, flags, Mode::empty())
}

fn header(stat: &Stat, kind: tar::EntryType) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(stat.st_mode & 0o7777);
    header.set_uid(stat.st_uid.into());
    header.set_gid(stat.st_gid.into());
    header.set_mtime(stat.st_mtime.max(0) as u64);
    header.set_size(0);
    header
}

/// As many bytes as were promised, or an error.
struct Exactly<R> {
    data: R,
    left: u64,
}

impl<R: Read> Read for Exactly<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.data.read(buffer)?;
        self.left -= count as u64;
        match (count, self.left) {
            (0, 1..) if !buffer.is_empty() => {
                Err(io::Error::other("the file became shorter while it was read"))
            }
            _ => Ok(count),
        }
    }
}
