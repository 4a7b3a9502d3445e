//! Images on this machine. So far one: `host`, made from the machine's own read-only system directories.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A root filesystem and how to start it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RootFs {
    /// Overlay layers, topmost first.
    pub layers: Vec<PathBuf>,
    /// Host directories shown read-only at the same path, with only what every user may read.
    pub host_dirs: Vec<PathBuf>,
    pub env: Vec<(String, String)>,
    /// What runs when the caller names no command.
    pub command: Vec<String>,
    pub cwd: PathBuf,
}

/// The images under one directory.
#[derive(Debug, Clone)]
pub struct Images {}

impl Images {
    pub fn open(_dir: &Path) -> std::io::Result<Self> {
        Ok(Self {})
    }

    /// The root filesystem called `name`, or `None` when there is no such image here.
    pub fn resolve(&self, _name: &str) -> Option<RootFs> {
        None
    }

    /// Names that [`Images::resolve`] knows, for error messages.
    pub fn names(&self) -> Vec<String> {
        Vec::new()
    }
}
