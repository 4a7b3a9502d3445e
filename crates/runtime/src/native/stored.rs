//! Which sandboxes there are, for programs that are not the engine.

use std::io;
use std::path::Path;

use super::SANDBOX_FILE;
use crate::Spec;

/// What the sandboxes of a state directory were started from, read without opening it. One that is just being started or
/// deleted may be missing.
pub fn stored(dir: &Path) -> io::Result<Vec<Spec>> {
    #[derive(serde::Deserialize)]
    struct Stored {
        spec: Spec,
    }
    let entries = match std::fs::read_dir(dir.join("sandbox")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut specs = Vec::new();
    for entry in entries {
        let text = match std::fs::read(entry?.path().join(SANDBOX_FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            text => text?,
        };
        specs.extend(serde_json::from_slice(&text).map(|stored: Stored| stored.spec));
    }
    Ok(specs)
}
