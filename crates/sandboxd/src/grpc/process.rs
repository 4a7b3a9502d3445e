//! `process.v1`: commands that run to their end, and calls on processes that run already.

use std::sync::Arc;

use rustix::process::Signal as UnixSignal;
use tonic::{Request, Response, Status};

use super::call::deadline;
use super::messages::process::{
    Empty, ExecuteRequest, ExecuteResponse, Payload, ProcessConfig, ResizeTtyRequest, SendSignalRequest,
    Signal, WriteStdinRequest,
};
use crate::paths::{self, Place, Root};
use crate::process::{
    self, Captured, Cwd, Entry, Exit, Failure, Input, InputError, Limits, MAX_PROCESSES, Refused, Slot,
    Spawned, Wanted,
};
use crate::routes::State;

/// Both streams of one answer: clients refuse messages above 4 MiB.
const MAX_OUTPUT: usize = (4 << 20) - (64 << 10);

/// Dropping the future, when the client cancels or goes away, kills the process and its group.
pub async fn execute(
    state: Arc<State>,
    call: Request<ExecuteRequest>,
) -> Result<Response<ExecuteResponse>, Status> {
    let limit = deadline(&call)?;
    let (spawned, _slot) = spawn(&state, call.into_inner().config.unwrap_or_default(), Input::Null)?;
    let limits = Limits { time: limit, bytes: MAX_OUTPUT, cost: |_| 1 };
    let mut captured = process::run(spawned, limits).await;
    let exit = captured.exit.ok_or_else(timed_out)?;
    let held = std::mem::take(&mut captured.held);
    let (stdout, stderr) = fit(captured);
    let mut answer = Response::new(ExecuteResponse { exit_code: exit_code(exit), stdout, stderr });
    answer.extensions_mut().insert(Arc::new(held));
    Ok(answer)
}

pub async fn write_stdin(state: Arc<State>, call: Request<WriteStdinRequest>) -> Result<Empty, Status> {
    let request = call.into_inner();
    let entry = find(&state, request.process_id)?;
    let done = match request.payload {
        None => Ok(()),
        Some(Payload::Input(input)) if input.is_empty() => Ok(()),
        Some(Payload::Input(input)) => entry.write(&input).await,
        Some(Payload::Eof(_)) => entry.end_input().await,
    };
    done.map(|()| Empty {}).map_err(|error| match error {
        InputError::TooManyWriters => {
            Status::resource_exhausted("too many writes wait until the process reads its input")
        }
        InputError::Closed => Status::internal("the input of the process is closed"),
        InputError::Ended => Status::internal("the process has ended"),
        InputError::Io(error) => Status::internal(format!("cannot write to the process: {error}")),
    })
}

pub async fn send_signal(state: Arc<State>, call: Request<SendSignalRequest>) -> Result<Empty, Status> {
    let request = call.into_inner();
    let entry = find(&state, request.process_id)?;
    let signal = match Signal::try_from(request.signal) {
        Ok(Signal::Sigint) => UnixSignal::INT,
        Ok(Signal::Sigkill) => UnixSignal::KILL,
        Ok(Signal::Sigterm) => UnixSignal::TERM,
        Ok(Signal::Unspecified) | Err(_) => {
            return Err(Status::invalid_argument("signal must be SIGINT, SIGTERM or SIGKILL"));
        }
    };
    entry.child.signal(signal);
    Ok(Empty {})
}

pub async fn resize_tty(state: Arc<State>, call: Request<ResizeTtyRequest>) -> Result<Empty, Status> {
    let request = call.into_inner();
    let entry = find(&state, request.process_id)?;
    let (cols, rows) = (request.cols as u16, request.rows as u16);
    match entry.resize(cols, rows) {
        Some(Ok(())) => Ok(Empty {}),
        Some(Err(error)) => Err(Status::failed_precondition(format!("cannot resize the terminal: {error}"))),
        None => Err(Status::failed_precondition("the process has no terminal or has ended")),
    }
}

fn find(state: &State, id: i32) -> Result<Arc<Entry>, Status> {
    state.table.find(id).ok_or_else(|| Status::not_found(format!("no process with id {id}")))
}

/// Starts what a request asks for, in a working directory below the root.
pub fn spawn(state: &State, config: ProcessConfig, input: Input) -> Result<(Spawned, Slot), Status> {
    if config.command.is_empty() {
        return Err(Status::invalid_argument("command is required"));
    }
    let root = state.root();
    let cwd = match config.cwd.as_deref().filter(|cwd| !cwd.is_empty()) {
        None => Cwd::Path(&root),
        Some(cwd) => Cwd::Held(directory(&root, cwd)?),
    };
    let wanted = Wanted { command: &config.command, environment: &config.env_vars, cwd, input };
    state.table.spawn(wanted).map_err(refused)
}

