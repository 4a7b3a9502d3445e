//! What is kept of a container's last instance when it is started again: how it ended, and its log.
//!
//! ```text
//! pods/UID/.ended/CONTAINER/{ended.json, log, log.1}      gone with the Pod
//! ```
//!
//! `ended.json` is written last. So an engine that dies half way finds the instance and does it again, or finds the
//! record and needs no instance: how often a container was started is never lost.

use std::io;
use std::path::{Path, PathBuf};

use asb_runtime::Sandbox;

use super::plan::Finished;

const RECORD: &str = "ended.json";
/// No volume can have this name.
pub const DIRECTORY: &str = ".ended";
const LOGS: [&str; 2] = ["log.1", "log"];

/// The archive of one container. Names of containers are labels of DNS, so this is always below the Pod's directory.
pub struct Archive(PathBuf);

impl Archive {
    pub fn new(of_pod: &Path, container: &str) -> Self {
        Self(of_pod.join(DIRECTORY).join(container))
    }

    /// How the last instance that is not there any more ended.
    pub fn read(&self) -> Option<Finished> {
        let text = std::fs::read(self.0.join(RECORD)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// The log of that instance, oldest file first.
    pub fn logs(&self) -> Vec<PathBuf> {
        LOGS.map(|name| self.0.join(name)).into_iter().filter(|path| path.exists()).collect()
    }

    /// Takes over the log of an ended instance.
    pub fn keep(&self, sandbox: &Sandbox, end: &Finished) -> io::Result<()> {
        if self.read().is_some_and(|known| known.restarts == end.restarts) {
            return Ok(());
        }
        std::fs::create_dir_all(&self.0)?;
        if self.0.join(RECORD).exists() {
            // The record goes last: without one, the log that is there is that of the instance at hand.
            let names = LOGS.into_iter().chain([RECORD]);
            names.map(|name| self.0.join(name)).try_for_each(|path| match std::fs::remove_file(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                removed => removed,
            })?;
        }
        for log in sandbox.logs() {
            if let Some(name) = log.file_name() {
                std::fs::rename(&log, self.0.join(name))?;
            }
        }
        let temporary = self.0.join("ended.tmp");
        std::fs::write(&temporary, serde_json::to_vec(end)?)?;
        std::fs::rename(temporary, self.0.join(RECORD))
    }
}
