//! What can go wrong with a sandbox, by the step that failed.

use std::io;
use std::path::PathBuf;

use asb_supervisor::wire::FailureKind;

use crate::{Invalid, SandboxId, driver};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to {step} {}", path.display())]
    Open {
        step: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the sandbox cannot be started as described")]
    Invalid(#[from] Invalid),
    #[error("the runtime {0} is not available on this machine; `asb doctor` tells how to get it")]
    Driver(driver::Name),
    #[error("sandbox {0} is frozen; thaw it first")]
    Frozen(SandboxId),
    #[error("sandbox {0} exists already")]
    Exists(SandboxId),
    #[error("failed to start sandbox {sandbox}: {step}{}", at(path))]
    Start {
        sandbox: SandboxId,
        step: String,
        path: Option<PathBuf>,
        #[source]
        source: io::Error,
    },
    /// The sandbox works; the program could not be started. Not the same as a program that ran and exited 1.
    #[error("failed to start a program in sandbox {sandbox}: {message}")]
    Program { sandbox: SandboxId, kind: FailureKind, message: String, errno: i32 },
    #[error("sandbox {0} has ended")]
    Ended(SandboxId),
    #[error("nothing listens on port {port} in sandbox {sandbox}")]
    Refused { sandbox: SandboxId, port: u16 },
    #[error("failed to start sandboxd in sandbox {sandbox}: {problem}")]
    Sandboxd { sandbox: SandboxId, problem: String },
    #[error("the supervisor of sandbox {sandbox} answered {kind:?}: {message}")]
    Supervisor { sandbox: SandboxId, kind: FailureKind, message: String },
    #[error("failed to talk to the supervisor of sandbox {sandbox}")]
    Talk {
        sandbox: SandboxId,
        #[source]
        source: io::Error,
    },
    #[error("failed to {step} of sandbox {sandbox}{}", at(path))]
    State {
        sandbox: SandboxId,
        step: &'static str,
        path: Option<PathBuf>,
        #[source]
        source: io::Error,
    },
    /// Everything else of the sandbox is gone; call again when the causes are.
    #[error("failed to remove all of sandbox {sandbox}: {}", problems.join("; "))]
    Delete { sandbox: SandboxId, problems: Vec<String> },
}

fn at(path: &Option<PathBuf>) -> String {
    path.as_ref().map(|path| format!(" {}", path.display())).unwrap_or_default()
}
