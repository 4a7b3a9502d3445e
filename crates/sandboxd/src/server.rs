//! Listens, and gives each connection to the routes.

use std::convert::Infallible;
use std::net::{Ipv4Addr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;

use crate::cli::Options;
use crate::detach;
use crate::routes::Routes;

/// More connections wait in the kernel's queue until one ends.
const MAX_CONNECTIONS: usize = 256;
/// Also how long an idle keep-alive connection lives, so it is longer than a router keeps one.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_HEADER_BYTES: usize = 64 * 1024;

/// Serves until SIGTERM or SIGINT. Commands that still run then are killed.
pub fn run(options: &Options) -> Result<(), String> {
    if options.detach {
        detach::close_inherited();
    }
    let listener = bind(options.port)?;
    if options.detach {
        detach::detach().map_err(|error| format!("cannot go to the background: {error}"))?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(8)
        .thread_keep_alive(Duration::from_secs(1))
        .thread_stack_size(256 * 1024)
        .build()
        .map_err(|error| format!("cannot start the event loop: {error}"))?;
    runtime.block_on(serve(listener)).map_err(|error| format!("cannot serve: {error}"))
}

/// Bound before detaching, so that whoever started us can connect as soon as the foreground process has ended.
fn bind(port: u16) -> Result<StdListener, String> {
    let listener = StdListener::bind((Ipv4Addr::UNSPECIFIED, port))
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .map_err(|error| format!("cannot listen on 0.0.0.0:{port}: {error}"))?;
    if port == 0 {
        let address = listener.local_addr().map_err(|error| format!("cannot learn the port: {error}"))?;
        println!("listening on {address}");
    }
    Ok(listener)
}

async fn serve(listener: StdListener) -> std::io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        () = accept(listener) => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

async fn accept(listener: TcpListener) {
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let routes = Arc::new(Routes::default());
    loop {
        let permit = connections.clone().acquire_owned().await.expect("the semaphore is never closed");
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, most likely: accepting again at once would only burn the CPU.
                eprintln!("warning: cannot accept a connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        // Answers are small and written at once: Nagle's algorithm would only delay them.
        let _ = stream.set_nodelay(true);
        let routes = routes.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let routes = routes.clone();
                async move { Ok::<_, Infallible>(routes.answer(request).await) }
            });
            // An error here is the client's: it went away or did not speak HTTP. Nobody is left to tell.
            let _ = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_READ_TIMEOUT)
                .max_buf_size(MAX_HEADER_BYTES)
                .serve_connection(TokioIo::new(stream), service)
                .await;
            drop(permit);
        });
    }
}
