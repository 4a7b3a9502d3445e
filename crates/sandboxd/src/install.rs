//! Copies this program into a volume, for an init container whose image has nothing else in it.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const NAME: &str = "sandboxd";

/// A program that runs from there already goes on with the old file.
pub fn install(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let temporary = directory.join(crate::draft::temporary_name());
    let copied = fs::copy("/proc/self/exe", &temporary)
        .and_then(|_| fs::set_permissions(&temporary, fs::Permissions::from_mode(0o755)))
        .and_then(|()| fs::rename(&temporary, directory.join(NAME)));
    if copied.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    copied
}
