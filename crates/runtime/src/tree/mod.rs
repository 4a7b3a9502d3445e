//! A tree of files: as a tar archive and back (volumes that are exported and imported, files that are copied), as a second
//! tree, measured, removed.
//!
//! Sandboxes write in volumes while they are read, and send the archives that are unpacked here, so every path is
//! resolved by descriptor and nothing is read or written outside the tree.

mod clone;
mod descend;
mod measure;
mod pack;
pub mod quota;
mod walk;
mod xattr;

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};

use crate::image::Error;
use crate::image::layer::archive::{Archive, Kind};
use crate::image::layer::unpack;
pub use crate::image::layer::unpack::{Contents, Purpose};
use crate::image::limits::{Budget, Limits};
pub use crate::remove::directory as remove;
pub use clone::{Cloned, clone};
pub use descend::DEEPEST;
pub use measure::{Enough, Size, measure, size};
pub use pack::{pack, pack_file, pack_volume};
pub(crate) use pack::{pack_layer, pack_where};

/// Unpacks an archive into a directory that is there. Never more than the disk has room for.
pub fn unpack(source: impl Read, into: &Path, purpose: Purpose) -> Result<Contents, Error> {
    let failed = |source: io::Error| Error::Unpack { path: into.to_owned(), source };
    let root = directory(into).map_err(failed)?;
    let disk = rustix::fs::fstatvfs(&root).map_err(|errno| failed(errno.into()))?;
    let most = u64::MAX;
    let limits = Limits { entries: most, file_bytes: most, total_bytes: most, ..Limits::default() };
    let budget = Budget::new(limits, disk.f_bavail.saturating_mul(disk.f_frsize));
    unpack::unpack(source, root, &budget, purpose).map(|(contents, _)| contents)
}

/// Copies the file that an archive begins with to what `open` makes of its mode; how many bytes it had.
///
/// `None` when the archive begins with something else.
pub fn one_file<W: io::Write>(
    source: impl Read,
    open: impl FnOnce(u32) -> io::Result<W>,
) -> Result<Option<u64>, Error> {
    let mut archive = Archive::new(source, Limits::default());
    let failed = |source| Error::Read { what: "the file".to_owned(), source };
    let (mode, size) = match archive.next()? {
        Some(entry) if entry.kind == Kind::File && entry.segments.is_none() => (entry.mode, entry.size),
        _ => return Ok(None),
    };
    let mut to = open(mode & 0o777).map_err(failed)?;
    let copied = io::copy(&mut archive, &mut to).map_err(failed)?;
    to.flush().map_err(failed)?;
    match copied == size {
        true => archive.finish().map(|_| Some(copied)),
        false => Err(failed(io::ErrorKind::UnexpectedEof.into())),
    }
}

fn directory(path: &Path) -> io::Result<OwnedFd> {
    Ok(open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

#[cfg(test)]
mod tests;
