//! The streams of the main process: what it is given, what stays with us, and who joins them.

use std::os::fd::OwnedFd;

use asb_supervisor::launch::Stdin;
use asb_supervisor::wire::{Attach, Failed, FailureKind, Size};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::log::Stream;
use crate::peer::refusal;
use crate::spawn::Stdio;
use crate::step::{Result, Step};
use crate::tap::Tap;

/// A terminal's size until somebody attaches and tells.
pub const SIZE: Size = Size { columns: 80, rows: 24 };

/// Our ends of the main process's streams.
#[derive(Default)]
pub struct MainStreams {
    pub output: Vec<Stream>,
    /// Where its input is written: a pipe, or its terminal.
    input: Option<OwnedFd>,
    once: bool,
    terminal: bool,
}

impl MainStreams {
    /// Makes both ends; those of a terminal are only known when the process has opened it.
    pub fn make(stdin: Stdin, terminal: bool) -> Result<(Stdio, Self)> {
        let once = stdin == Stdin::Once;
        if terminal {
            return Ok((Stdio::Terminal(SIZE), Self { once, terminal, ..Self::default() }));
        }
        let pipe = || pipe_with(PipeFlags::CLOEXEC).step("make a pipe");
        let ((stdout, stdout_end), (stderr, stderr_end)) = (pipe()?, pipe()?);
        for end in [&stdout, &stderr] {
            rustix::io::ioctl_fionbio(end, true).step("prepare a pipe")?;
        }
        let (stdin_end, input) = match stdin {
            Stdin::Empty => (None, None),
            Stdin::Open | Stdin::Once => pipe().map(|(end, input)| (Some(end), Some(input)))?,
        };
        let output = vec![Stream::new(stdout, "stdout"), Stream::new(stderr, "stderr")];
        let stdio = Stdio::Files([stdin_end, Some(stdout_end), Some(stderr_end)]);
        Ok((stdio, Self { output, input, once, terminal }))
    }

    /// What the process prints to its terminal comes from here, as one stream.
    pub fn take_terminal(&mut self, master: OwnedFd) -> Result<()> {
        let reading = rustix::io::fcntl_dupfd_cloexec(&master, 0).step("share the terminal")?;
        rustix::io::ioctl_fionbio(&reading, true).step("prepare the terminal")?;
        self.output = vec![Stream::new(reading, "stdout")];
        self.input = Some(master);
        Ok(())
    }

    /// Joins somebody; answers with the end that goes to them, and whether we keep it too.
    pub fn attach(&mut self, wanted: Attach, fds: Vec<OwnedFd>) -> std::result::Result<Given, Failed> {
        if fds.len() != usize::from(wanted.stdout) + usize::from(wanted.stderr) {
            return Err(refusal(FailureKind::Malformed, "not as many descriptors as streams"));
        }
        if wanted.stdin && self.input.is_none() {
            let message = "the main process has no standard input, or it ended with the client that had it";
            return Err(refusal(FailureKind::Refused, message));
        }
        self.output.iter_mut().for_each(|stream| stream.taps.retain(|tap| !tap.is_closed()));
        let names = [(wanted.stdout, "stdout"), (wanted.stderr, "stderr")];
        for ((_, name), fd) in names.into_iter().filter(|(wanted, _)| *wanted).zip(fds) {
            let tap = Tap::new(fd).map_err(|_| refusal(FailureKind::Malformed, "not a pipe"))?;
            if let Some(stream) = self.output.iter_mut().find(|stream| stream.name() == name) {
                stream.taps.push(tap);
            }
        }
        Ok(match &self.input {
            Some(_) if self.terminal => Given::Shared,
            Some(_) if wanted.stdin && self.once => self.input.take().map_or(Given::Nothing, Given::Whole),
            Some(_) if wanted.stdin => Given::Shared,
            _ => Given::Nothing,
        })
    }

    pub fn input(&self) -> Option<&OwnedFd> {
        self.input.as_ref()
    }
}

/// What of the input goes to somebody who attached.
pub enum Given {
    Nothing,
    /// [`MainStreams::input`], which stays ours too.
    Shared,
    /// All there is: it ends with them.
    Whole(OwnedFd),
}
