//! How a program ended, in the words that clients look for.

use asb_runtime::{Error, Exit, FailureKind};
use serde_json::{Value, json};

use crate::failure::with_causes;

pub fn success() -> Value {
    json!({"metadata": {}, "status": "Success"})
}

/// An exit code is told as such; anything else as a failure of ours.
pub fn told(ended: Result<Exit, String>) -> Value {
    match ended {
        Ok(Exit::Code(0)) => success(),
        Ok(Exit::Code(code)) => non_zero(code),
        Ok(Exit::Signal(signal)) => non_zero(128 + signal),
        Ok(Exit::OutOfMemory) => non_zero(137),
        Err(message) => failure(&message),
    }
}

fn non_zero(code: i32) -> Value {
    json!({
        "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
        "message": format!("command terminated with non-zero exit code: exit status {code}"),
        "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
    })
}

/// A program that never ran. What was wrong with it is a cause that `asb` knows; other clients have the message.
pub fn not_started(error: &Error) -> Value {
    let mut status = failure(&with_causes(error));
    let reason = match error {
        Error::Program { kind: FailureKind::NotFound, .. } => "ProgramNotFound",
        Error::Program { kind: FailureKind::NotExecutable, .. } => "ProgramNotExecutable",
        _ => return status,
    };
    if let Error::Program { message, .. } = error {
        status["details"] = json!({"causes": [{"reason": reason, "message": message}]});
    }
    status
}

pub fn failure(message: &str) -> Value {
    json!({"metadata": {}, "status": "Failure", "reason": "InternalError", "message": message, "code": 500})
}
