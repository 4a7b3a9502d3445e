//! Stopping every process of a sandbox where it is, and letting all go on.
//!
//! The second version of cgroups freezes the cgroup a sandbox has anyway. The first has a hierarchy of its own for it,
//! which processes are moved to when it is needed: joining it at every start would cost every start. (Without root they are there
//! from the start.)

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Cgroups, Failure, Version, write};
use crate::SandboxId;

/// Processes freeze as soon as they next run, unless the kernel waits for a device.
const TRIES: u32 = 2000;
/// Tries after which the first version is taken to be stuck half way.
const STUCK: u32 = 50;
const PAUSE: Duration = Duration::from_millis(1);

impl Cgroups {
    /// Returns when no process of the sandbox runs any more. Blocks for milliseconds.
    pub fn freeze(&self, sandbox: &SandboxId) -> Result<(), Failure> {
        let (version, place) = self.require(&self.freezer, "freezer", sandbox)?;
        if version == Version::V2 {
            write(&place.join("cgroup.freeze"), "1")?;
            return until(&place.join("cgroup.events"), |text| text.contains("frozen 1"));
        }
        self.gather(sandbox, &place)?;
        let state = place.join("freezer.state");
        for attempt in 1..=TRIES {
            write(&state, "FROZEN")?;
            if std::fs::read_to_string(&state).is_ok_and(|text| text.trim() == "FROZEN") {
                return Ok(());
            }
            if attempt % STUCK == 0 {
                // One that forks just then can keep the others from getting there: all move on a little.
                write(&state, "THAWED")?;
            }
            std::thread::sleep(PAUSE);
        }
        Err(never("wait for", &state))
    }

    pub fn thaw(&self, sandbox: &SandboxId) -> Result<(), Failure> {
        let (version, place) = self.require(&self.freezer, "freezer", sandbox)?;
        match version {
            Version::V2 => write(&place.join("cgroup.freeze"), "0"),
            Version::V1 if place.exists() => write(&place.join("freezer.state"), "THAWED"),
            Version::V1 => Ok(()),
        }
    }

    /// Whether it is frozen, or about to be.
    pub fn is_frozen(&self, sandbox: &SandboxId) -> bool {
        let Ok((version, place)) = self.require(&self.freezer, "freezer", sandbox) else { return false };
        let (file, running) = match version {
            Version::V1 => ("freezer.state", "THAWED"),
            Version::V2 => ("cgroup.freeze", "0"),
        };
        std::fs::read_to_string(place.join(file)).is_ok_and(|state| state.trim() != running)
    }

    /// Moves every process of the sandbox to its place in the hierarchy of the freezer.
    fn gather(&self, sandbox: &SandboxId, place: &Path) -> Result<(), Failure> {
        let (_, all) = self.require(&self.pids, "pids", sandbox)?;
        if let Some(freezer) = &self.freezer
            && !place.exists()
        {
            self.make(freezer, sandbox)?;
        }
        // Those that are forked meanwhile by one that is there already are born there.
        for _ in 0..TRIES {
            let there = members(&place.join("cgroup.procs"))?;
            let missing: Vec<_> = members(&all.join("cgroup.procs"))?.difference(&there).cloned().collect();
            if missing.is_empty() {
                return Ok(());
            }
            for pid in missing {
                match write(&place.join("cgroup.procs"), &pid) {
                    // Ended meanwhile.
                    Err(failure) if failure.source.raw_os_error() == Some(libc::ESRCH) => {}
                    other => other?,
                }
            }
        }
        Err(never("gather the processes of", place))
    }
}

fn members(path: &Path) -> Result<HashSet<String>, Failure> {
    let text = std::fs::read_to_string(path).map_err(|source| Failure {
        step: "read",
        path: path.to_owned(),
        source,
    })?;
    Ok(text.lines().map(str::to_owned).collect())
}

fn until(path: &Path, holds: impl Fn(&str) -> bool) -> Result<(), Failure> {
    for _ in 0..TRIES {
        if std::fs::read_to_string(path).is_ok_and(|text| holds(&text)) {
            return Ok(());
        }
        // Milliseconds at most: not worth a watch.
        std::thread::sleep(PAUSE);
    }
    Err(never("wait for", path))
}

fn never(step: &'static str, path: &Path) -> Failure {
    Failure { step, path: PathBuf::from(path), source: std::io::ErrorKind::TimedOut.into() }
}
