//! A tree as a tar archive: owners, modes, times, links and the attributes that mean the same everywhere.

use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, SeekFrom, Stat, fstat, openat, readlinkat, seek};
use rustix::io::Errno;

use super::walk::{Item, walk};
use super::{directory, xattr};
use crate::image::layer::header::{BLOCK, Segment};
use crate::image::layer::place::is_whiteout;
use crate::image::layer::unpack::{DELETED, HIDE_BELOW};
use crate::powers;

/// Stretches of data that one sparse file is written in; with more it is written out.
const SEGMENTS: usize = 1 << 14;

/// Packs a directory: itself as `.`, everything in it below that. Sockets and devices are left out, but for the devices 0:0 with
/// which overlays mark what was deleted. An error when a file becomes shorter while it is read.
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

/// Packs a volume, which sandboxes may be writing to: files that become shorter while they are read are filled up with
/// zeros, and returned. Holes of files are left out.
pub fn pack_volume(from: &Path, out: impl Write) -> io::Result<Vec<PathBuf>> {
    let root = directory(from)?;
    let mut packer = Packer { source: Source::Volume, ..Packer::new(out) };
    packer.directory(Path::new("."), root.as_fd(), &fstat(&root)?)?;
    walk(&root, |item| packer.item(item).map(|()| true))?;
    let cut = std::mem::take(&mut packer.cut);
    packer.finish().map(|()| cut)
}

/// Packs an unpacked layer of an image, with its deletions in the form that archives of layers have.
pub(crate) fn pack_layer(from: &Path, out: impl Write) -> io::Result<()> {
    let root = directory(from)?;
    let mut packer = Packer { source: Source::Layer, ..Packer::new(out) };
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
    source: Source,
    /// Files that became shorter while they were read.
    cut: Vec<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Tree,
    Layer,
    Volume,
}

impl<W: Write> Packer<W> {
    fn new(out: W) -> Self {
        let out = tar::Builder::new(io::BufWriter::with_capacity(128 << 10, out));
        Self { out, links: HashMap::new(), source: Source::Tree, cut: Vec::new() }
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
            FileType::CharacterDevice if self.source == Source::Layer && is_whiteout(&item.stat) => {
                let mut name = OsString::from(DELETED);
                name.push(item.name);
                self.mark(&item.path.with_file_name(name))
            }
            // The deletion of an overlay that is kept in the tree. Unpacking makes it, or reports that it is left out.
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
        let records = self.attributes(opened)?;
        self.records(records)?;
        self.out.append_data(&mut header(stat, tar::EntryType::Directory), path, io::empty())?;
        let opaque = powers::here().opaque();
        if self.source == Source::Layer && !xattr::read(&opened, |name| name == opaque.as_bytes())?.is_empty()
        {
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
        let mut records = self.attributes(opened)?;
        let size = stat.st_size as u64;
        let file = File::from(opened.try_clone_to_owned()?);
        let segments = match self.source {
            Source::Volume => stretches(opened, stat)?,
            Source::Tree | Source::Layer => None,
        };
        let map = segments.as_deref().map(map).unwrap_or_default();
        let mut header = header(stat, tar::EntryType::Regular);
        if segments.is_some() {
            // As GNU tar writes it (pax, 1.0), and reads it: only below a POSIX header.
            header = as_posix(header);
            let realsize = size.to_string();
            for (name, value) in [("major", "1"), ("minor", "0"), ("realsize", &realsize)] {
                records.push((format!("GNU.sparse.{name}"), value.into()));
            }
        }
        self.records(records)?;
        let segments = segments.unwrap_or_else(|| vec![Segment { offset: 0, length: size }]);
        header.set_size(map.len() as u64 + segments.iter().map(|it| it.length).sum::<u64>());
        let mut data =
            Data { file, segments: segments.into(), fill: self.source == Source::Volume, filled: false };
        self.out.append_data(&mut header, path, map.as_slice().chain(&mut data))?;
        if data.filled {
            self.cut.push(path.to_owned());
        }
        Ok(())
    }

    /// Extended attributes as they travel in a pax header before the file. In a layer, those of overlayfs are marks of this
    /// machine's own; elsewhere they belong to an overlay that a program keeps in the tree.
    fn attributes(&self, opened: BorrowedFd<'_>) -> io::Result<Vec<(String, Vec<u8>)>> {
        let is_mark = |name: &[u8]| self.source == Source::Layer && name.starts_with(b"user.overlay.");
        let found = xattr::read(&opened, |name| xattr::is_portable(name) && !is_mark(name))?;
        let named =
            |(name, value): (OsString, Vec<u8>)| (format!("SCHILY.xattr.{}", name.to_string_lossy()), value);
        Ok(found.into_iter().map(named).collect())
    }

    /// Writes the pax header of the file that follows.
    fn records(&mut self, records: Vec<(String, Vec<u8>)>) -> io::Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        self.out.append_pax_extensions(records.iter().map(|(key, value)| (key.as_str(), value.as_slice())))
    }
}

