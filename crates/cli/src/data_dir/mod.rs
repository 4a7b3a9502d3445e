//! The data directory: what is in it, and who may use it.
//!
//! | name | what |
//! |---|---|
//! | `lock` | held by the running engine |
//! | `format.json` | which versions can use the directory, and which store belongs to it (`format`) |
//! | `engine.json` | where the running engine listens; there only while it is ready |
//! | `last.json` | where the last engine listened, so that the next one can listen there again |
//! | `kubeconfig`, `pki/`, `store.redb`, `store.journal`, `store.mark` | the Kubernetes API |
//! | `api.sock` | the same API, for `asb` by the same user |
//! | `router.token` | what callers of the router must send |
//! | `router.key` | signs the links of `asb link`; without the file all links end with the next engine |
//! | `node-name` | the name of the Node, to which Pods are bound; the host name of the first start |
//! | `images/`, `sandboxes/`, `volumes/`, `pods/` | the node |
//! | `drivers.json`, `probe/` | which runtimes work here, and where that is tried |
//! | `network.json` | names and addresses of the network |
//! | `hub.json`, `outside.log` | without root: what holds the network and leads out of it, and what that said |
//! | `up.log` | output of an engine that was started in the background |

mod format;

pub use format::DOCTOR;

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use asb_router::authorize::v2::SigningKey;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone)]
pub struct DataDir {
    path: PathBuf,
}

/// Where an engine listens.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Engine {
    pub pid: u32,
    pub version: String,
    pub api: String,
    pub router: String,
    /// The router finds sandboxes by hosts below this domain. Engines before `asb link` do not write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub router_domain: Option<String>,
    /// The router finds sandboxes below this path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub router_path_prefix: Option<String>,
}

/// The right to be the engine of a data directory; given up when dropped or when the process ends.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "held, not read")] File);

impl DataDir {
    /// The directory that was asked for, or the usual one of this user.
    pub fn choose(asked: Option<&Path>) -> anyhow::Result<Self> {
        let path = match asked {
            Some(path) => std::path::absolute(path).context("--data-dir is not a usable path")?,
            None if rustix::process::geteuid().is_root() => PathBuf::from("/var/lib/asb"),
            None => match (std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME")) {
                (Some(state), _) if !state.is_empty() => PathBuf::from(state).join("asb"),
                (_, Some(home)) => PathBuf::from(home).join(".local/state/asb"),
                _ => anyhow::bail!("neither HOME nor XDG_STATE_HOME is set; use --data-dir"),
            },
        };
        Ok(Self { path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.path.join("kubeconfig")
    }

    pub fn log(&self) -> PathBuf {
        self.path.join("up.log")
    }

    pub fn create(&self) -> anyhow::Result<()> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.path);
        made.with_context(|| format!("failed to make the data directory {}", self.path.display()))
    }

    /// Takes the lock, or `None` when an engine has it.
    pub fn lock(&self) -> anyhow::Result<Option<Lock>> {
        let path = self.path.join("lock");
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let file = file.with_context(|| format!("failed to open {}", path.display()))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Lock(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("failed to lock {}", path.display())),
        }
    }

    /// Whether no engine runs here, be it ready or not.
    pub fn is_free(&self) -> anyhow::Result<bool> {
        Ok(self.lock()?.is_some())
    }

    /// The engine that runs now, if it is ready.
    pub fn engine(&self) -> Option<Engine> {
        self.read("engine.json")
    }

    /// Where the engine before this one listened.
    pub fn last_engine(&self) -> Option<Engine> {
        self.read("last.json")
    }

    /// Announces a ready engine.
    pub fn announce(&self, engine: &Engine) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(engine)?;
        self.write_secret("last.json", &text)?;
        self.write_secret("engine.json", &text)
    }

    /// Takes the announcement of an engine that is gone back.
    pub fn withdraw(&self) -> io::Result<()> {
        match std::fs::remove_file(self.path.join("engine.json")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// The router's token: 256 random bits, made on first use.
    pub fn router_token(&self) -> anyhow::Result<String> {
        if let Ok(token) = std::fs::read_to_string(self.path.join("router.token"))
            && token.trim().len() == 64
        {
            return Ok(token.trim().to_owned());
        }
        let bits: [u8; 32] = rand::random();
        let token: String = bits.iter().map(|byte| format!("{byte:02x}")).collect();
        self.keep_secret("router.token", &token)?;
        Ok(token)
    }

    /// The key that signs links: made on first use.
    pub fn router_key(&self) -> anyhow::Result<SigningKey> {
        let path = self.path.join("router.key");
        match std::fs::read_to_string(&path) {
            Ok(pem) => SigningKey::from_pem(&pem).with_context(|| {
                format!("failed to read {}; remove the file to get a new key", path.display())
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let key = SigningKey::generate()?;
                self.keep_secret("router.key", &key.to_pem())?;
                Ok(key)
            }
            Err(error) => Err(error).with_context(|| format!("failed to read {}", path.display())),
        }
    }

    fn read(&self, name: &str) -> Option<Engine> {
        let text = std::fs::read(self.path.join(name)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Writes a file that only its owner can read, all at once.
    fn write_secret(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let write = || {
            self.write_fresh(name, text)?;
            self.publish_fresh(name)
        };
        write().with_context(|| format!("failed to write {}", self.path.join(name).display()))
    }

    /// The same for a file that must outlive a reset of the machine: it is on disk when this returns.
    fn keep_secret(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let keep = || {
            // Before it has its name: a reset would leave an empty file under it.
            self.write_fresh(name, text)?.sync_all()?;
            self.publish_fresh(name)?;
            File::open(&self.path)?.sync_all()
        };
        keep().with_context(|| format!("failed to write {}", self.path.join(name).display()))
    }

    fn write_fresh(&self, name: &str, text: &str) -> io::Result<File> {
        let mut options = OpenOptions::new();
        let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(self.fresh(name))?;
        file.write_all(text.as_bytes())?;
        Ok(file)
    }

    fn publish_fresh(&self, name: &str) -> io::Result<()> {
        std::fs::rename(self.fresh(name), self.path.join(name))
    }

    fn fresh(&self, name: &str) -> PathBuf {
        self.path.join(format!(".{name}.new"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn router_key_is_made_once_for_its_owner_alone_and_a_damaged_one_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::choose(Some(dir.path())).unwrap();
        let made = data_dir.router_key().unwrap();
        assert_eq!(data_dir.router_key().unwrap().kid(), made.kid());
        let file = dir.path().join("router.key");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&file, "nonsense").unwrap();
        let error = data_dir.router_key().unwrap_err().to_string();
        assert!(error.contains("router.key; remove the file"), "{error}");
    }
}
