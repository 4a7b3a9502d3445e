//! How `asb` talks to a running supervisor.
//!
//! One connection carries one request. Messages are JSON, one per packet of a `SOCK_SEQPACKET` socket, with file
//! descriptors beside them:
//!
//! ```text
//! asb                                    supervisor
//!  │ ◄──────────────── hello{generation}  │  always first
//!  │ exec ──────────────────────────────► │  + stdin, stdout, stderr as asked
//!  │ ◄──────────── started{pid} | failed  │  + the terminal's master side when one was asked for
//!  │ signal ────────────────────────────► │  any number of times
//!  │ ◄──────────────── exited{code|signal}│
//!
//!  │ attach ────────────────────────────► │  + stdout, stderr as asked; since generation 2
//!  │ ◄──────────── started{pid} | failed  │  + the terminal's master side, or the other end of standard input
//!  │ ◄──────────────── exited{code|signal}│
//!
//!  │ dial{port} ────────────────────────► │
//!  │ ◄─────────── connected + fd | failed │
//!
//!  │ signal_main{signal} | stop ────────► │
//!  │ ◄───────────────────── done | failed │
//! ```
//!
//! A request too large for a packet travels in a memfd: `payload{length}` with that descriptor first.
//!
//! # Versions
//!
//! A supervisor stays at the [`GENERATION`] it was built with for as long as its sandbox lives; `asb` adapts.
//! Fields are only ever added, and must be optional; fields a side does not know are ignored; a request a supervisor
//! does not know is answered by `failed` with kind `unsupported`. A generation is counted up when a request is added.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

/// What this build of the supervisor speaks.
pub const GENERATION: u32 = 2;
/// The largest packet either side sends.
pub const MAX_PACKET: usize = 32 * 1024;
/// The largest request, travelling in a memfd.
pub const MAX_PAYLOAD: usize = 1024 * 1024 + 128 * 1024;
/// The most descriptors in one packet.
pub const MAX_FDS: usize = 4;

/// From `asb`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Request {
    Exec(Exec),
    /// Join the streams of the main process from now on. Since generation 2.
    Attach(Attach),
    /// To the program this connection has started or attached to.
    Signal {
        signal: i32,
    },
    SignalMain {
        signal: i32,
    },
    /// Connect to a TCP port on the loopback interface inside.
    Dial {
        port: u16,
        /// Where to try when nothing listens there.
        #[serde(default)]
        address: Option<Ipv4Addr>,
    },
    /// Kill everything and end.
    Stop,
    /// The request proper is in the first descriptor.
    Payload {
        length: usize,
    },
    /// Something of a later generation.
    #[serde(other)]
    Unknown,
}

/// A program to run inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub cwd: String,
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    #[serde(default)]
    pub groups: Vec<u32>,
    /// With a terminal no descriptors are sent, and one comes back.
    #[serde(default)]
    pub terminal: Option<Size>,
    /// The first descriptor is standard input; otherwise that is empty.
    #[serde(default)]
    pub stdin: bool,
    /// The next two descriptors are standard output and standard error; otherwise both are discarded.
    #[serde(default)]
    pub output: bool,
}

/// Which streams of the main process. Where it has a terminal, that comes back whatever is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    /// The other end of standard input comes back.
    #[serde(default)]
    pub stdin: bool,
    /// The first descriptor gets what is printed; a pipe. While it is full, nothing more is read from the process.
    #[serde(default)]
    pub stdout: bool,
    /// The next descriptor, for standard error. With a terminal there is none, and it is closed at once.
    #[serde(default)]
    pub stderr: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    pub columns: u16,
    pub rows: u16,
}

/// From the supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Reply {
    Hello {
        generation: u32,
    },
    /// The program has been executed; `pid` is its number in the supervisor's pid namespace, which is not the one that programs
    /// inside see. Under gVisor it is that of its kernel.
    Started {
        pid: i32,
    },
    Exited {
        status: Status,
    },
    Connected,
    Done,
    Failed(Failed),
    /// Something of a later generation.
    #[serde(other)]
    Unknown,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Code(i32),
    Signal(i32),
}

/// Why a request was not carried out. That a program ran and exited 1 is not a failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    pub kind: FailureKind,
    /// 0 when the kernel was not asked.
    pub errno: i32,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// No such program, on the path or at the place named.
    NotFound,
    /// It is there and cannot be executed.
    NotExecutable,
    /// The working directory cannot be entered.
    Directory,
    /// The sandbox has no process or memory left for it.
    Limit,
    /// Nothing listens on the port.
    Refused,
    /// The program or sandbox has already ended.
    Ended,
    /// Not a request of this generation.
    Unsupported,
    TooLarge,
    Malformed,
    /// Too many connections.
    Busy,
    Internal,
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse<T: serde::de::DeserializeOwned>(text: &str) -> T {
        serde_json::from_str(text).expect(text)
    }

    #[test]
    fn request_of_a_later_generation_is_recognised_as_unknown() {
        assert_eq!(parse::<Request>(r#"{"type":"teleport","to":"mars"}"#), Request::Unknown);
        assert_eq!(parse::<Reply>(r#"{"type":"teleported"}"#), Reply::Unknown);
        assert_eq!(parse::<FailureKind>(r#""too_far""#), FailureKind::Unknown);
    }

    #[test]
    fn fields_of_a_later_generation_are_ignored() {
        let dial = Request::Dial { port: 80, address: None };
        assert_eq!(parse::<Request>(r#"{"type":"dial","port":80,"tls":true}"#), dial);
    }

    #[test]
    fn first_generation_exec_keeps_its_shape() {
        let text = r#"{"type":"exec","argv":["id"],"env":[["A","b"]],"cwd":"/","uid":0,"gid":0}"#;
        let Request::Exec(exec) = parse(text) else { panic!("not an exec") };
        assert_eq!((exec.stdin, exec.output, exec.terminal), (false, false, None));
    }
}
