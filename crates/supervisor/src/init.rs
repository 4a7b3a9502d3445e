//! The second stage: the supervisor. Prepares what it can, waits for what is to run, finishes the root, gives up its
//! rights, starts the main process and stays.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};

use asb_supervisor::launch::{ExitRecord, Failure, Image, LAST_WORDS, Launch, Main, Slot, file};
use asb_supervisor::wire::Failed;
use rustix::fs::{Mode, OFlags, open, openat};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::dev::Devices;
use crate::identity::Unmapped;
use crate::log::Log;
use crate::main_process::MainProcess;
use crate::order::Order;
use crate::own::Own;
use crate::process_one::{Joined, ProcessOne};
use crate::rights::Bounds;
use crate::root::{Root, Standing};
use crate::seccomp::Filter;
use crate::serve::{End, Server, Way};
use crate::skeleton::Skeleton;
use crate::spawn::{Ground, Outcome, Prepared, Program, Stdio};
use crate::step::{Result, Step};
use crate::streams::MainStreams;
use crate::{beside, loopback, oci, rights, root};

/// Descriptors from the first stage that are kept for life.
pub struct Kept {
    pub namespace: UserNamespace,
    /// The cgroup namespace that the slot's was made in: only for a runtime that makes its own.
    pub outer: OwnedFd,
    /// The directory of log and exit record.
    pub run: OwnedFd,
    pub listener: OwnedFd,
}

/// The user namespace of the programs inside.
pub enum UserNamespace {
    Mapped(OwnedFd),
    Unmapped(Unmapped),
}

impl UserNamespace {
    pub fn mapped(&self) -> Option<&OwnedFd> {
        match self {
            Self::Mapped(namespace) => Some(namespace),
            Self::Unmapped(_) => None,
        }
    }

    /// With the one id as the main process's, if it is not mapped yet.
    pub fn mapped_for(self, main: &Main) -> Result<OwnedFd> {
        match self {
            Self::Mapped(namespace) => Ok(namespace),
            Self::Unmapped(unmapped) => unmapped.map_one(main.uid, main.gid),
        }
    }
}

/// What is made before it is known what will run.
struct Ahead {
    process_one: ProcessOne,
    root: PreparedRoot,
    filter: Filter,
}

enum PreparedRoot {
    Of(Image, Standing),
    Any(Skeleton),
}

/// The supervisor, from beginning to end.
pub fn run(slot: &Slot, kept: Kept, orders: OwnedFd, report: OwnedFd) {
    let prepared = prepare(slot, &kept);
    // Nothing is let go before the launcher has recorded this process.
    let order = match Order::receive(orders.as_fd()) {
        Ok(Some(order)) => order,
        Ok(None) => return,
        Err(failure) => return answer(report, Some(&failure)),
    };
    drop(orders);
    let (server, log, main, last_words) =
        match prepared.and_then(|prepared| begin(slot, kept, prepared, order)) {
            Ok(begun) => begun,
            Err(failure) => return answer(report, Some(&failure)),
        };
    answer(report, None);
    serve(server, log, main, last_words);
}

/// Tells the launcher what went wrong, if anything did.
fn answer(report: OwnedFd, failure: Option<&Failure>) {
    if let Ok(text) = serde_json::to_vec(&failure) {
        // The launcher may be gone; nothing follows from that.
        let _ = File::from(report).write_all(&text);
    }
}

fn prepare(slot: &Slot, kept: &Kept) -> Result<Ahead> {
    let null =
        open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).step_at("open", "/dev/null")?;
    detach_from_launcher(&null)?;
    // The log is made now, for the same reason as the files of the root.
    Log::make(&kept.run, slot.supervisor_id).step_at("create", file::LOG)?;
    let process_one = ProcessOne::make(slot.powers)?;
    let skeleton = Skeleton::new(slot, false)?;
    let root = match &slot.image {
        None => PreparedRoot::Any(skeleton),
        Some(image) => {
            let standing = root::build(slot, image, kept.namespace.mapped(), skeleton)?;
            PreparedRoot::Of(image.clone(), standing)
        }
    };
    Ok(Ahead { process_one, root, filter: Filter::new() })
}

impl PreparedRoot {
    fn build(self, slot: &Slot, image: &Image, namespace: &OwnedFd) -> Result<Standing> {
        match self {
            Self::Any(skeleton) => root::build(slot, image, Some(namespace), skeleton),
            Self::Of(prepared, standing) if prepared == *image => Ok(standing),
            Self::Of(..) => Err(Errno::INVAL).step("use a slot that was made for another image"),
        }
    }
}

/// What the supervisor has when the main process runs.
pub type Begun = (Server, Log, MainProcess, Option<OwnedFd>);

