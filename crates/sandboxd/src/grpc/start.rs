//! `process.v1.Start`: a process whose output is streamed as it comes.
//!
//! Nothing is buffered beyond a few chunks: a client that does not read stops us from reading, and then the process waits
//! on its full pipe.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustix::process::Signal;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status};

use super::call::{Events, deadline};
use super::messages::process::{Event, ExitEvent, InitEvent, Pty, StartRequest, StartResponse};
use super::process::{exit_code, spawn, timed_out};
use crate::process::{Exit, Input, Port, Slot, Spawned};
use crate::routes::State;

/// Messages between the process and the connection.
const QUEUE: usize = 4;
/// How long processes in the background may hold the streams open after the process has ended.
pub const DRAIN: Duration = Duration::from_secs(5);

type Sender = mpsc::Sender<Result<StartResponse, Status>>;

pub async fn start(state: Arc<State>, call: Request<StartRequest>) -> Result<Events<StartResponse>, Status> {
    let limit = deadline(&call)?;
    let request = call.into_inner();
    let config = request.config.unwrap_or_default();
    let command = config.command.clone();
    let (mut spawned, slot) = spawn(&state, config, input(request.pty))?;
    let entry = state.table.add(&mut spawned, command, None);
    let (sender, receiver) = mpsc::channel(QUEUE);
    let init = message(Event::Init(InitEvent { process_id: entry.id }));
    sender.try_send(Ok(init)).expect("the queue is new and has room");
    tokio::spawn(async move {
        let deadline = limit.map(|limit| Instant::now() + limit);
        follow(&state, spawned, slot, sender, deadline).await;
        state.table.remove(entry.id);
    });
    Ok(Box::pin(ReceiverStream::new(receiver)))
}

pub fn input(pty: Option<Pty>) -> Input {
    pty.map_or(Input::Pipe, |pty| Input::Terminal { cols: pty.cols as u16, rows: pty.rows as u16 })
}

async fn follow(state: &State, spawned: Spawned, _slot: Slot, sender: Sender, deadline: Option<Instant>) {
    let (sender_of_exit, chunk) = (&sender, state.chunk);
    let work = async {
        let send = |event| async { sender_of_exit.send(Ok(message(event))).await.is_ok() };
        let exit = pump(&spawned, chunk, &send).await;
        // The end of the process comes after all of its output.
        send(Event::Exit(ExitEvent { exit_code: exit_code(exit) })).await;
    };
    let late = async {
        match deadline {
            Some(deadline) => sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = work => {}
        () = sender.closed() => spawned.child.signal(Signal::KILL),
        () = late => {
            spawned.child.signal(Signal::KILL);
            let _ = sender.send(Err(timed_out())).await;
        }
    }
    spawned.child.finish();
}

/// Passes on everything that the process writes; returns when it has ended and its output with it.
pub async fn pump<F: Future<Output = bool>>(
    spawned: &Spawned,
    chunk: usize,
    send: impl Fn(Event) -> F,
) -> Exit {
    let (ended, exit) = watch::channel(None);
    let wait = async {
        let exit = spawned.child.exited().await;
        ended.send_replace(Some(Instant::now() + DRAIN));
        exit
    };
    let stdout = pass_on(&spawned.stdout, chunk, exit.clone(), |bytes| send(Event::Stdout(bytes)));
    let stderr = async {
        if let Some(port) = &spawned.stderr {
            pass_on(port, chunk, exit.clone(), |bytes| send(Event::Stderr(bytes))).await;
        }
    };
    let (exit, (), ()) = tokio::join!(wait, stdout, stderr);
    exit
}

/// What the process itself has written is passed on however slow the receiver is. Only then the limit of time counts.
async fn pass_on<F: Future<Output = bool>>(
    port: &Port,
    chunk: usize,
    mut ended: watch::Receiver<Option<Instant>>,
    send: impl Fn(Bytes) -> F,
) {
    let mut buffer = vec![0; chunk];
    // Once the process has ended: how much of what is in the pipe it may have written.
    let mut owed: Option<u64> = None;
    loop {
        let deadline = *ended.borrow_and_update();
        if deadline.is_some() && owed.is_none() {
            owed = Some(port.waiting());
        }
        let read = match (deadline, owed) {
            (Some(deadline), Some(0)) => match timeout_at(deadline, port.read(&mut buffer)).await {
                // A process in the background could write for ever.
                Ok(read) if Instant::now() < deadline => read,
                _ => return,
            },
            (Some(_), _) => port.read(&mut buffer).await,
            (None, _) => tokio::select! {
                biased;
                read = port.read(&mut buffer) => read,
                _ = ended.changed() => continue,
            },
        };
        let Ok(read @ 1..) = read else { return };
        if let Some(owed) = &mut owed {
            *owed = owed.saturating_sub(read as u64);
        }
        if !send(Bytes::copy_from_slice(&buffer[..read])).await {
            return;
        }
    }
}

fn message(event: Event) -> StartResponse {
    StartResponse { event: Some(event) }
}
