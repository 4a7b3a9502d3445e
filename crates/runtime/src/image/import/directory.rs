//! An image from a plain root directory: its files become one layer.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
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
use crate::tree;

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
            pack(&root, &store, &writer)?;
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

/// Writes everything but our own store as one tar archive.
fn pack(root: &Path, store: &Path, out: impl Write) -> Result<(), Error> {
    use std::os::unix::fs::MetadataExt;
    let store = store.metadata().map(|found| (found.dev(), found.ino())).ok();
    let packed = tree::pack_where(root, out, |item| {
        if item.name.as_bytes().starts_with(b".wh.") {
            return Err(io::Error::other("names that begin with `.wh.` mean deleted files in an image"));
        }
        Ok(store != Some((item.stat.st_dev, item.stat.st_ino)))
    });
    packed.map_err(|source| Error::Read { what: root.display().to_string(), source })
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
