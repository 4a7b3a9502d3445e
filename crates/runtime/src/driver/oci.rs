//! `runc`, `crun` and gVisor's `runsc`: a spec as a `config.json` that is as strict as our own sandboxes are.

use std::path::{Path, PathBuf};

use asb_supervisor::confine::{MASKED_IN_PROC, MASKED_IN_SYS, OPEN_FILES, READ_ONLY_PATHS, TERMINALS};
use asb_supervisor::launch;
use rustix::process::{Resource, getrlimit};
use serde_json::{Value, json};

use super::{Abilities, Driver, Name, seccomp};
use crate::{Limits, Spec};

pub struct Oci {
    pub name: Name,
    pub program: PathBuf,
}

/// Threads of a runtime that starts a program, so that a sandbox with few processes can still be talked to.
const RUNTIME_THREADS: u32 = 24;
/// Threads of a gVisor kernel. Each program inside costs it some more.
const KERNEL_THREADS: u32 = 512;
/// What a gVisor kernel needs for itself.
const KERNEL_MEMORY: u64 = 64 << 20;

impl Oci {
    fn is_gvisor(&self) -> bool {
        self.name == Name::Gvisor
    }

    /// Cgroups are ours to make, and the container shares that of the supervisor; every runtime has its own way to be
    /// told that they are none of its business.
    fn flags(&self) -> &'static [&'static str] {
        match self.name {
            Name::Runc => &["--rootless=true"],
            Name::Crun => &["--cgroup-manager=disabled"],
            // The root is an overlay already, and has to be on disk to be counted there.
            _ => &["--ignore-cgroups", "--platform=systrap", "--network=sandbox", "--overlay2=none"],
        }
    }
}

impl Driver for Oci {
    fn name(&self) -> Name {
        self.name
    }

    fn program(&self) -> Option<&Path> {
        Some(&self.program)
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            user_namespace: true,
            exec: true,
            terminal: true,
            freeze: true,
            checkpoint: false,
            memory_limit: true,
            process_limit: !self.is_gvisor(),
            shared_network: true,
            kernel_of_the_machine: !self.is_gvisor(),
        }
    }

    fn limits(&self, limits: Limits) -> Limits {
        let (threads, memory) = if self.is_gvisor() {
            (limits.pids.saturating_mul(3).saturating_add(KERNEL_THREADS), KERNEL_MEMORY)
        } else {
            (RUNTIME_THREADS, 0)
        };
        Limits {
            pids: limits.pids.saturating_add(threads),
            memory_bytes: limits.memory_bytes.map(|bytes| bytes.saturating_add(memory)),
            ..limits
        }
    }

    fn launch(&self, spec: &Spec, kernel: launch::Kernel) -> Option<launch::Oci> {
        let files = getrlimit(Resource::Nofile).maximum.map_or(OPEN_FILES, |most| most.min(OPEN_FILES));
        Some(launch::Oci {
            program: self.program.clone(),
            flags: self.flags().iter().map(|flag| (*flag).to_owned()).collect(),
            gvisor: self.is_gvisor(),
            config: config(spec, files, self.is_gvisor()),
            kernel,
        })
    }
}

/// `config.json`, but for the root's place, the ids and the process, which are the supervisor's to add.
fn config(spec: &Spec, open_files: u64, gvisor: bool) -> Value {
    let capabilities: Vec<_> = spec.capabilities.names().collect();
    // What is shared with another sandbox is where the supervisor is.
    let own = |kind: &&str| *kind != "ipc" || spec.beside.is_none();
    let namespaces = ["pid", "mount", "ipc", "uts", "cgroup", "user"].into_iter().filter(own);
    let namespaces: Vec<_> = namespaces.map(|kind| json!({"type": kind})).collect();
    let limit = |kind: &str, most: u64| json!({"type": kind, "soft": most, "hard": most});
    let (masked, read_only) = match spec.privileged {
        true => (Vec::new(), &[][..]),
        false => (MASKED_IN_PROC.iter().chain(&MASKED_IN_SYS).collect(), &READ_ONLY_PATHS[..]),
    };
    let mut config = json!({
        "ociVersion": "1.0.2",
        "hostname": spec.hostname,
        "root": {"readonly": spec.read_only_root},
        "process": {
            "noNewPrivileges": !spec.privileged,
            "capabilities": {
                "bounding": capabilities, "effective": capabilities, "permitted": capabilities,
                "inheritable": [], "ambient": [],
            },
            "rlimits": [limit("RLIMIT_NOFILE", open_files), limit("RLIMIT_CORE", 0)],
        },
        "mounts": mounts(gvisor),
        "linux": {
            "namespaces": namespaces,
            "maskedPaths": masked,
            "readonlyPaths": read_only,
        },
    });
    if !gvisor {
        // Below gVisor's own kernel, its own filter already leaves programs no way to the machine's.
        config["linux"]["seccomp"] = match spec.privileged {
            true => seccomp::privileged_profile(),
            false => seccomp::profile(),
        };
        return config;
    }
    // Its threads, which a cgroup counts, are not the sandbox's processes. It counts those itself, for each user.
    let processes = limit("RLIMIT_NPROC", spec.limits.pids.into());
    config["process"]["rlimits"].as_array_mut().into_iter().for_each(|all| all.push(processes.clone()));
    // Otherwise it makes a new one. Process 1 is the supervisor, which is in the sandbox's.
    let network = json!({"type": "network", "path": "/proc/1/ns/net"});
    config["linux"]["namespaces"].as_array_mut().into_iter().for_each(|all| all.push(network.clone()));
    config
}

