//! The `native` driver: our own namespaces, through one supervisor process per sandbox.
//!
//! ```text
//! DIR/bin/VERSION/   the two programs
//! DIR/empty/         nothing, to be the root of sandboxes that only idle
//! DIR/ids/N          a link that names the slot that holds the Nth range of ids
//! DIR/slot/NAME/     a place for a sandbox, before it is one: `sandbox.json` is written, then it is renamed
//! DIR/sandbox/ID/    sandbox.json, started.json                         what it is
//!                    upper, work                                        its filesystem
//!                    run/{socket,log,log.1,exit.json}                   the supervisor's
//! ```
//!
//! `sandbox.json` is what the launcher is told to start, and locked until that has done its work, so a start that has lost
//! its `asb` is told from one that has lost its launcher. Without `started.json` a start never succeeded.

mod adopt;
mod base;
mod beside;
pub(crate) mod delete;
mod programs;
mod slot;
mod start;
mod stored;

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

pub use self::stored::stored;
use crate::cgroup::Cgroups;
use crate::ids::Ids;
use crate::powers::{self, Powers};
use crate::rootless::Hub;
use crate::{Enforced, Error, MemoryDir, RootFs, Sandbox, SandboxId, Spec};

/// The launch file and the spec, in a sandbox's directory.
const SANDBOX_FILE: &str = "sandbox.json";
/// Holds nothing.
const EMPTY: &str = "empty";

/// More starts at the same time make all of them slower: each holds locks of the kernel that the others wait for. Enough that
/// a few which hang, as on the volume of a server that is gone, do not hold up the rest.
const TURNS: usize = 16;

/// The driver over one state directory. Cheap to clone.
#[derive(Clone)]
pub struct Native {
    shared: Arc<Shared>,
}

/// What all handles of one driver share.
pub(crate) struct Shared {
    directory: PathBuf,
    pub powers: Powers,
    programs: programs::Programs,
    pub cgroups: Cgroups,
    ids: Ids,
    known: Mutex<Known>,
    parked: Mutex<Vec<slot::Slot>>,
    /// What the next sandbox is most likely made from.
    expected: Mutex<Option<base::Base>>,
    /// Held while slots are being parked or removed.
    parking: tokio::sync::Mutex<()>,
    /// Starts that may go on at the same time.
    turns: tokio::sync::Semaphore,
}

#[derive(Default)]
struct Known {
    sandboxes: HashMap<SandboxId, Sandbox>,
    /// Being started by this program: not yet for [`Native::list`] to judge.
    starting: HashSet<SandboxId>,
    /// Slots of this program that have not become sandboxes yet.
    slots: HashSet<SandboxId>,
}

impl Native {
    /// Opens the state directory and puts the embedded programs into it.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let fail = |step, path: &Path| {
            let path = path.to_owned();
            move |source| Error::Open { step, path, source }
        };
        for place in ["sandbox", "slot", EMPTY].map(|name| dir.join(name)) {
            std::fs::create_dir_all(&place).map_err(fail("make", &place))?;
        }
        let directory = dir.canonicalize().map_err(fail("resolve", dir))?;
        // What volumes hold may be owned by root and set-user-id: nobody else of the machine gets near it.
        std::fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o700))
            .map_err(fail("close to others", &directory))?;
        let programs =
            programs::Programs::write(&directory).map_err(fail("write the programs to", &directory))?;
        let powers = powers::here();
        let cgroups =
            Cgroups::detect(&directory, powers).map_err(fail("read", Path::new("/proc/self/mountinfo")))?;
        let ids = Ids::open(&directory, powers).map_err(fail("open the table of ids in", &directory))?;
        let (known, parked, expected, parking) = Default::default();
        let turns = tokio::sync::Semaphore::new(TURNS);
        let shared =
            Shared { directory, powers, programs, cgroups, ids, known, parked, expected, parking, turns };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Starts a sandbox; returns when its main process has been executed (or has failed to).
    ///
    /// Nothing is left behind when it fails.
    pub async fn start(&self, spec: &Spec) -> Result<Sandbox, Error> {
        start::start(&self.shared, spec, None).await
    }

    /// The same in a network namespace of the caller's, which has [`Spec::address`] on an interface already.
    pub async fn start_in(&self, network: OwnedFd, spec: &Spec) -> Result<Sandbox, Error> {
        start::start(&self.shared, spec, Some(network)).await
    }

    /// Says what the next sandboxes are most likely made from, until one is made from something else.
    pub fn expect(&self, root: &RootFs) {
        *self.shared.expected() = self.shared.base(root);
    }

    /// What a sandbox is started from that idles, and has what others share who name it in [`Spec::beside`]: ids, IPC,
    /// `/dev/shm` and these volumes. They end with it.
    pub fn common(&self, id: SandboxId, hostname: String, memory: Vec<MemoryDir>) -> Spec {
        Spec::common(id, hostname, self.shared.directory.join(EMPTY), memory)
    }

    /// Makes a few slots ahead, so that the next starts take a fraction of the time. For when there is time.
    pub async fn park(&self) {
        slot::park(&self.shared).await;
    }

    /// Removes what was made ahead. For the end of the program; what it does not remove, the next one does.
    pub async fn unpark(&self) {
        slot::unpark(&self.shared).await;
    }

    /// The network that joins sandboxes where the machine's own cannot; `None` for root.
    pub fn hub(&self, data_dir: &Path) -> std::io::Result<Option<Hub>> {
        let program = &self.shared.programs.supervisor;
        self.shared.powers.is_rootless().then(|| Hub::open(data_dir, program)).transpose()
    }

    /// Which limits hold here.
    pub fn enforced(&self) -> Enforced {
        self.shared.cgroups.enforced()
    }

    /// Every sandbox that has not been deleted, started by this process or an earlier one.
    ///
    /// Starts and deletions that were cut short are cleaned up on the way.
    pub async fn list(&self) -> Result<Vec<Sandbox>, Error> {
        adopt::list(&self.shared).await
    }
}

impl Shared {
    /// A sandbox's own directory.
    pub fn place(&self, sandbox: &SandboxId) -> PathBuf {
        self.directory.join("sandbox").join(sandbox.as_str())
    }

    /// The directory of a slot that has not become a sandbox.
    fn slot_place(&self, slot: &SandboxId) -> PathBuf {
        self.directory.join("slot").join(slot.as_str())
    }

    /// What only idles is not worth making ahead.
    fn base(&self, root: &RootFs) -> Option<base::Base> {
        let idles = root.layers == [self.directory.join(EMPTY)];
        if idles { None } else { base::Base::of(root, &self.programs.sandboxd) }
    }

    fn expected(&self) -> std::sync::MutexGuard<'_, Option<base::Base>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that was started, or taken over.
    pub fn sandbox(&self, id: &SandboxId) -> Option<Sandbox> {
        self.known().sandboxes.get(id).cloned()
    }

    /// All of those that are wanted.
    pub fn sandboxes(&self, wanted: impl Fn(&Sandbox) -> bool) -> Vec<Sandbox> {
        self.known().sandboxes.values().filter(|sandbox| wanted(sandbox)).cloned().collect()
    }

    fn parked(&self) -> std::sync::MutexGuard<'_, Vec<slot::Slot>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        // Nothing panics half way through a change of it.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
