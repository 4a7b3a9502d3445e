//! What a parked slot waits for: the launch file, and what it is to share with others, by descriptor.

use std::fs::File;
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use asb_supervisor::launch::{Launch, LaunchFile, ORDER_FDS};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::peer::receive;
use crate::step::{Result, Step};

pub struct Order {
    /// Locked by whoever opened it, for as long as any process has it open.
    launch: OwnedFd,
    others: Vec<OwnedFd>,
}

/// What came with the launch file, as that says.
pub struct Given {
    pub network: Option<OwnedFd>,
    pub ipc: Option<OwnedFd>,
    pub shm: Option<OwnedFd>,
    pub memory: Option<OwnedFd>,
}

impl Order {
    /// Waits for one; `None` when there will not be any.
    pub fn receive(socket: BorrowedFd<'_>) -> Result<Option<Self>> {
        loop {
            let (length, fds) = match receive(socket, &mut [0; 1], RecvFlags::empty()) {
                Err(Errno::INTR) => continue,
                received => received.step("wait for what is to run")?,
            };
            if length == 0 {
                return Ok(None);
            }
            let mut fds = fds.into_iter();
            let launch = fds.next().ok_or(Errno::BADMSG).step("receive the launch file")?;
            return Ok(Some(Self { launch, others: fds.collect() }));
        }
    }

    pub fn send(&self, socket: BorrowedFd<'_>) -> Result<()> {
        let fds: Vec<_> = std::iter::once(&self.launch).chain(&self.others).map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(ORDER_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&fds));
        sendmsg(socket, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)
            .step("tell the supervisor what is to run")
            .map(drop)
    }

    /// Reads the launch file; answers with it as well, for process 1.
    pub fn read(self) -> Result<(Launch, Given, File)> {
        let (mut text, mut file) = (Vec::new(), File::from(self.launch));
        file.read_to_end(&mut text).step("read the launch file")?;
        let parsed: LaunchFile =
            serde_json::from_slice(&text).map_err(std::io::Error::from).step("parse the launch file")?;
        let launch = parsed.launch;
        let (mut others, beside) = (self.others.into_iter(), launch.beside.is_some());
        let mut next = |expected: bool| if expected { others.next() } else { None };
        let given = Given {
            network: next(launch.network),
            ipc: next(beside),
            shm: next(beside),
            memory: next(beside && !launch.memory_dirs.is_empty()),
        };
        Ok((launch, given, file))
    }
}
