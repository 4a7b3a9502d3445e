//! `pods/attach` over WebSocket: what the main process prints from now on, a line at a time, until it ends.
//!
//! The main process has no standard input, so there is none to attach to.

use asb_runtime::Sandbox;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{WebSocket, WebSocketUpgrade};
use axum::extract::{Path, Query, State};
use axum::response::Response;
use futures::{SinkExt, StreamExt};
use serde::Deserialize;
use tokio::sync::mpsc;

use super::exec::{PROTOCOLS, STDERR, STDOUT, finish, frame, success};
use super::{Failure, flag, log, sandbox};
use crate::node::Node;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Options {
    container: Option<String>,
    #[serde(deserialize_with = "flag::field")]
    stdin: bool,
    #[serde(deserialize_with = "flag::field")]
    stdout: bool,
    #[serde(deserialize_with = "flag::field")]
    stderr: bool,
}

pub async fn attach(
    State(node): State<Node>,
    Path((namespace, pod)): Path<(String, String)>,
    Query(options): Query<Options>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Failure> {
    let sandbox = sandbox(&node, &namespace, &pod, options.container.as_deref()).await?;
    if options.stdin {
        return Err(Failure::bad_request(
            "stdin: the main process of a sandbox has no input to attach to; attach without it, or use exec",
        ));
    }
    if !options.stdout && !options.stderr {
        return Err(Failure::bad_request("stdout, stderr: ask for at least one of them"));
    }
    let upgrade = upgrade.map_err(|_| {
        Failure::bad_request("attach needs a WebSocket upgrade with v5.channel.k8s.io or v4.channel.k8s.io")
    })?;
    Ok(upgrade.protocols(PROTOCOLS).on_upgrade(move |socket| serve(socket, sandbox, options)))
}

async fn serve(socket: WebSocket, sandbox: Sandbox, wanted: Options) {
    let (mut sink, mut stream) = socket.split();
    let (sender, mut lines) = mpsc::channel(16);
    log::spawn(sandbox, log::Options::from_now_on(), sender);
    // What the client says is of no interest; that it is gone, is.
    let mut gone = std::pin::pin!(async { while let Some(Ok(_)) = stream.next().await {} });
    loop {
        let line = tokio::select! {
            line = lines.recv() => line,
            () = &mut gone => return,
        };
        let message = match line {
            Some(line) if line.is_error && wanted.stderr => frame(STDERR, &line.bytes),
            Some(line) if !line.is_error && wanted.stdout => frame(STDOUT, &line.bytes),
            Some(_) => continue,
            None => break,
        };
        if sink.send(message).await.is_err() {
            return;
        }
    }
    finish(&mut sink, &success()).await;
}
