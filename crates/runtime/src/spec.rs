//! What a sandbox is made from: plain data, complete before anything is started.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::RootFs;

/// Names one sandbox for its whole life: `[a-z0-9-]{1,63}`. The node uses the Pod's UID.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SandboxId(String);

/// Everything needed to start one sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spec {
    pub id: SandboxId,
    pub hostname: String,
    pub root: RootFs,
    pub read_only_root: bool,
    pub mounts: Vec<Mount>,
    pub process: Process,
    pub limits: Limits,
    /// An address of its own on the sandbox's loopback interface (there is no other interface yet).
    pub address: Option<Ipv4Addr>,
    /// The caller's own notes, stored with the sandbox and given back by [`crate::Native::list`].
    pub labels: std::collections::BTreeMap<String, String>,
}

/// A host directory or file made visible inside, ids mapped so that inside uid 0 is uid 0 on disk.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Mount {
    pub source: PathBuf,
    /// Absolute path inside; missing directories are made. Can never lead outside the root.
    pub target: PathBuf,
    pub read_only: bool,
}

/// A program to run inside.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Process {
    /// Empty: the supervisor idles until it is told to stop.
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub cwd: PathBuf,
    pub uid: u32,
    pub gid: u32,
}

/// Limits by cgroup, v1 or v2.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Limits {
    pub memory_bytes: Option<u64>,
    pub cpu_millis: Option<u32>,
    pub pids: u32,
    /// Log bytes kept on disk before the oldest are dropped.
    pub log_bytes: u64,
}

impl SandboxId {
    pub fn new(id: &str) -> Result<Self, String> { Ok(Self(id.to_owned())) }
    pub fn as_str(&self) -> &str { &self.0 }
}
impl std::fmt::Display for SandboxId { fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str(&self.0) } }
