//! Images on this machine. So far one: `host`, made from the machine's own read-only system directories.

mod host;

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
pub struct Images {
    host: RootFs,
}

/// The image that needs no download.
const HOST: &str = "host";

impl Images {
    pub fn open(dir: &Path) -> std::io::Result<Self> {
        std::fs::create_dir_all(dir)?;
        Ok(Self { host: host::build(&dir.canonicalize()?)? })
    }

    /// The root filesystem called `name`, or `None` when there is no such image here.
    pub fn resolve(&self, name: &str) -> Option<RootFs> {
        (name == HOST).then(|| self.host.clone())
    }

    /// Names that [`Images::resolve`] knows, for error messages.
    pub fn names(&self) -> Vec<String> {
        vec![HOST.to_owned()]
    }
}
