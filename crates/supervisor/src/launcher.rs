//! The first stage, as root of the machine: cgroups, namespaces, and a record of who the supervisor is.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use asb_supervisor::launch::{Failure, Identity, Launch, LaunchFile, Report, file};
use rustix::fs::{Mode, OFlags, open, openat};
use rustix::io::Errno;
use rustix::mount::MountPropagationFlags;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::fork::{Fork, exit, fork};
use crate::identity;
use crate::init::{self, Kept};
use crate::step::{Result, Step};

/// Reads the launch file from standard input, starts the supervisor, reports on standard output.
pub fn run() -> ExitCode {
    let report = match launch() {
        Ok(report) => report,
        Err(failure) => Report::Failed(failure),
    };
    // Nobody may be listening any more; the sandbox does not care.
    let _ = serde_json::to_writer(std::io::stdout(), &report).map(|()| std::io::stdout().flush());
    match report {
        Report::Started => ExitCode::SUCCESS,
        Report::Failed(_) => ExitCode::FAILURE,
    }
}

fn launch() -> Result<Report> {
    close_inherited();
    let launch = read_launch()?;
    // Fails only when this process already leads a session.
    let _ = rustix::process::setsid();
    rustix::process::umask(Mode::empty());
    for path in &launch.cgroups {
        // `0` is the writer itself. On cgroup v1 a lone thread that moves itself waits for no grace period.
        std::fs::write(path, "0").step_at("join cgroup", path)?;
    }
    let state = directory(&launch.state)?;
    let namespace = identity::namespace(launch.first_id, launch.supervisor_id)?;
    let run = openat(&state, file::RUN, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .step_at("open", launch.state.join(file::RUN))?;
    let listener = listen(&launch.state.join(file::RUN))?;
    enter_namespaces(launch.network)?;

    let (go, say_go) = pipe_with(PipeFlags::CLOEXEC).step("make a pipe")?;
    let (report, say_report) = pipe_with(PipeFlags::CLOEXEC).step("make a pipe")?;
    let init = match fork().step("fork")? {
        Fork::Parent(init) => init,
        Fork::Child => {
            drop((say_go, report, state));
            init::run(launch, Kept { namespace, run, listener }, go, say_report);
            exit(0)
        }
    };
    drop((go, say_report, namespace, run, listener));
    // Recorded first, then let go: a supervisor that no later `asb` could find never starts anything.
    record(&state, &identity_of(init)?)?;
    rustix::io::write(&say_go, b"g").step("let the supervisor go")?;
    let report = read_report(report)?;
    if matches!(report, Report::Started) {
        rustix::fs::renameat(&state, file::STARTING, &state, file::STARTED)
            .step_at("rename", file::STARTING)?;
    }
    Ok(report)
}

/// Whatever else `asb` or the shell that ran it had open is not for the sandbox.
fn close_inherited() {
    // SAFETY: this is the first thing the program does: nothing owns a descriptor above the standard ones yet.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
}

fn read_launch() -> Result<Launch> {
    let mut text = Vec::new();
    std::io::stdin().read_to_end(&mut text).step("read the launch file")?;
    let parsed: LaunchFile =
        serde_json::from_slice(&text).map_err(std::io::Error::from).step("parse the launch file")?;
    Ok(parsed.launch)
}

fn directory(path: &Path) -> Result<OwnedFd> {
    open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).step_at("open", path)
}

/// The socket `asb` talks to. Bound by a relative name: the full path may be longer than an address can be.
fn listen(directory: &Path) -> Result<OwnedFd> {
    rustix::process::chdir(directory).step_at("enter", directory)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .step("make a socket")?;
    let address = SocketAddrUnix::new(file::SOCKET).step("name the socket")?;
    let mask = rustix::process::umask(Mode::from_raw_mode(0o177));
    let bound = rustix::net::bind(&socket, &address);
    rustix::process::umask(mask);
    bound.step_at("bind", directory.join(file::SOCKET))?;
    rustix::net::listen(&socket, 128).step("listen")?;
    Ok(socket)
}

/// All of them new, but for a network namespace that was given.
fn enter_namespaces(network: bool) -> Result<()> {
    let mut new = UnshareFlags::NEWNS
        | UnshareFlags::NEWPID
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWUTS
        | UnshareFlags::NEWCGROUP;
    if network {
        move_into_link_name_space(rustix::stdio::stderr(), Some(LinkNameSpaceType::Network))
            .step("enter the network namespace")?;
    } else {
        new |= UnshareFlags::NEWNET;
    }
    // SAFETY: the descriptor table is not among what is unshared.
    unsafe { rustix::thread::unshare_unsafe(new) }.step("make namespaces")?;
    rustix::mount::mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)
        .step_at("make mounts private", "/")
}

fn identity_of(pid: Pid) -> Result<Identity> {
    let pid = pid.as_raw_nonzero().get();
    let path = PathBuf::from(format!("/proc/{pid}/stat"));
    let stat = std::fs::read_to_string(&path).step_at("read", &path)?;
    // The second field is the command's name in parentheses, and may itself hold any character.
    let start_time =
        stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(19)?.parse().ok());
    let start_time = start_time.ok_or(Errno::INVAL).step_at("parse", &path)?;
    let path = "/proc/sys/kernel/random/boot_id";
    let boot_id = std::fs::read_to_string(path).step_at("read", path)?.trim().to_owned();
    let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_nanos() as u64);
    Ok(Identity { pid, start_time, boot_id, at })
}

/// Not synced: after a crash of the machine there is no supervisor for it to tell of.
fn record(state: &OwnedFd, identity: &Identity) -> Result<()> {
    let text = serde_json::to_vec(identity).map_err(std::io::Error::from).step("encode")?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let opened =
        openat(state, file::STARTING, flags, Mode::from_raw_mode(0o600)).step_at("create", file::STARTING)?;
    std::fs::File::from(opened).write_all(&text).step_at("write", file::STARTING)
}

fn read_report(pipe: OwnedFd) -> Result<Report> {
    let mut text = Vec::new();
    std::fs::File::from(pipe).read_to_end(&mut text).step("wait for the supervisor")?;
    if text.is_empty() {
        // It died before it could say why; most often the memory limit is smaller than the supervisor itself.
        let step = "wait for the supervisor".to_owned();
        return Ok(Report::Failed(Failure { step, path: None, errno: libc::ECONNRESET, program: None }));
    }
    serde_json::from_slice(&text).map_err(std::io::Error::from).step("parse the supervisor's report")
}