/// What the kernel makes. The rest of the root is mounted before.
fn mounts(gvisor: bool) -> Value {
    let most = format!("max={TERMINALS}");
    let mut terminals = vec!["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"];
    if !gvisor {
        terminals.push(&most); // gVisor's are none of the machine's
    }
    let mount = |place: &str, kind: &str, options: &[&str]| json!({"destination": place, "type": kind, "source": kind, "options": options});
    json!([
        mount("/proc", "proc", &["nosuid", "noexec", "nodev"]),
        mount("/dev", "tmpfs", &["nosuid", "mode=755", "size=64k"]),
        mount("/dev/pts", "devpts", &terminals),
        mount("/dev/shm", "tmpfs", &["nosuid", "noexec", "nodev", "mode=1777", "size=64m"]),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use asb_supervisor::confine::CAPABILITIES;

    use crate::{Capabilities, Process, RootFs, SandboxId};

    fn spec() -> Spec {
        Spec {
            id: SandboxId::new("a").expect("valid"),
            driver: Name::Runc,
            kernel: Default::default(),
            hostname: "box".to_owned(),
            root: RootFs { layers: Vec::new(), host_dirs: Vec::new() },
            read_only_root: true,
            capabilities: Capabilities::default(),
            privileged: false,
            mounts: Vec::new(),
            memory_dirs: Vec::new(),
            extra_ids: Vec::new(),
            beside: None,
            process: Process::idle(),
            limits: Limits {
                memory_bytes: Some(1 << 20),
                cpu_millis: None,
                cpu_share_millis: None,
                pids: 10,
                log_bytes: 1,
            },
            address: None,
            network: false,
            resolv_conf: None,
            hosts: None,
            last_words: None,
            labels: Default::default(),
        }
    }

    #[test]
    fn config_gives_no_more_than_our_own_sandboxes_have() {
        let made = config(&spec(), 100, false);
        assert_eq!(made["process"]["noNewPrivileges"], true);
        assert_eq!(
            made["process"]["capabilities"]["bounding"].as_array().map(Vec::len),
            Some(CAPABILITIES.len())
        );
        assert_eq!(made["process"]["capabilities"]["ambient"], json!([]));
        assert_eq!(made["root"]["readonly"], true);
        assert!(made["linux"]["seccomp"].is_object());
        // Without one of its own a container is in the supervisor's, which is the sandbox's.
        let kinds: Vec<_> = made["linux"]["namespaces"].as_array().expect("a list").iter().collect();
        assert!(!kinds.contains(&&json!({"type": "network"})), "{kinds:?}");
        let less = config(&Spec { capabilities: Capabilities::NONE, ..spec() }, 100, false);
        assert_eq!(less["process"]["capabilities"]["bounding"], json!([]));
        let more = Spec { capabilities: Capabilities::ALL, privileged: true, ..spec() };
        let more = config(&more, 100, false);
        assert_eq!(more["process"]["noNewPrivileges"], false);
        assert_eq!(more["linux"]["maskedPaths"], json!([]));
        assert_eq!(more["linux"]["seccomp"]["defaultAction"], "SCMP_ACT_ALLOW");
        let gvisor = config(&spec(), 1, true);
        assert!(gvisor["linux"]["seccomp"].is_null());
        let processes = json!({"type": "RLIMIT_NPROC", "soft": 10, "hard": 10});
        assert!(gvisor["process"]["rlimits"].as_array().is_some_and(|all| all.contains(&processes)));
    }

    #[test]
    fn runtime_fits_in_beside_the_sandbox() {
        let driver = |name| Oci { name, program: "/x".into() };
        assert_eq!(driver(Name::Crun).limits(spec().limits).memory_bytes, Some(1 << 20));
        assert!(driver(Name::Crun).limits(spec().limits).pids > 10);
        assert!(driver(Name::Gvisor).limits(spec().limits).memory_bytes > Some(KERNEL_MEMORY));
    }
}
