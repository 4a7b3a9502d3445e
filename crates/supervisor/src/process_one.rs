//! Process 1 as the programs of a sandbox see it: the main process, or an idle process where the sandbox has none.
//!
//! ```text
//! supervisor ─ process 1 of the slot's pid namespace, which no program inside sees
//!  ├─ process 1 of the sandbox's own pid namespace: waits while the slot is parked, then executes the main program
//!  └─ exec: every other child of the supervisor is in that namespace from its first moment
//! ```
//!
//! So a sandbox works as every container does: a signal to process 1 reaches the main process if that handles it, an init
//! system finds itself to be process 1, orphans become its children, and when it ends, the kernel ends everything else. The
//! process is made ahead: `/proc` can only be mounted from within a pid namespace, and a pid namespace begins with a process.

use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use asb_supervisor::launch::{Launch, LaunchFile};
use asb_supervisor::powers::Powers;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};
use rustix::process::{DumpableBehavior, Pid, Signal, WaitOptions, set_dumpable_behavior, waitpid};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, set_no_new_privs};

use crate::container_init;
use crate::fork::{Fork, exit, fork};
use crate::own::Own;
use crate::peer::receive;
use crate::rights::{self, Bounds};
use crate::seccomp::Filter;
use crate::spawn::{self, Ground, Program, Spawning, Stdio};
use crate::step::{Result, Step};
use crate::streams;

/// Process 1 of a sandbox that does not run anything yet.
pub struct ProcessOne {
    /// Its number in the supervisor's pid namespace.
    pid: Pid,
    /// Takes the launch file and the descriptors of the main process.
    socket: OwnedFd,
    /// The supervisor's own pid namespace.
    outer: OwnedFd,
}

/// Namespaces that the supervisor has entered since process 1 was made.
pub struct Joined {
    pub network: OwnedFd,
    /// Shared with another sandbox.
    pub ipc: Option<OwnedFd>,
}

/// What process 1 needs, in the order in which it is sent; namespaces of a privileged sandbox follow.
struct Tools {
    launch: OwnedFd,
    tell: OwnedFd,
    network: OwnedFd,
    user: OwnedFd,
    streams: [OwnedFd; 3],
    null: OwnedFd,
    terminals: OwnedFd,
    /// Whatever is left: the IPC namespace if it is shared, and those of a privileged sandbox.
    others: Vec<OwnedFd>,
}

impl ProcessOne {
    /// Makes a pid namespace and its first process. All that this process forks from then on is in there.
    pub fn make(powers: Powers) -> Result<Self> {
        let outer = "/proc/self/ns/pid";
        let outer = open(outer, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).step_at("open", outer)?;
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .step("make a socket")?;
        // SAFETY: the descriptor table is not among what is unshared.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWPID) }.step("make a pid namespace")?;
        match fork().step("fork")? {
            Fork::Parent(pid) => Ok(Self { pid, socket, outer }),
            Fork::Child => wait_for_orders(theirs, powers),
        }
    }

    /// Ends it: the programs of this sandbox are not started from here.
    pub fn dismiss(self) -> Result<()> {
        rustix::process::kill_process(self.pid, Signal::KILL).step("end process 1")?;
        waitpid(Some(self.pid), WaitOptions::empty()).step("reap")?;
        move_into_link_name_space(self.outer.as_fd(), Some(LinkNameSpaceType::ProcessID))
            .step("return to the pid namespace")
    }

    /// Has it become the main process, as the launch file describes it.
    pub fn start(self, launch: File, joined: &Joined, ground: &Ground, stdio: Stdio) -> Result<Spawning> {
        const STEP: &str = "start the main process";
        let (status, tell) = Spawning::channel().step("make a socket")?;
        let files = match stdio {
            Stdio::Files(files) => files,
            Stdio::Terminal(_) => [const { None }; 3],
        };
        let mut fds = vec![launch.as_fd(), tell.as_fd(), joined.network.as_fd(), ground.namespace.as_fd()];
        fds.extend(files.iter().map(|file| file.as_ref().unwrap_or(&ground.null).as_fd()));
        fds.extend([ground.null.as_fd(), ground.terminals.as_fd()]);
        fds.extend(joined.ipc.iter().map(AsFd::as_fd));
        fds.extend(ground.own.iter().flat_map(Own::parts));
        send(&self.socket, &fds).step(STEP)?;
        Ok(Spawning::new(self.pid, status))
    }
}

/// More descriptors than this are never sent: those of [`Tools`], and five namespaces.
pub const MOST_FDS: usize = 9 + 5;

