//! Programs that scripts of `tools/` build or find.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The program whose path a script prints; the first time, the script builds it.
pub fn tool(script: &str) -> PathBuf {
    let script = crate::root().join(script);
    let built = Command::new(&script).stderr(Stdio::inherit()).output();
    let built = built.unwrap_or_else(|error| panic!("failed to run {}: {error}", script.display()));
    assert!(built.status.success(), "{} says why above", script.display());
    PathBuf::from(String::from_utf8_lossy(&built.stdout).trim())
}
