//! The first stage, as root of the machine: cgroups, namespaces, a record of who the supervisor is, and waiting for
//! what is to run.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use asb_supervisor::launch::{ExtraIds, Failure, Identity, Report, Slot, file};
use asb_supervisor::powers::Powers;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags, open, openat};
use rustix::io::Errno;
use rustix::mount::MountPropagationFlags;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;
use rustix::thread::UnshareFlags;

use crate::fork::{Fork, exit, fork};
use crate::identity::Unmapped;
use crate::init::{self, Kept, UserNamespace};
use crate::order::Order;
use crate::peer::{packet_buffer, receive};
use crate::step::{Result, Step};

/// Makes a slot, waits for what is to run in it, starts the supervisor, reports on standard output.
pub fn run() -> ExitCode {
    let report = match launch() {
        Ok(Some(report)) => report,
        Ok(None) => return ExitCode::SUCCESS,
        Err(failure) => Report::Failed(failure),
    };
    // Nobody may be listening any more; the sandbox does not care.
    let _ = serde_json::to_vec(&report).map(|mut line| {
        line.push(b'\n');
        std::io::stdout().write_all(&line).and_then(|()| std::io::stdout().flush())
    });
    match report {
        Report::Started(_) => ExitCode::SUCCESS,
        Report::Failed(_) => ExitCode::FAILURE,
    }
}

/// `None` when nothing is to run here after all.
fn launch() -> Result<Option<Report>> {
    close_inherited();
    let Some((slot, state)) = read_slot()? else { return Ok(None) };
    // Fails only when this process already leads a session.
    let _ = rustix::process::setsid();
    rustix::process::umask(Mode::empty());
    for path in &slot.cgroups {
        // `0` is the writer itself. On cgroup v1 a lone thread that moves itself waits for no grace period.
        std::fs::write(path, "0").step_at("join cgroup", path)?;
    }
    let unmapped = Unmapped::make(slot.supervisor_id)?;
    let namespace = match slot.powers {
        Powers::Machine => UserNamespace::Mapped(unmapped.map(slot.first_id, &ExtraIds::default())?),
        Powers::Range => UserNamespace::Mapped(unmapped.map_same()?),
        // Which user it is to be is known when it is known what will run.
        Powers::One => UserNamespace::Unmapped(unmapped),
    };
    let run = openat(&state, file::RUN, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .step_at("open", file::RUN)?;
    let listener = listen(&run)?;
    rustix::process::fchdir(&state).step("enter the slot's directory")?;
    let outer = "/proc/self/ns/cgroup";
    let outer = open(outer, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).step_at("open", outer)?;
    enter_namespaces()?;

    let (orders, give_orders) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .step("make a socket")?;
    let (report, say_report) = pipe_with(PipeFlags::CLOEXEC).step("make a pipe")?;
    let init = match fork().step("fork")? {
        Fork::Parent(init) => init,
        Fork::Child => {
            drop((give_orders, report, state));
            init::run(&slot, Kept { namespace, outer, run, listener }, orders, say_report);
            exit(0)
        }
    };
    drop((orders, say_report, namespace, outer, run, listener));
    // Recorded first, then let go: a supervisor that no later `asb` could find never starts anything.
    let parked = identity_of(init)?;
    record(&state, &parked)?;
    wait_while_parked(&report)?;
    let Some(order) = Order::receive(rustix::stdio::stdin())? else { return Ok(None) };
    let identity = Identity { at: now(), ..parked };
    record(&state, &identity)?;
    // Kept to the end: the launch file is locked for as long as it is open here.
    order.send(give_orders.as_fd())?;
    match read_report(report)? {
        Some(failure) => Ok(Some(Report::Failed(failure))),
        None => {
            rustix::fs::renameat(&state, file::STARTING, &state, file::STARTED)
                .step_at("rename", file::STARTING)?;
            Ok(Some(Report::Started(identity)))
        }
    }
}

/// Whatever else `asb` or the shell that ran it had open is not for the sandbox.
pub fn close_inherited() {
    // SAFETY: callers own no descriptor above the standard ones, or use none of them again.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
}

/// The slot and its directory.
fn read_slot() -> Result<Option<(Slot, OwnedFd)>> {
    let mut packet = packet_buffer();
    let (length, fds) =
        receive(rustix::stdio::stdin(), &mut packet, RecvFlags::empty()).step("read the slot")?;
    if length == 0 {
        return Ok(None);
    }
    let slot = serde_json::from_slice(&packet[..length]).map_err(std::io::Error::from);
    let state = fds.into_iter().next().ok_or(Errno::BADF).step("receive the slot's directory")?;
    Ok(Some((slot.step("parse the slot")?, state)))
}

/// The socket `asb` talks to. Bound by a relative name: the full path may be longer than an address can be.
fn listen(run: &OwnedFd) -> Result<OwnedFd> {
    rustix::process::fchdir(run).step_at("enter", file::RUN)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .step("make a socket")?;
    let address = SocketAddrUnix::new(file::SOCKET).step("name the socket")?;
    let mask = rustix::process::umask(Mode::from_raw_mode(0o177));
    let bound = rustix::net::bind(&socket, &address);
    rustix::process::umask(mask);
    bound.step_at("bind", file::SOCKET)?;
    rustix::net::listen(&socket, 128).step("listen")?;
    Ok(socket)
}

/// All that a sandbox has of its own, but for the network, which comes with what is to run.
fn enter_namespaces() -> Result<()> {
    let new = UnshareFlags::NEWNS
        | UnshareFlags::NEWPID
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWUTS
        | UnshareFlags::NEWCGROUP;
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
    Ok(Identity { pid, start_time, boot_id, at: now() })
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_nanos() as u64)
}

/// Not synced: after a crash of the machine there is no supervisor for it to tell of.
fn record(state: &OwnedFd, identity: &Identity) -> Result<()> {
    let text = serde_json::to_vec(identity).map_err(std::io::Error::from).step("encode")?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let opened =
        openat(state, file::STARTING, flags, Mode::from_raw_mode(0o600)).step_at("create", file::STARTING)?;
    std::fs::File::from(opened).write_all(&text).step_at("write", file::STARTING)
}

/// Until there is an order, or there will be none. Without its process 1 a slot is of no use: then it ends.
fn wait_while_parked(report: &OwnedFd) -> Result<()> {
    let stdin = rustix::stdio::stdin();
    let mut watched = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(report, PollFlags::IN)];
    loop {
        match poll(&mut watched, None) {
            Err(Errno::INTR) => {}
            polled => break polled.step("wait for what is to run").map(drop)?,
        }
    }
    match watched[1].revents().is_empty() {
        true => Ok(()),
        false => Err(Errno::CONNRESET).step("wait for what is to run"),
    }
}

/// Waits for the supervisor to say that the main process runs, or why it does not.
fn read_report(pipe: OwnedFd) -> Result<Option<Failure>> {
    let mut text = Vec::new();
    std::fs::File::from(pipe).read_to_end(&mut text).step("wait for the supervisor")?;
    if text.is_empty() {
        // It died before it could say why; most often the memory limit is smaller than the supervisor itself.
        let step = "wait for the supervisor".to_owned();
        return Ok(Some(Failure { step, path: None, errno: libc::ECONNRESET, program: None }));
    }
    serde_json::from_slice(&text).map_err(std::io::Error::from).step("parse the supervisor's report")
}
