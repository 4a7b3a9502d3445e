//! The second stage: process 1 inside. Finishes the root, gives up its rights, starts the main process and stays.

use std::io::Write;
use std::os::fd::OwnedFd;

use asb_supervisor::launch::{ExitRecord, Failure, Launch, Main, Report, file};
use asb_supervisor::wire::Failed;
use rustix::fs::{Mode, OFlags, open, openat};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;

use crate::dev::Devices;
use crate::log::{Log, Stream};
use crate::seccomp::Filter;
use crate::serve::{End, Server};
use crate::spawn::{self, Ground, Outcome, Program, Stdio};
use crate::step::{Result, Step};
use crate::{loopback, rights, root};

/// Descriptors from the first stage that are kept for life.
pub struct Kept {
    pub namespace: OwnedFd,
    /// The directory of log and exit record.
    pub run: OwnedFd,
    pub listener: OwnedFd,
}

/// Process 1, from beginning to end.
pub fn run(launch: Launch, kept: Kept, go: OwnedFd, report: OwnedFd) {
    // Nothing is let go before the launcher has recorded this process.
    if !matches!(rustix::io::read(&go, &mut [0u8; 1]), Ok(1)) {
        return;
    }
    drop(go);
    let (server, log, main) = match begin(launch, kept) {
        Ok(begun) => begun,
        Err(failure) => return answer(report, &Report::Failed(failure)),
    };
    answer(report, &Report::Started);
    serve(server, log, main);
}

fn answer(report: OwnedFd, what: &Report) {
    if let Ok(text) = serde_json::to_vec(what) {
        // The launcher may be gone; nothing follows from that.
        let _ = std::fs::File::from(report).write_all(&text);
    }
}

fn begin(launch: Launch, kept: Kept) -> Result<(Server, Log, Option<Pid>)> {
    let null =
        open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).step_at("open", "/dev/null")?;
    detach_from_launcher(&null)?;
    rustix::system::sethostname(launch.hostname.as_bytes()).step("set the host name")?;
    loopback::bring_up(launch.address.filter(|_| !launch.network))?;
    let floor = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
    // The network belongs to the machine's user namespace, where nobody inside may bind a low port otherwise.
    std::fs::write(floor, "0").step_at("open low ports in", floor)?;
    drop(null);
    let Devices { null, terminals } = root::enter(&launch, &kept.namespace)?;
    detach_from_launcher(&null)?;
    rights::give_up(launch.supervisor_id)?;

    let signals = crate::serve::signals().step("watch for children")?;
    let log = Log::new(kept.run, launch.log_bytes);
    let ground = Ground { namespace: kept.namespace, terminals, null, filter: Filter::new() };
    let mut server = Server::new(ground, kept.listener, signals);
    let main = if launch.main.argv.is_empty() { None } else { Some(start_main(&mut server, launch.main)?) };
    Ok((server, log, main))
}

/// Standard streams of the first stage: the launch file, which is locked while held, and the pipe to `asb`.
fn detach_from_launcher(null: &OwnedFd) -> Result<()> {
    rustix::stdio::dup2_stdin(null).step("close standard input")?;
    rustix::stdio::dup2_stdout(null).step("close standard output")?;
    rustix::stdio::dup2_stderr(null).step("close standard error")
}

fn start_main(server: &mut Server, main: Main) -> Result<Pid> {
    let pipe = || pipe_with(PipeFlags::CLOEXEC).step("make a pipe");
    let ((stdout, stdout_end), (stderr, stderr_end)) = (pipe()?, pipe()?);
    for end in [&stdout, &stderr] {
        rustix::io::ioctl_fionbio(end, true).step("prepare a pipe")?;
    }
    let Main { argv, env, cwd, uid, gid, groups } = main;
    let program = Program { argv, env, cwd, uid, gid, groups };
    let stdio = Stdio::Files([None, Some(stdout_end), Some(stderr_end)]);
    let mut spawning = spawn::start(&server.ground, &program, stdio).map_err(program_failure)?;
    rustix::io::ioctl_fionbio(&spawning.status, false).step("wait for the main process")?;
    match spawning.outcome(&program.argv, &program.cwd) {
        Outcome::Failed(failed) => Err(program_failure(failed)),
        Outcome::Executed(_) => {
            server.streams = vec![Stream::new(stdout, "stdout"), Stream::new(stderr, "stderr")];
            Ok(spawning.pid)
        }
        Outcome::Pending => Err(Errno::INTR).step("wait for the main process"),
    }
}

fn program_failure(failed: Failed) -> Failure {
    Failure { step: failed.message, path: None, errno: failed.errno, program: Some(failed.kind) }
}

/// Serves until the main process has ended, then ends everything else, and records how it went.
fn serve(mut server: Server, mut log: Log, main: Option<Pid>) {
    let End { status, at } = server.run(&mut log, main);
    server.end_everything(&mut log);
    // Without a record the sandbox counts as killed, which is the best that is known then.
    let _ = record(log.directory(), &ExitRecord { status, at });
}

/// Durably, and whole or not at all: this is asked for as long as the sandbox is not deleted.
fn record(run: &OwnedFd, exit: &ExitRecord) -> std::io::Result<()> {
    const TEMPORARY: &str = "exit.tmp";
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let mut opened = std::fs::File::from(openat(run, TEMPORARY, flags, Mode::from_raw_mode(0o600))?);
    opened.write_all(&serde_json::to_vec(exit)?)?;
    opened.sync_data()?;
    Ok(rustix::fs::renameat(run, TEMPORARY, run, file::EXIT)?)
}
