//! Who is attached to the main process's output: a pipe that gets a copy of it as it comes.
//!
//! A pipe that is full holds the process up, as a terminal does that nobody looks at; one that is closed is forgotten.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// What a pipe takes as a whole whenever it takes anything (`PIPE_BUF`).
pub const PIECE: usize = 4096;

pub struct Tap(pub OwnedFd);

impl Tap {
    pub fn new(pipe: OwnedFd) -> std::io::Result<Self> {
        rustix::io::ioctl_fionbio(&pipe, true)?;
        Ok(Self(pipe))
    }

    /// Gives it at most [`PIECE`] bytes; whether it is still of use.
    pub fn give(&self, bytes: &[u8]) -> bool {
        bytes.is_empty() || rustix::io::write(&self.0, bytes).is_ok_and(|written| written == bytes.len())
    }

    /// Whether a piece can be given to it, or it is closed and can be told so.
    pub fn is_ready(&self) -> bool {
        self.poll(0).is_some_and(|flags| !flags.is_empty())
    }

    pub fn is_closed(&self) -> bool {
        self.poll(0).is_some_and(|flags| flags.contains(PollFlags::ERR))
    }

    /// Waits until a piece can be given to it, but not long: for the last words of a process.
    pub fn is_ready_soon(&self) -> bool {
        self.poll(1).is_some_and(|flags| !flags.is_empty())
    }

    fn poll(&self, seconds: i64) -> Option<PollFlags> {
        let mut fds = [PollFd::new(&self.0, PollFlags::OUT)];
        let until = Timespec { tv_sec: seconds, tv_nsec: 0 };
        poll(&mut fds, Some(&until)).ok().map(|_| fds[0].revents())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::{PipeFlags, pipe_with};

    #[test]
    fn full_pipe_is_waited_for_and_closed_one_is_forgotten() {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
        let tap = Tap::new(write).expect("a tap");
        while tap.is_ready() {
            assert!(tap.give(&[0; PIECE]), "what is ready takes a whole piece");
        }
        rustix::io::read(&read, &mut [0; PIECE]).expect("there is something");
        assert!(tap.is_ready() && !tap.is_closed());
        drop(read);
        assert!(tap.is_closed() && tap.is_ready() && !tap.give(b"x"));
    }
}