fn send(socket: &OwnedFd, fds: &[BorrowedFd<'_>]) -> std::result::Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(fds));
    // An empty packet would mean that the other end is closed.
    sendmsg(socket, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL).map(drop)
}

/// The life of process 1: it never returns.
fn wait_for_orders(socket: OwnedFd, powers: Powers) -> ! {
    // Nothing inside may look at it, and it keeps nothing of the machine's open.
    if set_dumpable_behavior(DumpableBehavior::NotDumpable).is_err() {
        exit(1)
    }
    spawn::close_all_but(&socket);
    loop {
        match receive(socket.as_fd(), &mut [0], RecvFlags::empty()) {
            Err(Errno::INTR) => {}
            Ok((length, fds)) if length > 0 => become_main(fds, powers),
            _ => exit(1),
        }
    }
}

fn become_main(fds: Vec<OwnedFd>, powers: Powers) -> ! {
    let Some(tools) = Tools::of(fds) else { exit(1) };
    let Tools { launch, tell, network, user, streams: [stdin, stdout, stderr], null, terminals, others } =
        tools;
    let at = |stage| move |errno| (stage, errno);
    let prepared = read(launch).map_err(at(spawn::Stage::Launch)).and_then(|launch| {
        let mut others = others.into_iter();
        let joined = Joined { network, ipc: if launch.beside.is_some() { others.next() } else { None } };
        follow(&joined, launch.privileged).map_err(at(spawn::Stage::Namespaces))?;
        Ok((launch, others))
    });
    let failed = match prepared {
        Err(failed) => failed,
        Ok((launch, others)) => {
            let ground = Ground {
                namespace: user,
                own: launch.privileged.then(|| Own::of(others.collect())),
                terminals,
                null,
                filter: if launch.privileged { Filter::privileged() } else { Filter::new() },
                bounds: Bounds::of(&launch, powers),
            };
            let stdio = match launch.main.terminal {
                true => Stdio::Terminal(streams::SIZE),
                false => Stdio::Files([Some(stdin), Some(stdout), Some(stderr)]),
            };
            match launch.main.argv.is_empty() {
                true => {
                    // Where the user of the image may not be, nothing has to be either.
                    let program = Program { cwd: "/".to_owned(), ..Program::from(launch.main) };
                    pause(&ground, &program, &tell)
                }
                false => spawn::execute_main(&ground, &Program::from(launch.main), stdio, &tell),
            }
        }
    };
    spawn::tell_failure(&tell, failed);
    exit(127)
}

/// Does what the supervisor has done to itself since this process was made.
fn follow(joined: &Joined, privileged: bool) -> std::result::Result<(), Errno> {
    move_into_link_name_space(joined.network.as_fd(), Some(LinkNameSpaceType::Network))?;
    if let Some(ipc) = &joined.ipc {
        move_into_link_name_space(ipc.as_fd(), Some(LinkNameSpaceType::InterProcessCommunication))?;
    }
    // The root was exchanged for this process too; its directory is still that of the slot, outside.
    rustix::process::chdir("/")?;
    match privileged {
        true => rights::leave_keyring(),
        false => set_no_new_privs(true),
    }
}

impl Tools {
    fn of(fds: Vec<OwnedFd>) -> Option<Self> {
        let mut fds = fds.into_iter();
        Some(Self {
            launch: fds.next()?,
            tell: fds.next()?,
            network: fds.next()?,
            user: fds.next()?,
            streams: [fds.next()?, fds.next()?, fds.next()?],
            null: fds.next()?,
            terminals: fds.next()?,
            others: fds.collect(),
        })
    }
}

/// The file is read where it is: the supervisor has read it to its end already.
fn read(file: OwnedFd) -> std::result::Result<Launch, Errno> {
    let file = File::from(file);
    let text = file.metadata().and_then(|metadata| {
        let mut text = vec![0; metadata.len() as usize];
        file.read_exact_at(&mut text, 0).map(|()| text)
    });
    let text = text.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    serde_json::from_slice::<LaunchFile>(&text).map(|file| file.launch).map_err(|_| Errno::BADMSG)
}

/// Idles in place of a main process: reaps, and ends on a signal to stop, with every right of a program inside and no more. Only
/// returns when something failed.
fn pause(ground: &Ground, program: &Program, tell: &OwnedFd) -> (spawn::Stage, Errno) {
    let streams = Stdio::Files([const { None }; 3]);
    if let Err(failed) = spawn::become_program(ground, program, streams, tell) {
        return failed;
    }
    // A signal that comes once the supervisor reports the start must not be lost.
    if let Err(error) = container_init::block_signals() {
        return (spawn::Stage::Rights, Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    // As `execve` would: the supervisor takes the closed socket for a start.
    crate::launcher::close_inherited();
    let _ = rustix::thread::set_name(c"pause");
    container_init::idle()
}
