//! What is kept of a container's last instance when it is started again: how it ended, and its log.
//!
//! ```text
//! pods/UID/.ended/CONTAINER/{ended.json, log, log.1, restart}      gone with the Pod
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
/// Holds the number of the instance that was stopped in order to be started again.
const RESTART: &str = "restart";
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

    /// Notes, before an instance is stopped, that another one follows it: its exit record does not say so.
    pub fn note_restart(&self, restarts: u32) -> io::Result<()> {
        std::fs::create_dir_all(&self.0)?;
        let temporary = self.0.join("restart.tmp");
        std::fs::write(&temporary, restarts.to_string())?;
        std::fs::rename(temporary, self.0.join(RESTART))
    }

    /// Whether this was noted of an instance.
    pub fn is_restart(&self, restarts: u32) -> bool {
        let text = std::fs::read_to_string(self.0.join(RESTART));
        text.is_ok_and(|text| text.parse() == Ok(restarts))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restart_is_noted_of_one_instance() {
        let dir = tempfile::tempdir().unwrap();
        let archive = Archive::new(dir.path(), "main");
        assert!(!archive.is_restart(0));
        archive.note_restart(1).unwrap();
        archive.note_restart(2).unwrap();
        assert_eq!([1, 2, 3].map(|restarts| archive.is_restart(restarts)), [false, true, false]);
    }
}
