//! `pods/attach`: the streams of the main process, from now on until it ends or the client goes.

use asb_runtime::{Attach, Sandbox, Stdin};
use axum::extract::rejection::QueryRejection;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Path, Query, Request, State};
use axum::response::Response;
use serde::Deserialize;

use super::patience::Patience;
use super::remote::{self, Client, Output, Streams, carry, failure, success};
use super::{Failure, flag};
use crate::failure::with_causes;
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
    #[serde(deserialize_with = "flag::field")]
    tty: bool,
}

pub async fn attach(
    State(node): State<Node>,
    Path((namespace, pod)): Path<(String, String)>,
    query: Result<Query<Options>, QueryRejection>,
    patience: Patience,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
    request: Request,
) -> Result<Response, Failure> {
    let Query(options) = query.map_err(|error| Failure::bad_request(error.body_text()))?;
    let sandbox = patience.sandbox(&node, &namespace, &pod, options.container.as_deref()).await?;
    let Options { stdin, stdout, stderr, tty, .. } = options;
    let main = &sandbox.spec().process;
    if stdin && main.stdin == Stdin::Empty {
        return Err(Failure::bad_request(
            "stdin: the container has none to attach to; set `stdin: true` in its spec, or use exec",
        ));
    }
    if tty && !main.terminal {
        return Err(Failure::bad_request(
            "tty: the container has no terminal; set `tty: true` in its spec, or use exec",
        ));
    }
    if !stdin && !stdout && !stderr {
        return Err(Failure::bad_request("stdin, stdout, stderr: ask for at least one of them"));
    }
    let streams = Streams { stdin, stdout, stderr, tty };
    remote::answer(upgrade, request, streams, move |client| join(client, sandbox, streams))
}

async fn join(client: Client, sandbox: Sandbox, streams: Streams) {
    let Client { input, output } = client;
    let Streams { stdin, stdout, stderr, .. } = streams;
    let status = match sandbox.attach(Attach { stdin, stdout, stderr }).await {
        Ok(session) => tokio::select! {
            // How it ended is in the Pod's status, where clients look for it.
            ended = carry(session, input, &output) => ended.map_or_else(|message| failure(&message), |_| success()),
            // The main process goes on without us.
            () = output.closed() => return,
        },
        Err(error) => failure(&with_causes(&error)),
    };
    let _ = output.send(Output::Status(status)).await;
}
