//! Isolation on one machine: root filesystems, namespaces, cgroups, and a supervisor per sandbox.
//!
//! Knows nothing of Kubernetes.

pub mod image;
pub mod native;
pub mod spec;

pub use image::{Images, RootFs};
pub use native::{
    Ended, Error, Exec, Exit, Native, ReadEnd, SANDBOXD_PORT, Sandbox, Session, SessionControl, TerminalSize,
    WriteEnd,
};
pub use spec::{Limits, Mount, Process, SandboxId, Spec};
