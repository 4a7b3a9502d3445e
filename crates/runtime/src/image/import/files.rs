//! The files of an archive, be it a directory or a tar archive, by their names.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};

use crate::image::error::{malformed, storage};
use crate::image::layer::archive::{Archive, Kind};
use crate::image::layer::compression::Decompressed;
use crate::image::layer::place::parts;
use crate::image::limits::Budget;
use crate::image::store::Lease;
use crate::image::{Error, Limits};

pub enum Files {
    Directory {
        path: PathBuf,
        root: OwnedFd,
    },
    /// A tar archive that can be read at any place.
    Archive {
        path: PathBuf,
        files: HashMap<PathBuf, Place>,
    },
}

#[derive(Debug, Clone)]
pub enum Place {
    Data {
        offset: u64,
        size: u64,
    },
    /// Another name of a file: `docker save` links layers that are the same.
    Link(PathBuf),
}

impl Files {
    /// Opens an archive; a compressed one, or one that comes through a pipe, is first written out beside the store.
    pub fn open(path: &Path, lease: &Lease, budget: &Budget) -> Result<Self, Error> {
        if path.is_dir() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let root = openat(CWD, path, flags, Mode::empty())
                .map_err(|errno| storage("open", path)(errno.into()))?;
            return Ok(Self::Directory { path: path.to_owned(), root });
        }
        let path = match is_plain(path).map_err(storage("open", path))? {
            true => path.to_owned(),
            false => spool(path, lease, budget)?,
        };
        let file = File::open(&path).map_err(storage("open", &path))?;
        Ok(Self::Archive { files: index(io::BufReader::new(file), &budget.limits)?, path })
    }

    pub fn has(&self, name: &str) -> bool {
        match self {
            Self::Directory { path, .. } => path.join(name).exists(),
            Self::Archive { files, .. } => files.contains_key(Path::new(name)),
        }
    }

    /// A file that is meant to be small.
    pub fn read(&self, name: &str, limits: &Limits) -> Result<Vec<u8>, Error> {
        let mut text = Vec::new();
        let read = self.open_file(name)?.take(limits.document_bytes + 1).read_to_end(&mut text);
        read.map_err(|source| Error::Read { what: format!("{name} of the archive"), source })?;
        if text.len() as u64 > limits.document_bytes {
            return Err(malformed(name, format!("it has more than {} bytes", limits.document_bytes)));
        }
        Ok(text)
    }

    pub fn open_file(&self, name: &str) -> Result<Box<dyn Read>, Error> {
        let missing = || malformed("the archive", format!("it has no file {name:?}"));
        match self {
            Self::Directory { root, .. } => {
                let flags = OFlags::RDONLY | OFlags::CLOEXEC;
                // A link in a layout could lead to any file of the machine.
                let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
                let file = openat2(root, name, flags, Mode::empty(), resolve).map_err(|_| missing())?;
                Ok(Box::new(File::from(file)))
            }
            Self::Archive { path, files } => {
                let mut place = files.get(Path::new(name)).ok_or_else(missing)?;
                // A link leads to a file, and not to another link for ever.
                for _ in 0..8 {
                    match place {
                        Place::Data { offset, size } => {
                            let mut file = File::open(path).map_err(storage("open", path))?;
                            file.seek(SeekFrom::Start(*offset)).map_err(storage("read", path))?;
                            return Ok(Box::new(file.take(*size)));
                        }
                        Place::Link(target) => place = files.get(target).ok_or_else(missing)?,
                    }
                }
                Err(missing())
            }
        }
    }
}

/// Whether an archive can be read at any place as it is. Nothing is taken from a pipe to find out.
fn is_plain(path: &Path) -> io::Result<bool> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Ok(false);
    }
    let mut start = Vec::new();
    file.take(4).read_to_end(&mut start)?;
    Ok(!start.starts_with(&[0x1f, 0x8b]) && start != [0x28, 0xb5, 0x2f, 0xfd])
}

/// Writes the uncompressed archive to a temporary file.
fn spool(path: &Path, lease: &Lease, budget: &Budget) -> Result<PathBuf, Error> {
    let unreadable = |source: io::Error| match source.downcast::<Error>() {
        Ok(error) => error,
        Err(source) => Error::Read { what: path.display().to_string(), source },
    };
    let to = lease.file("archive")?;
    let mut out = File::create_new(&to).map_err(storage("make", &to))?;
    let blob = File::open(path).map_err(storage("open", path))?;
    let mut plain = Decompressed::new(blob, budget.limits).map_err(unreadable)?;
    let mut buffer = vec![0; 128 << 10];
    loop {
        match plain.read(&mut buffer).map_err(unreadable)? {
            0 => return Ok(to),
            count => {
                budget.take(count as u64)?;
                out.write_all(&buffer[..count]).map_err(storage("write", &to))?;
            }
        }
    }
}

fn index(archive: impl Read, limits: &Limits) -> Result<HashMap<PathBuf, Place>, Error> {
    let mut archive = Archive::new(archive, *limits);
    let mut files = HashMap::new();
    while let Some(entry) = archive.next()? {
        let path = parts(&entry.path, limits)?;
        if files.len() as u64 >= limits.entries {
            return Err(malformed("the archive", format!("it has more than {} files", limits.entries)));
        }
        match entry.kind {
            Kind::File if entry.segments.is_none() => {
                files.insert(path, Place::Data { offset: archive.position(), size: entry.size });
            }
            Kind::HardLink => drop(files.insert(path, Place::Link(parts(&entry.link, limits)?))),
            Kind::Symlink => {
                let target = path
                    .parent()
                    .unwrap_or(Path::new(""))
                    .join(std::ffi::OsStr::new(&*String::from_utf8_lossy(&entry.link)));
                files.insert(path, Place::Link(lexical(&target)));
            }
            _ => {}
        }
    }
    Ok(files)
}

/// Links of `docker save` look like `../LAYER/layer.tar`. Only names are compared: nothing is opened by this path.
fn lexical(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::Normal(name) => plain.push(name),
            std::path::Component::ParentDir => drop(plain.pop()),
            _ => {}
        }
    }
    plain
}
