//! What makes a sandbox: our own supervisor (`native`), or another runtime that the supervisor tells to.
//!
//! ```text
//! Spec ─► Driver::launch (pure) ─► launch file ─► supervisor ─┬─ native: makes the namespaces, is process 1 inside
//!                                                            └─ runc, crun, gvisor: stays outside, runs the runtime
//! ```
//!
//! A driver only decides how a spec becomes a launch and says what it can do. Everything else is the same for all: a
//! [`crate::Sandbox`] talks to a supervisor, whoever made its namespaces. So which driver a sandbox runs under is stored
//! with it, in [`Spec::driver`], and what a driver has made is found and deleted without its program.

mod cache;
mod oci;
mod probe;
mod seccomp;

use std::path::{Path, PathBuf};

use asb_supervisor::launch;
use serde::{Deserialize, Serialize};

pub use self::cache::Cache;
pub use self::probe::{Probe, probe};
use crate::{Limits, Spec, powers};

/// Names a driver: as a RuntimeClass does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Name {
    #[default]
    Native,
    Runc,
    Crun,
    Gvisor,
}

/// All there are, weakest requirements first.
pub const ALL: [Name; 4] = [Name::Native, Name::Runc, Name::Crun, Name::Gvisor];

/// What sandboxes of a driver have, by its nature; whether it works on a machine is for a [`Probe`] to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Abilities {
    /// Ids inside are none of the machine's, and no other sandbox's.
    pub user_namespace: bool,
    pub exec: bool,
    pub terminal: bool,
    /// Stopping everything where it is, and letting it go on.
    pub freeze: bool,
    /// Saving everything and starting from there.
    pub checkpoint: bool,
    pub memory_limit: bool,
    /// No more processes inside than asked for, whoever they are. Otherwise the limit may be for each user inside, and
    /// keeps the machine safe.
    pub process_limit: bool,
    /// Several sandboxes can have one network between them.
    pub shared_network: bool,
    /// Programs have the machine's kernel below them. Otherwise they have one of their own.
    pub kernel_of_the_machine: bool,
}

/// How a spec becomes a launch.
pub trait Driver: Send + Sync {
    fn name(&self) -> Name;

    /// The program it is run by; `None` when none is needed.
    fn program(&self) -> Option<&Path>;

    fn abilities(&self) -> Abilities;

    /// What the cgroup of a sandbox must allow, so that the driver's own processes fit in beside the sandbox's.
    fn limits(&self, limits: Limits) -> Limits;

    /// What the supervisor is to know beyond what all drivers need.
    fn launch(&self, spec: &Spec, kernel: launch::Kernel) -> Option<launch::Oci>;
}

/// The supervisor does it all.
struct Native;

impl Driver for Native {
    fn name(&self) -> Name {
        Name::Native
    }

    fn program(&self) -> Option<&Path> {
        None
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            user_namespace: true,
            exec: true,
            terminal: true,
            freeze: true,
            checkpoint: false,
            memory_limit: true,
            process_limit: true,
            shared_network: true,
            kernel_of_the_machine: true,
        }
    }

    fn limits(&self, limits: Limits) -> Limits {
        limits
    }

    fn launch(&self, _: &Spec, _: launch::Kernel) -> Option<launch::Oci> {
        None
    }
}

/// Where programs are looked for. Not the environment's PATH: they are run as root.
pub const PLACES: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// The driver of this name, if what it needs is installed. Other runtimes are run as root of the machine.
pub fn find(name: Name) -> Option<Box<dyn Driver>> {
    let Some(program) = name.program() else { return Some(Box::new(Native)) };
    if powers::here().is_rootless() {
        return None;
    }
    Some(Box::new(oci::Oci { name, program: find_program(program)? }))
}

/// A program of the machine, where those are looked for.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    PLACES.iter().map(|place| Path::new(place).join(name)).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

impl Name {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Runc => "runc",
            Self::Crun => "crun",
            Self::Gvisor => "gvisor",
        }
    }

    /// The one that is written like this.
    pub fn parse(text: &str) -> Option<Self> {
        ALL.into_iter().find(|name| name.as_str() == text)
    }

    /// What the program is called.
    pub fn program(self) -> Option<&'static str> {
        match self {
            Self::Native => None,
            Self::Gvisor => Some("runsc"),
            name => Some(name.as_str()),
        }
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in ALL {
            assert_eq!(Name::parse(name.as_str()), Some(name));
            assert_eq!(serde_json::to_value(name).expect("encodes"), name.as_str());
        }
        assert_eq!(Name::parse("kata"), None);
    }

    #[test]
    fn native_needs_nothing() {
        let native = find(Name::Native).expect("always there");
        assert_eq!((native.name(), native.program()), (Name::Native, None));
    }
}
