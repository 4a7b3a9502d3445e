//! Listens, gives each connection to the routes, and stops in order.

use std::net::{IpAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use crate::cli::{Options, Port};
use crate::routes::State;
use crate::{connection, detach, log, process};

const MAX_CONNECTIONS: usize = 512;
/// How long processes have between SIGTERM and SIGKILL when the daemon stops.
const PATIENCE: Duration = Duration::from_secs(2);
const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n\
    Content-Length: 85\r\nConnection: close\r\n\r\n\
    {\"code\":\"RESOURCE_EXHAUSTED\",\"message\":\"too many connections; close some and retry\"}\n";

/// Serves until SIGTERM or SIGINT.
pub fn run(options: &Options) -> Result<(), String> {
    if options.detach {
        detach::close_inherited();
    }
    let listeners = bind(options.host, &options.ports)?;
    let state = Arc::new(State::new(options)?);
    if options.detach {
        detach::detach().map_err(|error| format!("cannot go to the background: {error}"))?;
    }
    if options.announce {
        detach::announce().map_err(|error| format!("cannot announce that it listens: {error}"))?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(8)
        .thread_keep_alive(Duration::from_secs(1))
        .thread_stack_size(256 * 1024)
        .build()
        .map_err(|error| format!("cannot start the event loop: {error}"))?;
    let served = runtime.block_on(serve(listeners, state, options));
    // A thread may be stuck in a file system; the daemon ends without it.
    runtime.shutdown_background();
    served.map_err(|error| format!("cannot serve: {error}"))
}

/// Bound before detaching, so that the caller can connect as soon as the foreground process has ended.
fn bind(host: IpAddr, ports: &[Port]) -> Result<Vec<StdListener>, String> {
    let mut listeners = Vec::new();
    let mut problems = Vec::new();
    for port in ports {
        let bound = StdListener::bind((host, port.number))
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
        match bound {
            Ok(listener) => {
                if port.number == 0 {
                    let address =
                        listener.local_addr().map_err(|error| format!("cannot learn the port: {error}"))?;
                    println!("listening on {address}");
                }
                listeners.push(listener);
            }
            Err(error) => {
                let problem = format!("cannot listen on {host}:{} ({}): {error}", port.number, port.flag);
                if port.given {
                    return Err(problem);
                }
                problems.push(problem);
            }
        }
    }
    if listeners.is_empty() {
        return Err(if problems.is_empty() {
            "no port to listen on".to_owned()
        } else {
            problems.join("; ")
        });
    }
    for problem in problems {
        log::warn(problem);
    }
    Ok(listeners)
}

async fn serve(listeners: Vec<StdListener>, state: Arc<State>, options: &Options) -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    process::adopt_orphans();
    tokio::spawn(process::watch_children()?);
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    for listener in listeners {
        let listener = TcpListener::from_std(listener)?;
        tokio::spawn(accept(listener, state.clone(), connections.clone(), options.idle_timeout));
    }
    stop_signal(&mut terminate, &mut interrupt).await;
    tokio::select! {
        () = stop(&state, &connections, options.shutdown_timeout) => {}
        () = stop_signal(&mut terminate, &mut interrupt) => {} // a second signal: at once
    }
    state.table.end_all(Duration::ZERO).await;
    Ok(())
}

async fn stop_signal(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Health turns bad, processes end, and then the last answers go out. Requests are taken all the time, so that a probe
/// can see the bad health; processes are no longer started.
async fn stop(state: &State, connections: &Semaphore, budget: Duration) {
    let deadline = Instant::now() + budget;
    state.table.close();
    state.table.end_all(PATIENCE.min(budget)).await;
    state.stopping.send_replace(true);
    let _ = timeout_at(deadline, connections.acquire_many(MAX_CONNECTIONS as u32)).await;
}

async fn accept(listener: TcpListener, state: Arc<State>, connections: Arc<Semaphore>, idle: Duration) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, most likely: accepting again at once would only burn the CPU.
                log::warn(format_args!("cannot accept a connection: {error}"));
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Ok(permit) = connections.clone().try_acquire_owned() else {
            refuse(stream).await;
            continue;
        };
        let state = state.clone();
        tokio::spawn(async move {
            connection::serve(stream, state, idle).await;
            drop(permit);
        });
    }
}

/// Fits into the socket's buffer, so it is written without waiting.
async fn refuse(mut stream: TcpStream) {
    let _ = stream.write_all(TOO_MANY).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_has_the_length_that_it_announces() {
        let text = std::str::from_utf8(TOO_MANY).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{}", body.len());
    }

    #[test]
    fn a_default_port_that_is_taken_leaves_the_others() {
        let taken = StdListener::bind("127.0.0.1:0").unwrap();
        let host: IpAddr = [127, 0, 0, 1].into();
        let port = |number, given| Port { flag: "--rest-port", number, given };
        let number = taken.local_addr().unwrap().port();
        assert_eq!(bind(host, &[port(number, false), port(0, false)]).unwrap().len(), 1);
        assert!(bind(host, &[port(number, false)]).is_err(), "none could be bound");
        assert!(
            bind(host, &[port(0, false), port(number, true)])
                .is_err_and(|problem| problem.contains("--rest-port"))
        );
    }
}
