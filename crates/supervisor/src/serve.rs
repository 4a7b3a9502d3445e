//! The supervisor's life: one loop over children, output and connections, in which nothing is waited for but `poll`.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use asb_supervisor::wire::{self, FailureKind, GENERATION, Reply, Request, Status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use crate::dial;
use crate::log::Log;
use crate::main_process::MainProcess;
use crate::mount::last_errno;
use crate::oci::{Asked, Container, What};
use crate::peer::{Peer, Received, Running, Work, packet_buffer, refusal};
use crate::spawn::{self, Ground, Outcome, Program, Stdio};
use crate::streams::{Given, MainStreams};
use crate::tap::Tap;

/// More connections than this are turned away.
const PEERS: usize = 256;
/// Output copied in one turn, so that a flood leaves time for everything else.
const TURN: usize = 64 * 1024;

/// How long a kernel is given to let a container go that has ended.
const LEAVING: Duration = Duration::from_secs(5);

/// How programs get inside.
pub enum Way {
    /// From here: this process is inside.
    Inside(Ground),
    /// By another runtime, which is told to.
    Oci(Container),
}

pub struct Server {
    way: Way,
    main: MainStreams,
    listener: OwnedFd,
    signals: OwnedFd,
    peers: Vec<Peer>,
    buffer: Vec<u8>,
    packet: Vec<u8>,
    /// Ended before anybody knew them: a runtime tells of a program only when it has started.
    strangers: Vec<(Pid, Status)>,
    /// Who may connect: whoever started this sandbox.
    master: u32,
}

/// How and when the main process ended.
pub struct End {
    pub status: Status,
    pub at: u64,
}

/// What a turn of the loop looked at, in the order of its descriptors.
enum Watched {
    Signals,
    Listener,
    Stream(usize),
    /// Somebody who has to read before the main process can print more.
    Tap,
    Peer(usize),
    /// The other descriptor a peer waits for: a child on its way, a connection being made.
    Work(usize),
}

impl Server {
    pub fn new(way: Way, listener: OwnedFd, signals: OwnedFd, main: MainStreams) -> Self {
        Self {
            way,
            main,
            listener,
            signals,
            peers: Vec::new(),
            buffer: vec![0; TURN],
            packet: packet_buffer(),
            strangers: Vec::new(),
            master: 0,
        }
    }

    /// Until the main process ends, or until told to stop.
    pub fn run(&mut self, log: &mut Log, mut main: MainProcess) -> End {
        let main = &mut main;
        let mut end = None;
        loop {
            for watched in self.wait() {
                match watched {
                    Watched::Signals => {
                        drain_signals(&self.signals);
                        end = end.or(self.reap(main));
                    }
                    Watched::Listener => self.accept(),
                    Watched::Stream(index) => self.copy(index, log),
                    Watched::Tap => {}
                    Watched::Peer(index) => end = end.or(self.listen_to(index, main)),
                    Watched::Work(index) => self.progress(index),
                }
            }
            if let Some(status) = end {
                return End { status, at: now() };
            }
            self.main.output.retain(|stream| !stream.ended());
            self.peers.retain(|peer| !matches!(peer.work, Work::Over));
        }
    }

