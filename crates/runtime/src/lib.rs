//! Isolation on one machine: root filesystems, namespaces, cgroups, and a supervisor per sandbox.
//!
//! Knows nothing of Kubernetes.
//!
//! ```text
//! Spec ─► Native::start ─► supervisor's launcher ─► supervisor, process 1 inside ─► main process
//!                                                       ▲ socket, log, exit record
//!         Sandbox (a handle, from start or list) ───────┘
//! ```
//!
//! Needs root: of the machine, or of a user namespace, which [`rootless::enter`] makes of an ordinary user.
//!
//! All that must live is in the supervisor or on disk: a handle can be dropped, the program killed, and
//! [`Native::list`] finds everything again.

mod cgroup;
mod count;
pub mod driver;
mod error;
mod ids;
pub mod image;
pub mod leak;
pub mod machine;
pub mod native;
pub mod powers;
mod process;
mod remove;
pub mod rootless;
mod sandbox;
pub mod spec;
pub mod tree;

pub use cgroup::{Enforced, Stats};
pub use error::Error;
pub use image::{Image, Images, RootFs};
pub use native::Native;
pub use powers::Powers;
pub use sandbox::{
    Attach, Ended, Exec, Exit, FailureKind, ReadEnd, SANDBOXD_PORTS, Sandbox, Session, SessionControl,
    TerminalSize, WriteEnd,
};
pub use spec::{
    Capabilities, EXTRA_IDS, Invalid, Kernel, Limits, MemoryDir, Mount, Process, SandboxId, Spec, Stdin,
};
