//! What was found out about drivers before, for as long as it is still about the same program on the same kernel.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Name, Probe, find, probe};

/// Probes below a directory: `drivers.json` remembers, `probe` is where they are made.
#[derive(Debug, Clone)]
pub struct Cache {
    directory: PathBuf,
}

#[derive(Default, serde::Serialize, serde::Deserialize)]
struct Remembered {
    /// By what was probed.
    probes: BTreeMap<String, Probe>,
}

impl Cache {
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// What is known without trying. One that is not installed is always known.
    pub fn known(&self, name: Name) -> Option<Probe> {
        match subject(name) {
            Some(subject) => self.read().probes.remove(&subject).filter(|probe| probe.name == name),
            None => Some(probe::missing(name)),
        }
    }

    /// Tries it, and remembers when it works. A failure may pass, and is tried again by the next who asks.
    pub async fn try_again(&self, name: Name) -> Probe {
        let probed = probe(name, &self.place()).await;
        if probed.works()
            && let Some(subject) = subject(name)
            && let Err(error) = self.remember(name, subject, &probed)
        {
            tracing::warn!(driver = %name, %error, "what was found out about a driver is not remembered");
        }
        probed
    }

    /// Removes what a probe left that was cut short.
    pub async fn clear(&self) -> io::Result<()> {
        probe::clear(&self.place()).await
    }

    fn place(&self) -> PathBuf {
        self.directory.join("probe")
    }

    fn file(&self) -> PathBuf {
        self.directory.join("drivers.json")
    }

    fn read(&self) -> Remembered {
        let text = std::fs::read(self.file()).unwrap_or_default();
        // Of another version, or none: everything is found out anew.
        serde_json::from_slice(&text).unwrap_or_default()
    }

    fn remember(&self, name: Name, subject: String, probe: &Probe) -> io::Result<()> {
        let mut remembered = self.read();
        remembered.probes.retain(|_, probe| probe.name != name);
        remembered.probes.insert(subject, probe.clone());
        let temporary = self.directory.join(format!("drivers.{}.tmp", std::process::id()));
        std::fs::write(&temporary, serde_json::to_vec_pretty(&remembered)?)?;
        std::fs::rename(temporary, self.file())
    }
}

/// What a probe is about: our own programs, the runtime's, and the kernel. `None` when it is not installed.
fn subject(name: Name) -> Option<String> {
    let driver = find(name)?;
    let program = match driver.program() {
        Some(path) => {
            let found = path.metadata().ok()?;
            format!("{} {} {}.{}", path.display(), found.len(), found.mtime(), found.mtime_nsec())
        }
        None => String::new(),
    };
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Some(format!("{name} {} {program} {}", asb_embedded::VERSION, kernel.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_is_remembered_for_the_same_program_only() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let cache = Cache::new(directory.path());
        assert_eq!(cache.known(Name::Native), None, "nothing was tried yet");
        let probe = Probe { problem: None, ..probe::missing(Name::Native) };
        cache.remember(Name::Native, subject(Name::Native).expect("always there"), &probe).expect("written");
        assert_eq!(cache.known(Name::Native), Some(probe.clone()));
        cache.remember(Name::Native, "another".to_owned(), &probe).expect("written");
        assert_eq!(cache.known(Name::Native), None);
    }
}
