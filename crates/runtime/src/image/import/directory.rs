//! An image from a plain root directory: its files become one layer.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use crate::image::Error;
use crate::image::assemble::{self, Assembled};
use crate::image::config::Config;
use crate::image::digest::Digest;
use crate::image::error::{malformed, storage};
use crate::image::manifest::architecture;
use crate::image::reference::Reference;
use crate::image::store::{Lease, Record, Store};

/// How an image made from a directory wants to run.
#[derive(Debug, Clone, Default)]
pub struct Recipe {
    pub config: Config,
}

/// Makes an image of a directory and everything on the same filesystem below it.
pub fn from_directory(
    store: &Store,
    path: &Path,
    name: &Reference,
    recipe: &Recipe,
) -> Result<Record, Error> {
    let lease = Lease::new(store, &[])?;
    let root = path.canonicalize().map_err(storage("open", path))?;
    let found = root.metadata().map_err(storage("open", &root))?;
    if !found.is_dir() {
        return Err(malformed(path.display().to_string(), "it is not a directory"));
    }
    let (reader, writer) = io::pipe().map_err(storage("read", &root))?;
    let whole = Arc::new(AtomicBool::new(false));
    let packing = {
        let (root, store, whole) = (root.clone(), store.directory().to_owned(), whole.clone());
        std::thread::spawn(move || {
            pack(&root, &store, &found, &writer)?;
            // Before the pipe is closed: whoever reads its end looks.
            whole.store(true, Ordering::SeqCst);
            Ok(())
        })
    };
    let added = store.add_layer(&lease, Whole { reader, whole }, None, None, &store.budget()?);
    let packed = packing.join().unwrap_or_else(|_| Err(malformed("the directory", "packing it failed")));
    let layer = match (added, packed) {
        // What the packer met, not what came of it on the other side.
        (Err(Error::Read { .. } | Error::Malformed { .. }), Err(error)) => return Err(error),
        (added, _) => added?,
    };
    let config = recipe.config.clone();
    let described = json!({
        "architecture": architecture(), "os": "linux", "config": config,
        "rootfs": {"type": "layers", "diff_ids": [layer]},
    });
    let id = Digest::of(described.to_string().as_bytes());
    assemble::name(store, &lease, name, Assembled { manifest: None, id, layers: vec![layer], config })
}

/// Writes everything as one tar archive, in an order that depends on names alone.
fn pack(root: &Path, store: &Path, found: &Metadata, out: impl Write) -> Result<(), Error> {
    let mut packer = Packer {
        out: tar::Builder::new(io::BufWriter::with_capacity(128 << 10, out)),
        links: HashMap::new(),
    };
    packer.entry(root, Path::new("."), found)?;
    let mut waiting = vec![PathBuf::new()];
    while let Some(directory) = waiting.pop() {
        let here = root.join(&directory);
        let mut names: Vec<_> = std::fs::read_dir(&here)
            .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect())
            .map_err(storage("read", &here))?;
        names.sort();
        for name in names {
            if name.as_bytes().starts_with(b".wh.") {
                let problem = "names that begin with `.wh.` mean deleted files in an image";
                return Err(malformed(here.join(name).display().to_string(), problem));
            }
            let (path, within) = (here.join(&name), directory.join(&name));
            let metadata = path.symlink_metadata().map_err(storage("inspect", &path))?;
            // Other filesystems, such as /proc of a running system, and our own store are no part of it.
            if path == store {
                continue;
            }
            packer.entry(&path, &within, &metadata)?;
            if metadata.is_dir() && metadata.dev() == found.dev() {
                waiting.push(within);
            }
        }
    }
    let finished = packer.out.into_inner().and_then(|mut out| out.flush());
    finished.map_err(|source| Error::Read { what: root.display().to_string(), source })
}

struct Packer<W: Write> {
    out: tar::Builder<W>,
    /// Files with several names, by device and number.
    links: HashMap<(u64, u64), PathBuf>,
}

impl<W: Write> Packer<W> {
    fn entry(&mut self, path: &Path, within: &Path, metadata: &Metadata) -> Result<(), Error> {
        self.write(path, within, metadata).map_err(storage("read", path))
    }

    fn write(&mut self, path: &Path, within: &Path, metadata: &Metadata) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_mode(metadata.mode() & 0o7777);
        header.set_uid(metadata.uid().into());
        header.set_gid(metadata.gid().into());
        header.set_mtime(metadata.mtime().max(0) as u64);
        header.set_size(0);
        let kind = metadata.file_type();
        if !kind.is_symlink() {
            self.attributes(path)?;
        }
        if kind.is_symlink() {
            header.set_entry_type(tar::EntryType::Symlink);
            return self.out.append_link(&mut header, within, std::fs::read_link(path)?);
        }
        if kind.is_dir() {
            header.set_entry_type(tar::EntryType::Directory);
            return self.out.append_data(&mut header, within, io::empty());
        }
        if kind.is_fifo() {
            header.set_entry_type(tar::EntryType::Fifo);
            return self.out.append_data(&mut header, within, io::empty());
        }
        if !kind.is_file() {
            // Devices and sockets mean nothing in an image.
            return Ok(());
        }
        if metadata.nlink() > 1 {
            let first =
                self.links.entry((metadata.dev(), metadata.ino())).or_insert_with(|| within.to_owned());
            if first != within {
                header.set_entry_type(tar::EntryType::Link);
                let first = first.clone();
                return self.out.append_link(&mut header, within, first);
            }
        }
        header.set_size(metadata.size());
        // A file that changes meanwhile must not shift everything after it.
        let data = io::Read::take(File::open(path)?, metadata.size());
        self.out.append_data(&mut header, within, Exactly { data, left: metadata.size() })
    }

    /// Extended attributes travel in a pax header before the file.
    fn attributes(&mut self, path: &Path) -> io::Result<()> {
        let mut names = vec![0u8; 64 << 10];
        let length = match rustix::fs::llistxattr(path, &mut names[..]) {
            Ok(length) => length,
            Err(rustix::io::Errno::OPNOTSUPP) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        };
        let kept = |name: &&[u8]| name.starts_with(b"user.") || *name == b"security.capability";
        let mut records = Vec::new();
        for name in names[..length].split(|byte| *byte == 0).filter(kept) {
            let mut value = vec![0u8; 64 << 10];
            let length = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..])?;
            value.truncate(length);
            records.push((format!("SCHILY.xattr.{}", String::from_utf8_lossy(name)), value));
        }
        if records.is_empty() {
            return Ok(());
        }
        self.out.append_pax_extensions(records.iter().map(|(key, value)| (key.as_str(), value.as_slice())))
    }
}

/// The reading end of the pipe. An archive that ends because packing failed must not be taken for a small one.
struct Whole {
    reader: io::PipeReader,
    whole: Arc<AtomicBool>,
}

impl io::Read for Whole {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.reader.read(buffer)? {
            0 if !buffer.is_empty() && !self.whole.load(Ordering::SeqCst) => {
                Err(io::ErrorKind::UnexpectedEof.into())
            }
            count => Ok(count),
        }
    }
}

/// As many bytes as were promised, or an error.
struct Exactly<R> {
    data: R,
    left: u64,
}

impl<R: io::Read> io::Read for Exactly<R> {
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
