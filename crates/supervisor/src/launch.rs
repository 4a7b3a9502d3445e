//! What a supervisor is started from, and the one answer it gives about the start.
//!
//! Both ends of this exchange come from the same build of `asb`, so unlike [`crate::wire`] it needs no generations.
//!
//! ```text
//! asb                                    launcher
//!  │ Slot + its directory ──────────────► │  first packet on its standard input, a `SOCK_SEQPACKET` socket
//!  │                                      │  makes all that does not depend on what will run, and waits: parked
//!  │ [0] + launch file, descriptors ────► │  which, is for `Launch` to say: see [`ORDER_FDS`]
//!  │ ◄──────────────────────────── Report │  one line of JSON on its standard output
//! ```
//!
//! A launcher whose socket is closed before the second packet ends, and with it whatever it has made but files.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::confine::Capabilities;
use crate::powers::Powers;
use crate::wire::FailureKind;

/// Ids inside a sandbox run from 0 to one below this. A launch may add a few above: see [`ExtraIds`].
pub const IDS: u32 = 0x1_0000;

/// The most ids above [`IDS`] that a sandbox can have.
pub const EXTRA_IDS: usize = 16;

/// Ids above [`IDS`] that exist inside as well.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtraIds {
    /// The first of them is this id of the launcher's; the others follow.
    pub first: u32,
    pub inside: Vec<u32>,
}

impl ExtraIds {
    /// The launcher's id for an id inside, where id 0 inside is `first_id`. `None`: it does not exist inside.
    pub fn outside(&self, first_id: u32, id: u32) -> Option<u32> {
        if id < IDS {
            return Some(first_id + id);
        }
        let at = self.inside.iter().position(|extra| *extra == id)?;
        Some(self.first + u32::try_from(at).ok()?)
    }
}

/// The launch file, of which the launcher reads only this: the rest is `asb`'s own.
#[derive(Debug, Serialize, Deserialize)]
pub struct LaunchFile {
    pub launch: Launch,
}

/// A place for a sandbox, whatever will run there.
///
/// Its directory, in which `upper`, `work` and `run` exist, comes as a descriptor: it may get another name any time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Slot {
    /// What the launcher may do.
    pub powers: Powers,
    /// Id 0 inside is this id of the launcher's; [`IDS`] ids follow, unless there is only this one.
    pub first_id: u32,
    /// The supervisor's own id: outside the sandbox's range and nobody else's, as far as there are ids.
    pub supervisor_id: u32,
    /// Files to write `0` to, in order to join the cgroups.
    pub cgroups: Vec<PathBuf>,
    /// The same cgroups, as programs inside see them.
    #[serde(default)]
    pub cgroup_views: Vec<CgroupView>,
    /// What the root is made from ahead. Nothing else can run in this slot then.
    #[serde(default)]
    pub image: Option<Image>,
}

/// A cgroup that is shown below `/sys/fs/cgroup`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupView {
    /// The controllers of a hierarchy of the first version, as the kernel lists them; `None`: it is the second's.
    pub name: Option<String>,
    pub path: PathBuf,
}

/// What a root is made from, whatever will run in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// What the root is stacked from, topmost first.
    pub layers: Vec<PathBuf>,
    pub host_dirs: Vec<PathBuf>,
}

/// What is to run in a slot. Paths are those of the machine unless they say otherwise.
#[derive(Debug, Serialize, Deserialize)]
pub struct Launch {
    pub hostname: String,
    pub image: Image,
    pub read_only_root: bool,
    /// What root inside keeps.
    #[serde(default)]
    pub capabilities: Capabilities,
    /// Whether root inside has every right over namespaces of its own, and is kept from nothing that the kernel grants it there.
    #[serde(default)]
    pub privileged: bool,
    /// Directories of the machine that only this sandbox sees as filesystems in memory; made before the binds.
    pub memory_dirs: Vec<MemoryDir>,
    pub binds: Vec<Bind>,
    /// On an interface of the namespace that is entered, or else on loopback.
    pub address: Option<Ipv4Addr>,
    /// Enters the network namespace that came with the launch file, instead of making one.
    pub network: bool,
    /// Contents of `/etc/resolv.conf`.
    pub resolv_conf: Option<String>,
    /// Contents of `/etc/hosts`.
    #[serde(default)]
    pub hosts: Option<String>,
    /// A file inside, made empty and for everybody, whose contents go into the [`ExitRecord`].
    #[serde(default)]
    pub last_words: Option<PathBuf>,
    /// The limit on memory, of which programs are told.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// How many processors programs are told of, if their time is limited.
    #[serde(default)]
    pub processors: Option<u32>,
    pub log_bytes: u64,
    #[serde(default)]
    pub extra_ids: ExtraIds,
    /// The most processes of one user inside, where no cgroup counts them.
    #[serde(default)]
    pub user_processes: Option<u64>,
    pub main: Main,
    /// Another program makes the container, and the supervisor stays outside it.
    #[serde(default)]
    pub oci: Option<Oci>,
    /// Shares ids, IPC, `/dev/shm` and `memory_dirs` with another sandbox.
    #[serde(default)]
    pub beside: Option<Beside>,
}