    /// Kills and reaps whatever is left, and takes its last output.
    pub fn end_everything(&mut self, log: &mut Log) {
        self.leave_kernel();
        loop {
            // SAFETY: signals every process of this pid namespace but this one; has no memory effects.
            unsafe { libc::kill(-1, libc::SIGKILL) };
            match rustix::process::wait(WaitOptions::empty()) {
                Ok(Some((pid, status))) => self.ended(pid, status_of(status)),
                Ok(None) | Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        for index in 0..self.main.output.len() {
            while !self.main.output[index].ended() && readable(&self.main.output[index].pipe) {
                self.main.output[index].taps.retain(Tap::is_ready_soon);
                self.copy(index, log);
            }
        }
    }

    /// Where others have the same kernel, it is told that this container is over. It may be gone, or not answer.
    fn leave_kernel(&mut self) {
        let Way::Oci(container) = &self.way else { return };
        let Some(leaving) = container.leave() else { return };
        let until = Instant::now() + LEAVING;
        let mut left = false;
        while !left && Instant::now() < until {
            let mut fds = [PollFd::new(&self.signals, PollFlags::IN)];
            let _ = poll(&mut fds, Some(&Timespec { tv_sec: 1, tv_nsec: 0 }));
            drain_signals(&self.signals);
            while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
                left |= pid == leaving;
                self.ended(pid, status_of(status));
            }
        }
    }

    fn wait(&self) -> Vec<Watched> {
        let mut watched = vec![Watched::Signals, Watched::Listener];
        let mut fds =
            vec![PollFd::new(&self.signals, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
        for (index, stream) in self.main.output.iter().enumerate() {
            match stream.taps.iter().find(|tap| !tap.is_ready()) {
                // Nothing is read before everybody can have it.
                Some(tap) => {
                    watched.push(Watched::Tap);
                    fds.push(PollFd::new(&tap.0, PollFlags::OUT));
                }
                None => {
                    watched.push(Watched::Stream(index));
                    fds.push(PollFd::new(&stream.pipe, PollFlags::IN));
                }
            }
        }
        for (index, peer) in self.peers.iter().enumerate() {
            watched.push(Watched::Peer(index));
            fds.push(PollFd::new(&peer.socket, PollFlags::IN));
            let work = match &peer.work {
                Work::Spawning { spawning, .. } => PollFd::new(&spawning.status, PollFlags::IN),
                Work::Dialing { socket, .. } => PollFd::new(socket, PollFlags::OUT),
                Work::Asking(Asked { what: What::Exec(Some(console)), .. }) => match console.pending() {
                    Some(socket) => PollFd::new(socket, PollFlags::IN),
                    None => continue,
                },
                _ => continue,
            };
            watched.push(Watched::Work(index));
            fds.push(work);
        }
        if poll(&mut fds, None).is_err() {
            return Vec::new();
        }
        let ready = fds.iter().map(|fd| !fd.revents().is_empty());
        watched.into_iter().zip(ready).filter_map(|(watched, ready)| ready.then_some(watched)).collect()
    }

    /// Collects ended children; answers with the main process's end when it is among them.
    fn reap(&mut self, main: &MainProcess) -> Option<Status> {
        let mut end = None;
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            let mut status = status_of(status);
            if pid == main.pid {
                status = match &self.way {
                    Way::Oci(container) => container.status_of_main(status),
                    Way::Inside(_) => main.status(status),
                };
                end = Some(status);
            }
            self.ended(pid, status);
        }
        end
    }

    /// Tells whoever started it that a program has ended.
    fn ended(&mut self, pid: Pid, status: Status) {
        let mut known = false;
        for index in 0..self.peers.len() {
            match &self.peers[index].work {
                Work::Spawning { spawning, .. } if spawning.pid == pid => self.progress(index),
                _ => {}
            }
            let peer = &mut self.peers[index];
            match &peer.work {
                // More than one when it is the main process.
                Work::Running(running) if running.pid == pid => {
                    peer.reply(&Reply::Exited { status }, None);
                    peer.work = Work::Over;
                    known = true;
                }
                Work::Asking(asked) if asked.child == pid => return self.answered(index, status),
                _ => {}
            }
        }
        let asking = self.peers.iter().any(|peer| matches!(peer.work, Work::Asking(_)));
        match asking {
            true if !known => self.strangers.push((pid, status)),
            true => {}
            false => self.strangers.clear(),
        }
    }

    /// Passes on what a runtime has come to.
    fn answered(&mut self, index: usize, status: Status) {
        let peer = &mut self.peers[index];
        let Work::Asking(mut asked) = std::mem::replace(&mut peer.work, Work::Idle) else { return };
        match asked.what {
            What::Exec(_) => match asked.started(status) {
                Ok((running, terminal)) => {
                    peer.work = Work::Running(running);
                    let pid = running.inside.unwrap_or(running.pid.as_raw_nonzero().get());
                    peer.reply(&Reply::Started { pid }, terminal.as_ref().map(AsFd::as_fd));
                    let known = self.strangers.iter().position(|(pid, _)| *pid == running.pid);
                    if let Some((pid, status)) = known.map(|at| self.strangers.swap_remove(at)) {
                        self.ended(pid, status);
                    }
                }
                Err(failed) => peer.fail(failed),
            },
            What::Dial(_) => match asked.connected(status) {
                Ok(socket) => {
                    peer.work = Work::Over;
                    peer.reply(&Reply::Connected, Some(socket.as_fd()));
                }
                Err(failed) => peer.fail(failed),
            },
            What::Signal => match asked.succeeded(status, FailureKind::Ended) {
                Ok(()) => peer.reply(&Reply::Done, None),
                Err(failed) => peer.fail(failed),
            },
        }
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(socket) = accept_with(&self.listener, flags) else { return };
        let trusted = peer_uid(&socket) == Some(self.master);
        if !trusted {
            return;
        }
        let mut peer = Peer { socket, work: Work::Idle };
        peer.reply(&Reply::Hello { generation: GENERATION }, None);
        if self.peers.len() >= PEERS {
            peer.fail(refusal(FailureKind::Busy, "too many connections to this sandbox"));
            return;
        }
        self.peers.push(peer);
    }

    fn copy(&mut self, index: usize, log: &mut Log) {
        let stream = &mut self.main.output[index];
        log.copy(stream, &mut self.buffer);
    }

    /// Takes a request; answers with an end when it was to stop.
    fn listen_to(&mut self, index: usize, main: &mut MainProcess) -> Option<Status> {
        let peer = &mut self.peers[index];
        match peer.request(&mut self.packet) {
            Ok(None) => None,
            Ok(Some(received)) => self.handle(index, received, main),
            Err(failed) => {
                if let Some(failed) = failed {
                    peer.fail(failed);
                }
                // A program goes on without the connection that started it.
                peer.work = Work::Over;
                None
            }
        }
    }

    fn handle(&mut self, index: usize, received: Received, main: &mut MainProcess) -> Option<Status> {
        let Received { request, fds } = received;
        let peer = &mut self.peers[index];
        match (request, &peer.work) {
            (Request::Exec(exec), Work::Idle) => self.exec(index, exec, fds),
            (Request::Attach(wanted), Work::Idle) => self.attach(index, wanted, fds, main),
            (Request::Dial { port, address }, Work::Idle) => match &mut self.way {
                Way::Oci(container) if container.gvisor => ask(peer, container.dial(port)),
                _ => {
                    dial::begin(peer, port, address);
                    self.progress(index);
                }
            },
            (Request::Signal { signal }, Work::Running(running)) => {
                let running = *running;
                let sent = match &mut self.way {
                    // Nobody waits for that: a connection hears of its program's end, not of signals.
                    Way::Oci(container) if container.gvisor => {
                        container.signal(running.inside, signal).map(drop)
                    }
                    Way::Inside(_) if running.pid == main.pid => main.signal(signal),
                    _ => send_signal(running.pid, signal),
                };
                if let Err(failed) = sent {
                    peer.fail(failed);
                }
            }
            (Request::Signal { .. }, Work::Spawning { .. } | Work::Asking(_)) => {
                peer.fail(refusal(FailureKind::Busy, "the program has not started yet"));
            }
            (Request::SignalMain { signal }, Work::Idle) => self.signal_main(index, signal, main),
            (Request::Stop, Work::Idle) => {
                peer.reply(&Reply::Done, None);
                return Some(main.status_when_stopped());
            }
            (Request::Unknown, _) => {
                let message = format!("a request that a supervisor of generation {GENERATION} does not know");
                peer.fail(refusal(FailureKind::Unsupported, &message));
            }
            _ => peer.fail(refusal(FailureKind::Malformed, "a request that does not fit this connection")),
        }
        None
    }

    fn exec(&mut self, index: usize, exec: wire::Exec, fds: Vec<OwnedFd>) {
        let peer = &mut self.peers[index];
        let wanted = usize::from(exec.stdin) + if exec.output { 2 } else { 0 };
        if exec.terminal.is_none() && fds.len() != wanted {
            peer.fail(refusal(FailureKind::Malformed, "not as many descriptors as streams"));
            return;
        }
        let mut fds = fds.into_iter();
        let stdin = if exec.stdin { fds.next() } else { None };
        let files = match exec.terminal {
            Some(_) => [None, None, None],
            None => [stdin, fds.next(), fds.next()],
        };
        let ground = match &mut self.way {
            Way::Inside(ground) => ground,
            Way::Oci(container) => return ask(peer, container.exec(exec, files)),
        };
        let stdio = exec.terminal.map_or(Stdio::Files(files), Stdio::Terminal);
        let wire::Exec { argv, env, cwd, uid, gid, groups, .. } = exec;
        let program = Program { argv, env, cwd, uid, gid, groups };
        match spawn::start(ground, &program, stdio) {
            Ok(spawning) => {
                peer.work = Work::Spawning { spawning, argv: program.argv, cwd: program.cwd };
            }
            Err(failed) => peer.fail(failed),
        }
    }

    /// From here on the connection is as good as the one that would have started the main process.
    fn attach(&mut self, index: usize, wanted: wire::Attach, fds: Vec<OwnedFd>, main: &MainProcess) {
        let peer = &mut self.peers[index];
        let given = match self.main.attach(wanted, fds) {
            Ok(given) => given,
            Err(failed) => return peer.fail(failed),
        };
        peer.work = Work::Running(Running { pid: main.pid, inside: None });
        let started = Reply::Started { pid: main.pid.as_raw_nonzero().get() };
        let fd = match &given {
            Given::Nothing => None,
            Given::Shared => self.main.input(),
            Given::Whole(input) => Some(input),
        };
        peer.reply(&started, fd.map(AsFd::as_fd));
    }

    /// Moves on what a connection is waiting for.
    fn progress(&mut self, index: usize) {
        let Some(peer) = self.peers.get_mut(index) else { return };
        match &mut peer.work {
            Work::Dialing { .. } => dial::finish(peer),
            Work::Asking(Asked { what: What::Exec(Some(console)), .. }) => {
                if let Err(failed) = console.progress() {
                    peer.fail(failed);
                    peer.work = Work::Over;
                }
            }
            Work::Spawning { spawning, argv, cwd } => {
                let pid = spawning.pid;
                match spawning.outcome(argv, cwd) {
                    Outcome::Pending => {}
                    Outcome::Executed(terminal) => {
                        peer.work = Work::Running(Running { pid, inside: None });
                        let started = Reply::Started { pid: pid.as_raw_nonzero().get() };
                        peer.reply(&started, terminal.as_ref().map(AsFd::as_fd));
                    }
                    Outcome::Failed(failed) => {
                        peer.work = Work::Idle;
                        peer.fail(failed);
                    }
                }
            }
            _ => {}
        }
    }

    fn signal_main(&mut self, index: usize, signal: i32, main: &mut MainProcess) {
        let peer = &mut self.peers[index];
        let sent = match &mut self.way {
            Way::Oci(container) if container.gvisor => return ask(peer, container.signal(None, signal)),
            Way::Oci(_) => send_signal(main.pid, signal),
            Way::Inside(_) => main.signal(signal),
        };
        match sent {
            Ok(()) => peer.reply(&Reply::Done, None),
            Err(failed) => peer.fail(failed),
        }
    }
}

/// Has a connection wait for a runtime.
fn ask(peer: &mut Peer, asked: Result<Asked, wire::Failed>) {
    match asked {
        Ok(asked) => peer.work = Work::Asking(asked),
        Err(failed) => peer.fail(failed),
    }
}

/// Who is at the other end. `asb` has no pid in here, so that part of its credentials is 0.
fn peer_uid(socket: &OwnedFd) -> Option<u32> {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to a plain C structure of that size.
    let result = unsafe {
        let credentials = (&raw mut credentials).cast();
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            credentials,
            &raw mut length,
        )
    };
    (result == 0).then_some(credentials.uid)
}

pub fn send_signal(pid: Pid, signal: i32) -> Result<(), wire::Failed> {
    // SAFETY: has no memory effects. The pid is that of a child not yet reaped, so it cannot be another process's.
    if unsafe { libc::kill(pid.as_raw_nonzero().get(), signal) } == 0 {
        return Ok(());
    }
    match last_errno() {
        Errno::SRCH => Err(refusal(FailureKind::Ended, "the program has ended")),
        errno => {
            Err(spawn::failed(FailureKind::Malformed, errno, &format!("could not send signal {signal}")))
        }
    }
}

fn status_of(status: WaitStatus) -> Status {
    match status.terminating_signal() {
        Some(signal) => Status::Signal(signal),
        None => Status::Code(status.exit_status().unwrap_or(0)),
    }
}

fn readable(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0)
}

/// A descriptor that is readable when a child has ended.
pub fn signals() -> std::io::Result<OwnedFd> {
    // SAFETY: the set lives through both calls; the descriptor is new and owned by nobody else.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, Signal::CHILD.as_raw());
        if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 { Err(std::io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

fn drain_signals(signals: &OwnedFd) {
    let mut buffer = [0; 128 * 4];
    while matches!(rustix::io::read(signals, &mut buffer), Ok(read) if read > 0) {}
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_nanos() as u64)
}
