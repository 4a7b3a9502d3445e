//! Where the sources are.

use std::path::{Path, PathBuf};

/// The root of the workspace whose test, benchmark or chore runs.
///
/// Cargo tells at run time: what was compiled into a program may name another clone with the same build cache.
pub fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let package = package.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).to_owned());
    let root = package.ancestors().find(|folder| folder.join("Cargo.lock").exists());
    root.unwrap_or(&package).to_owned()
}