/// What a sandbox has in common with another one.
#[derive(Debug, Serialize, Deserialize)]
pub struct Beside {
    /// Id 0 inside, in place of the slot's.
    pub first_id: u32,
    /// For each of the memory dirs, what it is called in the directory of the other's volumes.
    pub names: Vec<String>,
}

/// The most descriptors of an order: the launch file; the network namespace, if [`Launch::network`]; and with
/// [`Launch::beside`], of the other sandbox, its IPC namespace, its `/dev/shm` and, if there are memory dirs, where they are.
pub const ORDER_FDS: usize = 5;

/// A runtime that is told what to do by its command line and a `config.json`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Oci {
    pub program: PathBuf,
    /// What it is told before each command.
    pub flags: Vec<String>,
    /// Whether it is gVisor's: its containers have a kernel, a network stack and process ids of their own.
    pub gvisor: bool,
    /// `config.json`, but for what is known only when the root has been mounted.
    pub config: serde_json::Value,
    #[serde(default)]
    pub kernel: Kernel,
}

/// Which kernel programs run on, where the runtime brings one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kernel {
    /// One for this sandbox alone.
    #[default]
    Own,
    /// One that others may join: what they need for that is in [`file::KERNEL`].
    Shared,
    /// That of another sandbox, whose [`file::KERNEL`] this is.
    Joined(PathBuf),
}

/// Where `sandboxd` is found inside. A layer of every root has it: a mount of the file would show its path on the machine.
pub const SANDBOXD: &str = "/.asb/sandboxd";

/// Where the first process of a container of another runtime is found inside: in one more layer.
pub const INIT: &str = "/.asb/init";

/// A directory or file of the machine, shown inside with its ids mapped.
#[derive(Debug, Serialize, Deserialize)]
pub struct Bind {
    pub source: PathBuf,
    /// What of `source` is shown, made when missing; empty: all of it. No link leads out of `source`.
    pub sub_path: PathBuf,
    /// Inside.
    pub target: PathBuf,
    pub read_only: bool,
}

/// A directory of the machine that a filesystem in memory is mounted over, in the sandbox's mount namespace alone.
#[derive(Debug, Serialize, Deserialize)]
pub struct MemoryDir {
    pub path: PathBuf,
    pub bytes: u64,
    /// The group that owns it, inside.
    pub group: u32,
}

/// The main process.
#[derive(Debug, Serialize, Deserialize)]
pub struct Main {
    /// Empty: the supervisor idles until it is told to stop.
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub cwd: String,
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    pub stdin: Stdin,
    /// Whether its streams are a terminal.
    pub terminal: bool,
}

/// What the main process reads from its standard input.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stdin {
    /// Nothing: its end comes at once.
    #[default]
    Empty,
    /// Whatever those who attach write; it never ends.
    Open,
    /// What the first who attaches writes, and the end with it. A terminal has no such end.
    Once,
}

/// The one answer about a start.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// The main process has been executed.
    Started(Identity),
    Failed(Failure),
}

/// Which step of a start failed, on what, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub step: String,
    pub path: Option<PathBuf>,
    pub errno: i32,
    /// Set when the sandbox itself was fine and only its program could not be started.
    pub program: Option<FailureKind>,
}

/// Written by the launcher as soon as the supervisor exists, so that a later `asb` finds it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Identity {
    pub pid: i32,
    /// Field 22 of `/proc/PID/stat`: with the boot id it tells this process from a later one with the same pid.
    pub start_time: u64,
    pub boot_id: String,
    /// When it was started, in nanoseconds since 1970.
    pub at: u64,
}

/// The end of the main process, as the supervisor records it in `run/exit.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExitRecord {
    pub status: crate::wire::Status,
    /// Nanoseconds since 1970.
    pub at: u64,
    /// What was in the file of [`Launch::last_words`], at most [`LAST_WORDS`] bytes of it; `None`: nothing.
    #[serde(default)]
    pub last_words: Option<String>,
}

/// No more than this is kept of what a main process leaves behind.
pub const LAST_WORDS: u64 = 4096;

/// File names in the sandbox's directory.
pub mod file {
    /// [`super::Identity`] of a supervisor whose main process does not run yet.
    pub const STARTING: &str = "starting.json";
    /// The same file once it does: without it the start never succeeded.
    pub const STARTED: &str = "started.json";
    /// The only directory the supervisor may write to afterwards.
    pub const RUN: &str = "run";
    pub const SOCKET: &str = "socket";
    /// [`super::ExitRecord`], in `run`.
    pub const EXIT: &str = "exit.json";
    /// What those need who join the kernel of this sandbox.
    pub const KERNEL: &str = "kernel";
    pub const LOG: &str = "log";
    pub const OLD_LOG: &str = "log.1";
}