/// Where a file with holes has data, and its end; `None` for one without holes.
fn stretches(opened: BorrowedFd<'_>, stat: &Stat) -> io::Result<Option<Vec<Segment>>> {
    let size = stat.st_size as u64;
    if stat.st_blocks as u64 * 512 >= size {
        return Ok(None);
    }
    let (mut segments, mut at) = (Vec::new(), 0);
    while at < size && segments.len() < SEGMENTS {
        let offset = match seek(opened, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(None),
            offset => offset?.min(size),
        };
        at = seek(opened, SeekFrom::Hole(offset))?.clamp(offset, size);
        segments.push(Segment { offset, length: at - offset });
    }
    let data: u64 = segments.iter().map(|it| it.length).sum();
    if segments.len() == SEGMENTS || data == size {
        return Ok(None);
    }
    // Where it ends, if with a hole.
    segments.push(Segment { offset: size, length: 0 });
    Ok(Some(segments))
}

/// The map before the data of a sparse file: decimal numbers, one in a line, padded to a block.
fn map(segments: &[Segment]) -> Vec<u8> {
    let numbers = segments.iter().flat_map(|it| [it.offset, it.length]);
    let text: String =
        std::iter::once(segments.len() as u64).chain(numbers).map(|it| format!("{it}\n")).collect();
    let mut map = text.into_bytes();
    map.resize(map.len().next_multiple_of(BLOCK), 0);
    map
}

fn open(item: &Item<'_>, flags: OFlags) -> Result<std::os::fd::OwnedFd, Errno> {
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
    openat(item.parent, item.name, flags, Mode::empty())
}

fn as_posix(mut header: tar::Header) -> tar::Header {
    let posix = tar::Header::new_ustar();
    header.as_mut_bytes()[257..265].copy_from_slice(&posix.as_bytes()[257..265]);
    header
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

/// As many bytes as were promised: a file that grows must not shift everything after it. Of one that became shorter, zeros
/// or an error.
struct Data {
    file: File,
    /// What is left of it to read.
    segments: VecDeque<Segment>,
    fill: bool,
    /// Whether there were zeros that the file does not have.
    filled: bool,
}

impl Read for Data {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.segments.pop_front_if(|it| it.length == 0).is_some() {}
        let Some(segment) = self.segments.front_mut() else { return Ok(0) };
        let wanted = segment.length.min(buffer.len() as u64) as usize;
        let count = match self.file.read_at(&mut buffer[..wanted], segment.offset)? {
            0 if wanted > 0 && self.fill => {
                self.filled = true;
                buffer[..wanted].fill(0);
                wanted
            }
            0 if wanted > 0 => return Err(io::Error::other("the file became shorter while it was read")),
            count => count,
        };
        segment.offset += count as u64;
        segment.length -= count as u64;
        Ok(count)
    }
}
