//! Images: what sandboxes are made from.
//!
//! ```text
//! registry ─┐
//! archive ──┼─► layer (checked, unpacked) ─► store ─► Image ─► sandbox
//! directory ┘                                 host ─┘
//! ```
//!
//! | part | what |
//! |---|---|
//! | `host` | the image that needs no download: this machine's own programs |
//! | `reference`, `digest`, `manifest`, `config`, `users` | what images are called and say of themselves (pure) |
//! | `layer` | a tar archive → a directory for overlayfs, safe against any archive |
//! | `store` | layers and names on disk, for several programs at once |
//! | `import` | archives and directories |
//! | `registry` | the OCI distribution protocol |
//! | `stack` | looks into stacked layers without mounting them |

mod assemble;
mod config;
mod digest;
mod error;
mod host;
mod import;
pub(crate) mod layer;
pub(crate) mod limits;
mod manifest;
mod reference;
mod registry;
mod stack;
mod store;
mod turn;
mod users;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

pub use self::config::Config;
pub use self::digest::Digest;
pub use self::error::Error;
use self::error::storage;
pub use self::import::Recipe;
pub use self::limits::Limits;
pub use self::reference::Reference;
use self::registry::{Http, Pull};
pub use self::registry::{Keyring, Login, Mirror, Progress, Registries, authorities};
use self::store::Store;
pub use self::store::{Lease, Record, Removed, User};
pub use self::turn::Turn;
use self::turn::Turns;
pub use self::users::{Identity, Users};

/// A root filesystem.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RootFs {
    /// Overlay layers, topmost first.
    pub layers: Vec<PathBuf>,
    /// Host directories shown read-only at the same path, with only what every user may read.
    pub host_dirs: Vec<PathBuf>,
}

/// An image that is on this machine.
#[derive(Debug, Clone)]
pub struct Image {
    pub root: RootFs,
    pub config: Config,
    pub users: Users,
    /// Paths that are to live outside the root.
    pub volumes: Vec<PathBuf>,
    /// What it is, whatever it is called.
    pub id: String,
    pub bytes: u64,
}

/// The images under one directory. Cheap to clone; a running engine and `asb image` may use it at once.
#[derive(Debug, Clone)]
pub struct Images {
    host: Image,
    store: Store,
    registries: Arc<Registries>,
    /// Made when it is needed first: reading the machine's authorities takes a while.
    http: Arc<OnceLock<Http>>,
    turns: Arc<Turns>,
}

/// The image that needs no download.
pub const HOST: &str = "host";
/// As much of `/etc/passwd` and `/etc/group` as is read.
const USERS_BYTES: u64 = 1 << 20;

impl Images {
    pub fn open(dir: &Path) -> Result<Self, Error> {
        Self::with(dir, Registries::default())
    }

    /// Opens images that are pulled as `registries` says.
    pub fn with(dir: &Path, registries: Registries) -> Result<Self, Error> {
        let store = Store::open(dir, Limits::default())?;
        let host = host::build(store.directory()).map_err(storage("build the host image in", dir))?;
        Ok(Self {
            host,
            store,
            registries: Arc::new(registries),
            http: Arc::default(),
            turns: Arc::default(),
        })
    }

    /// The image that needs no download.
    pub fn host(&self) -> Image {
        self.host.clone()
    }

    /// The image called `name`, if it is here, and a hold on it: as long as that lasts nobody removes its layers.
    pub fn find(&self, name: &str) -> Result<Option<(Image, Option<Lease>)>, Error> {
        if name == HOST {
            return Ok(Some((self.host(), None)));
        }
        let reference = Reference::parse(name)?;
        // A name without a registry is first of all that of an image which was made here.
        let found = match self.store.find(&reference)? {
            None => self.store.find(&self.registries.complete(&reference))?,
            found => found,
        };
        let Some(record) = found else { return Ok(None) };
        let lease = Lease::new(&self.store, &record.layers)?;
        // Only now is it certain that the layers stay.
        if record.layers.iter().any(|id| !self.store.has_layer(id)) {
            return Ok(None);
        }
        Ok(Some((self.image(&record)?, Some(lease))))
    }

    /// Names of images that are here, for messages.
    pub fn names(&self) -> Vec<String> {
        let stored = self.store.list().unwrap_or_default();
        std::iter::once(HOST.to_owned()).chain(stored.into_iter().map(|record| record.name)).collect()
    }

