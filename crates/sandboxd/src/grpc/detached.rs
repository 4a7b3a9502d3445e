//! `sandboxd.v1`: processes that go on when their caller goes away. Their recent output can be read later.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status};

use super::call::Events;
use super::messages::detached::{
    ConnectRequest, ConnectResponse, Dropped, Event, ListResponse, ProcessInfo, StartResponse,
};
use super::messages::process::{Empty, Event as Output, ExitEvent, StartRequest};
use super::process::{exit_code, spawn};
use super::start::{input, pump};
use crate::process::{Entry, Next, Ring, Slot, Source, Spawned};
use crate::routes::State;

/// Output that is kept of each process.
const RING: usize = 256 * 1024;
/// Messages between the ring and the connection of a reader.
const QUEUE: usize = 4;

pub async fn start(state: Arc<State>, call: Request<StartRequest>) -> Result<StartResponse, Status> {
    let request = call.into_inner();
    let config = request.config.unwrap_or_default();
    let command = config.command.clone();
    let (mut spawned, slot) = spawn(&state, config, input(request.pty))?;
    let entry = state.table.add(&mut spawned, command, Some(Ring::new(RING)));
    let process_id = entry.id;
    tokio::spawn(async move { follow(&entry, spawned, slot, state.chunk).await });
    Ok(StartResponse { process_id })
}

/// Reads all output, whether or not there is a reader: the process never waits for one.
async fn follow(entry: &Entry, spawned: Spawned, _slot: Slot, chunk: usize) {
    let Some(ring) = &entry.ring else { return };
    let keep = |output| {
        match output {
            Output::Stdout(bytes) => ring.push(Source::Stdout, bytes),
            Output::Stderr(bytes) => ring.push(Source::Stderr, bytes),
            Output::Init(_) | Output::Exit(_) => {}
        }
        std::future::ready(true)
    };
    let exit = pump(&spawned, chunk, keep).await;
    spawned.child.finish();
    entry.end(exit_code(exit)).await;
    ring.close();
}

pub async fn list(state: Arc<State>, _: Request<Empty>) -> Result<ListResponse, Status> {
    let info = |entry: Arc<Entry>| ProcessInfo {
        process_id: entry.id,
        command: entry.command.clone(),
        detached: entry.ring.is_some(),
        terminal: entry.has_terminal,
        started_at_unix_ms: milliseconds(entry.started),
        exit_code: entry.ended.get().map(|ended| ended.0),
        ended_at_unix_ms: entry.ended.get().map(|ended| milliseconds(ended.1)),
    };
    Ok(ListResponse { processes: state.table.list().into_iter().map(info).collect() })
}

pub async fn connect(
    state: Arc<State>,
    call: Request<ConnectRequest>,
) -> Result<Events<ConnectResponse>, Status> {
    let id = call.into_inner().process_id;
    let entry = state.table.find(id).ok_or_else(|| Status::not_found(format!("no process with id {id}")))?;
    if entry.ring.is_none() {
        return Err(Status::failed_precondition("the process belongs to the call that started it"));
    }
    let (sender, receiver) = mpsc::channel(QUEUE);
    tokio::spawn(async move {
        tokio::select! {
            _ = replay(&entry, &sender) => {}
            () = sender.closed() => {}
        }
    });
    Ok(Box::pin(ReceiverStream::new(receiver)))
}

async fn replay(entry: &Entry, sender: &mpsc::Sender<Result<ConnectResponse, Status>>) -> Option<()> {
    let mut offset = 0;
    loop {
        let event = match entry.ring.as_ref()?.next(&mut offset).await {
            Next::Chunk(Source::Stdout, bytes) => Event::Stdout(bytes),
            Next::Chunk(Source::Stderr, bytes) => Event::Stderr(bytes),
            Next::Dropped(bytes) => Event::Dropped(Dropped { bytes }),
            Next::End => Event::Exit(ExitEvent { exit_code: entry.ended.get().map_or(-1, |ended| ended.0) }),
        };
        let is_last = matches!(event, Event::Exit(_));
        sender.send(Ok(ConnectResponse { event: Some(event) })).await.ok()?;
        if is_last {
            return Some(());
        }
    }
}

fn milliseconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