fn directory(root: &std::path::Path, cwd: &str) -> Result<std::os::fd::OwnedFd, Status> {
    let place = Root::open(root)
        .map_err(paths::Error::Io)
        .and_then(|root| root.resolve(&paths::clean(cwd.as_bytes(), &root)?));
    match place {
        Ok(Place::Directory(directory)) => Ok(directory),
        Ok(Place::Missing { .. }) => Err(Status::not_found(format!("cwd {cwd:?} does not exist"))),
        Ok(Place::File { .. }) => Err(Status::not_found(format!("cwd {cwd:?} is not a directory"))),
        Err(paths::Error::Escape) => Err(Status::permission_denied("cwd is outside the sandbox root")),
        Err(paths::Error::Nul) => Err(Status::invalid_argument("cwd contains a NUL byte")),
        Err(paths::Error::Io(error)) => Err(Status::internal(format!("cannot resolve cwd {cwd:?}: {error}"))),
    }
}

fn refused(refused: Refused) -> Status {
    use std::io::ErrorKind;
    match refused {
        Refused::TooMany => {
            Status::resource_exhausted(format!("{MAX_PROCESSES} processes are running already"))
        }
        Refused::Closing => Status::unavailable("sandboxd is shutting down"),
        Refused::Failed(Failure::Empty) => Status::invalid_argument("command is required"),
        Refused::Failed(Failure::Invalid(problem)) => Status::invalid_argument(problem),
        Refused::Failed(Failure::Terminal(error)) => {
            Status::internal(format!("cannot allocate a terminal: {error}"))
        }
        Refused::Failed(Failure::NoDirectory(error)) => {
            Status::not_found(format!("cannot enter the root directory: {error}"))
        }
        Refused::Failed(Failure::Start(error)) => {
            let message = format!("cannot start the command: {error}");
            match error.kind() {
                ErrorKind::NotFound | ErrorKind::NotADirectory => Status::not_found(message),
                ErrorKind::PermissionDenied => Status::permission_denied(message),
                ErrorKind::ArgumentListTooLong => Status::invalid_argument(message),
                _ => Status::internal(message),
            }
        }
    }
}

pub fn timed_out() -> Status {
    Status::deadline_exceeded("the deadline passed; the process was killed")
}

/// -1 for every signal, as clients of this API expect.
pub fn exit_code(exit: Exit) -> i32 {
    match exit {
        Exit::Code(code) => code,
        Exit::Signal(_) => -1,
    }
}

/// Cuts both streams so that they fit into one message, and marks in stderr what was cut.
fn fit(captured: Captured) -> (Vec<u8>, Vec<u8>) {
    let Captured { mut stdout, mut stderr, mut stdout_cut, mut stderr_cut, .. } = captured;
    // Errors are usually short and worth more: they get up to half when both are long.
    let stderr_room = MAX_OUTPUT.saturating_sub(stdout.len()).max(MAX_OUTPUT / 2);
    stderr_cut |= stderr.len() > stderr_room;
    stderr.truncate(stderr_room);
    let stdout_room = MAX_OUTPUT - stderr.len();
    stdout_cut |= stdout.len() > stdout_room;
    stdout.truncate(stdout_room);
    let kept = stderr.len();
    for (name, cut, kept) in [("stdout", stdout_cut, stdout.len()), ("stderr", stderr_cut, kept)] {
        if cut {
            let separator = if stderr.is_empty() || stderr.ends_with(b"\n") { "" } else { "\n" };
            let marker = format!(
                "{separator}[sandboxd: {name} was cut after {kept} bytes; use Start to stream all of it]\n"
            );
            stderr.extend_from_slice(marker.as_bytes());
        }
    }
    (stdout, stderr)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fitted(stdout: usize, stderr: usize) -> (usize, usize, String) {
        let captured = Captured {
            stdout: vec![b'o'; stdout],
            stderr: vec![b'e'; stderr],
            stdout_cut: false,
            stderr_cut: false,
            exit: None,
            held: process::Held::default(),
        };
        let (out, err) = fit(captured);
        let text = err.iter().copied().skip_while(|&byte| byte == b'e').collect();
        (
            out.len(),
            err.iter().filter(|&&byte| byte == b'e').count().min(stderr),
            String::from_utf8(text).unwrap(),
        )
    }

    #[test]
    fn output_that_fits_is_left_alone() {
        assert_eq!(fitted(10, 20), (10, 20, String::new()));
        assert_eq!(fitted(MAX_OUTPUT, 0), (MAX_OUTPUT, 0, String::new()));
    }

    #[test]
    fn an_answer_stays_below_the_limit_of_clients_and_names_what_was_cut() {
        let (out, _, text) = fitted(MAX_OUTPUT, MAX_OUTPUT);
        assert_eq!(out, MAX_OUTPUT / 2);
        assert!(text.contains("stdout was cut after") && text.contains("stderr was cut after"), "{text}");
        let (out, _, text) = fitted(MAX_OUTPUT, 1000);
        assert_eq!(out, MAX_OUTPUT - 1000);
        assert!(text.contains("[sandboxd: stdout was cut after") && !text.contains("stderr was"), "{text}");
    }
}