    /// Every image in the store; `host` is not in it.
    pub fn list(&self) -> Result<Vec<Record>, Error> {
        self.store.list()
    }

    /// Whether there is a registry to ask for it.
    pub fn can_pull(&self, reference: &Reference) -> bool {
        self.registries.complete(reference).registry.is_some()
    }

    /// Waits for the turn to pull an image: few at once, and of those with one name one after the other, so that the
    /// second finds what the first has brought.
    pub async fn turn(&self, reference: &Reference) -> Turn {
        self.turns.next(&self.registries.complete(reference).to_string()).await
    }

    /// Brings an image here from its registry, or finds that it has not changed there.
    pub async fn pull(
        &self,
        reference: &Reference,
        keyring: &Keyring,
        progress: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<Record, Error> {
        let http = match self.http.get() {
            Some(http) => http.clone(),
            None => {
                let made = Http::new(&self.registries.authorities);
                let made = made.map_err(storage("read certificates for", self.store.directory()))?;
                self.http.get_or_init(|| made).clone()
            }
        };
        let pull = Pull {
            store: &self.store,
            http: &http,
            registries: &self.registries,
            keyring,
            progress: Arc::new(progress),
        };
        pull.run(&self.registries.complete(reference)).await
    }

    /// Imports an OCI or `docker save` archive, a layout, or a plain root directory.
    pub fn import(&self, path: &Path, name: Option<&Reference>) -> Result<Vec<Record>, Error> {
        import::import(&self.store, path, name)
    }

    /// Makes an image of a root directory.
    pub fn from_directory(&self, path: &Path, name: &Reference, recipe: &Recipe) -> Result<Record, Error> {
        import::from_directory(&self.store, path, name, recipe)
    }

    /// Takes a name away, and with it layers that nobody else has. Refused while a sandbox stands on them.
    pub fn remove(
        &self,
        name: &Reference,
        users: impl FnOnce() -> Result<Vec<User>, Error>,
    ) -> Result<(Record, Removed), Error> {
        self.store.remove(name, users)
    }

    /// Keeps the layers of an image from being removed until the lease is dropped.
    pub fn lease(&self, record: &Record) -> Result<Lease, Error> {
        Lease::new(&self.store, &record.layers)
    }

    /// Writes a layer of an image as an archive, for a backup. The caller holds a lease on it.
    pub fn export_layer(&self, id: &Digest, out: impl io::Write) -> io::Result<()> {
        self.store.export_layer(id, out)
    }

    /// Names the images of a backup again; `open` finds the archive of a layer by the hex of its digest.
    pub fn restore<R: io::Read>(
        &self,
        records: &[Record],
        open: impl Fn(&str) -> io::Result<R>,
    ) -> Result<(), Error> {
        let mut known = HashMap::new();
        records.iter().try_for_each(|record| self.store.restore(record, &mut known, &open))
    }

    /// Removes layers and downloads that nobody has any more.
    pub fn prune(&self, users: impl FnOnce() -> Result<Vec<User>, Error>) -> Result<Removed, Error> {
        self.store.prune(users)
    }

    /// What was passed over when the layers of an image were unpacked.
    pub fn skipped(&self, record: &Record) -> Result<Vec<String>, Error> {
        let contents = record.layers.iter().map(|id| self.store.contents(id));
        Ok(contents.collect::<Result<Vec<_>, _>>()?.into_iter().flat_map(|it| it.skipped).collect())
    }

    fn image(&self, record: &Record) -> Result<Image, Error> {
        let layers: Vec<_> = record.layers.iter().rev().map(|id| self.store.layer(id)).collect();
        let unreadable = || storage("read the users of an image in", self.store.directory());
        let stack = stack::Stack::open(&layers).map_err(unreadable())?;
        let read = |path: &str| {
            let text = stack.read(Path::new(path), USERS_BYTES).map_err(unreadable());
            text.map(Option::unwrap_or_default)
        };
        Ok(Image {
            users: Users::parse(&read("/etc/passwd")?, &read("/etc/group")?),
            root: RootFs { layers, host_dirs: Vec::new() },
            config: record.config.clone(),
            volumes: record.volumes.clone(),
            id: record.image_id(),
            bytes: record.size,
        })
    }
}