fn begin(slot: &Slot, mut kept: Kept, mut prepared: Ahead, order: Order) -> Result<Begun> {
    let (mut launch, mut given, launch_file) = order.read()?;
    let network = enter_network(&launch, given.network.take())?;
    let shared = beside::join(&launch, &mut given)?;
    let joined = Joined { network, ipc: given.ipc.take() };
    let other = beside::other_ids(slot, &launch)?.map(|(slot, namespace)| {
        kept.namespace = namespace;
        slot
    });
    let slot = other.as_ref().unwrap_or(slot);
    if launch.privileged {
        rights::leave_keyring().step("leave the keyring of the machine")?;
    }
    if let Some(oci) = launch.oci.take() {
        prepared.process_one.dismiss()?;
        return oci::begin(slot, launch, oci, kept, shared);
    }
    if other.is_some() || launch.privileged {
        // What was made ahead belongs to the slot's own ids, and hides what a privileged one may see.
        prepared.root = PreparedRoot::Any(Skeleton::new(slot, launch.privileged)?);
    }
    if launch.privileged {
        prepared.filter = Filter::privileged();
    }
    let shares_ipc = shared.is_some();
    drop(kept.outer);
    let namespace = kept.namespace.mapped_for(&launch.main)?;
    rustix::system::sethostname(launch.hostname.as_bytes()).step("set the host name")?;
    let standing = prepared.root.build(slot, &launch.image, &namespace)?;
    let Root { devices, last_words } = root::enter(standing, slot, &launch, &namespace, shared)?;
    let Devices { null, terminals } = devices;
    detach_from_launcher(&null)?;
    let own = launch.privileged.then(|| Own::make(&namespace, shares_ipc)).transpose()?;
    rights::give_up(slot, launch.privileged)?;

    let signals = crate::serve::signals().step("watch for children")?;
    let log = Log::new(kept.run, launch.log_bytes);
    let bounds = Bounds::of(&launch, slot.powers);
    let ground = Ground { namespace, own, terminals, null, filter: prepared.filter, bounds };
    let (main, streams) = start_main(prepared.process_one, launch_file, &joined, &ground, launch.main)?;
    Ok((Server::new(Way::Inside(ground), kept.listener, signals, streams), log, main, last_words))
}

/// The network namespace that was given, or else a new one.
fn enter_network(launch: &Launch, given: Option<OwnedFd>) -> Result<OwnedFd> {
    let network = match launch.network {
        true => {
            let given = given.ok_or(Errno::BADF).step("find the network namespace")?;
            move_into_link_name_space(given.as_fd(), Some(LinkNameSpaceType::Network))
                .step("enter the network namespace")?;
            given
        }
        false => {
            // SAFETY: the descriptor table is not among what is unshared.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
                .step("make a network namespace")?;
            let own = "/proc/self/ns/net";
            open(own, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).step_at("open", own)?
        }
    };
    loopback::bring_up(launch.address.filter(|_| !launch.network))?;
    let floor = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
    // The network belongs to the machine's user namespace, where nobody inside may bind a low port otherwise.
    std::fs::write(floor, "0").step_at("open low ports in", floor)?;
    Ok(network)
}

/// Standard streams of the first stage lead to `asb`.
pub fn detach_from_launcher(null: &OwnedFd) -> Result<()> {
    rustix::stdio::dup2_stdin(null).step("close standard input")?;
    rustix::stdio::dup2_stdout(null).step("close standard output")?;
    rustix::stdio::dup2_stderr(null).step("close standard error")
}

fn start_main(
    process_one: ProcessOne,
    launch_file: File,
    joined: &Joined,
    ground: &Ground,
    main: Main,
) -> Result<(MainProcess, MainStreams)> {
    let idle = main.argv.is_empty();
    let (stdio, mut kept) = match idle {
        true => (Stdio::Files([const { None }; 3]), MainStreams::default()),
        false => MainStreams::make(main.stdin, main.terminal)?,
    };
    let program = Program::from(main);
    if !idle {
        Prepared::new(&program).map_err(program_failure)?;
    }
    let mut spawning = process_one.start(launch_file, joined, ground, stdio)?;
    rustix::io::ioctl_fionbio(&spawning.status, false).step("wait for the main process")?;
    match spawning.outcome(&program.argv, &program.cwd) {
        Outcome::Failed(failed) => Err(program_failure(failed)),
        Outcome::Executed(terminal) => {
            if let Some(terminal) = terminal {
                kept.take_terminal(terminal)?;
            }
            Ok((MainProcess::new(spawning.pid, idle), kept))
        }
        Outcome::Pending => Err(Errno::INTR).step("wait for the main process"),
    }
}

pub fn program_failure(failed: Failed) -> Failure {
    Failure { step: failed.message, path: None, errno: failed.errno, program: Some(failed.kind) }
}

/// Serves until the main process has ended, then ends everything else, and records how it went.
fn serve(mut server: Server, mut log: Log, main: MainProcess, last_words: Option<OwnedFd>) {
    let End { status, at } = server.run(&mut log, main);
    server.end_everything(&mut log);
    // Without a record the sandbox counts as killed, which is the best that is known then.
    let last_words = last_words.and_then(read_last_words);
    let _ = record(log.directory(), &ExitRecord { status, at, last_words });
}

/// The end of the file: that is where a program says what was wrong. Nobody is left who could write to it.
fn read_last_words(file: OwnedFd) -> Option<String> {
    let mut file = File::from(file);
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LAST_WORDS))).ok()?;
    let mut text = Vec::new();
    file.take(LAST_WORDS).read_to_end(&mut text).ok()?;
    (!text.is_empty()).then(|| String::from_utf8_lossy(&text).into_owned())
}

/// Durably, and whole or not at all: this is asked for as long as the sandbox is not deleted.
fn record(run: &OwnedFd, exit: &ExitRecord) -> std::io::Result<()> {
    const TEMPORARY: &str = "exit.tmp";
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let mut opened = File::from(openat(run, TEMPORARY, flags, Mode::from_raw_mode(0o600))?);
    opened.write_all(&serde_json::to_vec(exit)?)?;
    opened.sync_data()?;
    Ok(rustix::fs::renameat(run, TEMPORARY, run, file::EXIT)?)
}
