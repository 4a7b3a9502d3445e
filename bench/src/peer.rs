//! What people use today, set up to isolate about as much as our sandboxes do.
//!
//! All run the same command on the machine's own `/usr`, read-only, in namespaces of their own (user, mount, pid,
//! network, ipc, uts, cgroup), without capabilities. `crun` and `runc` also limit memory and processes by cgroup, as
//! we do; `bwrap` cannot, and `runsc` is told not to, as by us: there the cgroup is ours. None but that loads a seccomp filter,
//! which we do: the comparison is in their favour.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};

/// What every contender runs.
pub const COMMAND: [&str; 2] = ["/bin/echo", "hi"];

const PROGRAMS: [&str; 4] = ["bwrap", "crun", "runc", "runsc"];
/// What we tell gVisor, too; but for the network, of which this has none.
const RUNSC: [&str; 4] = ["--ignore-cgroups", "--platform=systrap", "--network=none", "--overlay2=none"];
/// Links into `/usr` on machines where the two are merged.
const LINKS: [&str; 4] = ["bin", "sbin", "lib", "lib64"];
const FIRST_ID: u32 = 1_000_000;

pub struct Peer {
    pub name: &'static str,
    kind: Kind,
}

enum Kind {
    Bare,
    Bwrap,
    /// An OCI runtime, with its bundle and the directory for its state.
    Oci {
        program: &'static str,
        bundle: PathBuf,
        state: PathBuf,
    },
}

/// Those that are installed, and the names of those that are not.
pub fn find(directory: &Path) -> anyhow::Result<(Vec<Peer>, Vec<&'static str>)> {
    let (found, missing): (Vec<_>, Vec<_>) = PROGRAMS.into_iter().partition(|program| installed(program));
    let mut peers = vec![Peer { name: "fork/exec", kind: Kind::Bare }];
    if found.contains(&"bwrap") {
        peers.push(Peer { name: "bwrap", kind: Kind::Bwrap });
    }
    for (program, name) in [("crun", "crun run"), ("runc", "runc run"), ("runsc", "runsc run")] {
        if found.contains(&program) {
            let bundle = bundle(&directory.join(program), program).context("failed to make an OCI bundle")?;
            let state = directory.join(program).join("state");
            peers.push(Peer { name, kind: Kind::Oci { program, bundle, state } });
        }
    }
    for program in &missing {
        eprintln!("WARNING: `{program}` is not installed; it is left out of the comparison");
    }
    Ok((peers, missing))
}

impl Peer {
    /// The whole command line of one run; `id` is different for each.
    pub fn argv(&self, id: &str) -> Vec<String> {
        match &self.kind {
            Kind::Bare => COMMAND.map(str::to_owned).to_vec(),
            Kind::Bwrap => bwrap(),
            Kind::Oci { program, bundle, state } => {
                let (bundle, state) = (bundle.display().to_string(), state.display().to_string());
                let flags: &[&str] = if *program == "runsc" { &RUNSC } else { &[] };
                let argv = [program, "--root", &state].into_iter().chain(flags.iter().copied());
                argv.chain(["run", "--bundle", &bundle, id]).map(str::to_owned).collect()
            }
        }
    }
}

fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

fn bwrap() -> Vec<String> {
    let mut argv = "bwrap --unshare-all --unshare-user --uid 0 --gid 0 --hostname bench --die-with-parent --new-session \
        --cap-drop ALL --clearenv --ro-bind /usr /usr --proc /proc --dev /dev --tmpfs /tmp --tmpfs /run"
        .split_whitespace()
        .map(str::to_owned)
        .collect::<Vec<_>>();
    for (name, target) in links() {
        argv.extend(["--symlink".to_owned(), target, format!("/{name}")]);
    }
    argv.push("--".to_owned());
    argv.extend(COMMAND.map(str::to_owned));
    argv
}

/// Makes the directory that `crun run`, `runc run` and `runsc run` start from.
fn bundle(directory: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let bundle = directory.join("bundle");
    let root = bundle.join("rootfs");
    for place in ["proc", "sys", "dev", "tmp", "run", "usr"] {
        std::fs::create_dir_all(root.join(place))?;
    }
    for (name, target) in links() {
        symlink(target, root.join(name))?;
    }
    std::fs::write(bundle.join("config.json"), serde_json::to_vec_pretty(&config(name))?)?;
    Ok(bundle)
}

fn config(name: &str) -> Value {
    let mount = |target: &str, kind: &str, source: &str, options: &[&str]| json!({"destination": target, "type": kind, "source": source, "options": options});
    let ids = json!([{"containerID": 0, "hostID": FIRST_ID, "size": 65536}]);
    let namespaces = ["user", "mount", "pid", "network", "ipc", "uts", "cgroup"];
    json!({
        "ociVersion": "1.0.0",
        "hostname": "bench",
        "root": {"path": "rootfs", "readonly": true},
        "process": {
            "args": COMMAND, "cwd": "/", "terminal": false, "noNewPrivileges": true,
            "user": {"uid": 0, "gid": 0}, "capabilities": {}, "env": ["PATH=/usr/bin:/bin"],
        },
        "mounts": [
            mount("/proc", "proc", "proc", &["nosuid", "noexec", "nodev"]),
            mount("/sys", "sysfs", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
            mount("/dev", "tmpfs", "tmpfs", &["nosuid", "mode=755", "size=64k"]),
            mount("/dev/pts", "devpts", "devpts", &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]),
            mount("/dev/shm", "tmpfs", "shm", &["nosuid", "noexec", "nodev", "mode=1777", "size=64m"]),
            mount("/run", "tmpfs", "tmpfs", &["nosuid", "nodev", "mode=755", "size=64m"]),
            mount("/tmp", "tmpfs", "tmpfs", &["nosuid", "nodev", "mode=1777"]),
            mount("/usr", "bind", "/usr", &["rbind", "ro", "nosuid", "nodev"]),
        ],
        "linux": {
            "namespaces": namespaces.map(|kind| json!({"type": kind})),
            "uidMappings": ids, "gidMappings": ids,
            "cgroupsPath": format!("/asb-bench-{name}-{}", std::process::id()),
            "resources": {"memory": {"limit": 1u64 << 30}, "pids": {"limit": 1024}},
            "maskedPaths": ["/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
        },
    })
}

/// The machine's own links, such as `bin` → `usr/bin`.
fn links() -> Vec<(&'static str, String)> {
    let target =
        |name: &str| Some(std::fs::read_link(Path::new("/").join(name)).ok()?.to_string_lossy().into_owned());
    LINKS.into_iter().filter_map(|name| Some((name, target(name)?))).collect()
}
