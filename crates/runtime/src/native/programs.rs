//! The embedded programs on disk, where the kernel can execute and mount them.

use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use asb_supervisor::launch::{INIT, SANDBOXD};

pub struct Programs {
    pub supervisor: PathBuf,
    /// A layer for every root, with `sandboxd` in it.
    pub sandboxd: PathBuf,
    /// A layer for the roots of other runtimes, with the supervisor's program in it.
    pub init: PathBuf,
}

impl Programs {
    /// Writes what is not there yet. Running sandboxes keep using the version they were started with.
    pub fn write(directory: &Path) -> io::Result<Self> {
        let place = directory.join("bin").join(asb_embedded::VERSION);
        std::fs::create_dir_all(&place)?;
        Ok(Self {
            supervisor: program(&place.join("asb-supervisor"), asb_embedded::SUPERVISOR)?,
            sandboxd: layer(&place.join("sandboxd"), SANDBOXD, asb_embedded::SANDBOXD)?,
            init: layer(&place.join("init"), INIT, asb_embedded::SUPERVISOR)?,
        })
    }
}

/// A layer that has one program, at this path inside.
fn layer(layer: &Path, inside: &str, contents: &[u8]) -> io::Result<PathBuf> {
    let path = layer.join(inside.trim_start_matches('/'));
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
        // The engine may have been started with another mask.
        std::fs::set_permissions(parent, PermissionsExt::from_mode(0o755))?;
    }
    program(&path, contents)?;
    Ok(layer.to_owned())
}

fn program(path: &Path, contents: &[u8]) -> io::Result<PathBuf> {
    let complete = std::fs::metadata(path).is_ok_and(|found| found.len() == contents.len() as u64);
    if !complete {
        let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o755)
            .open(&temporary)?;
        io::Write::write_all(&mut file, contents)?;
        file.set_permissions(PermissionsExt::from_mode(0o755))?;
        file.sync_all()?;
        // Closed before it can be executed: the kernel refuses to execute a file that is open for writing.
        drop(file);
        std::fs::rename(&temporary, path)?;
    }
    Ok(path.to_owned())
}
