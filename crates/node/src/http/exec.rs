//! `pods/exec`: a program beside the main process.

use asb_runtime::{Exec, Sandbox};
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{self, Path, RawQuery, State};
use axum::response::Response;

use super::patience::Patience;
use super::remote::{self, Client, DEFAULT_SIZE, Output, Streams, carry, not_started, told};
use super::{Failure, flag};
use crate::node::Node;

pub async fn exec(
    State(node): State<Node>,
    Path((namespace, pod)): Path<(String, String)>,
    RawQuery(query): RawQuery,
    patience: Patience,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
    request: extract::Request,
) -> Result<Response, Failure> {
    let wanted = Request::parse(query.as_deref().unwrap_or_default())?;
    let sandbox = patience.sandbox(&node, &namespace, &pod, wanted.container.as_deref()).await?;
    remote::answer(upgrade, request, wanted.streams, move |client| run(client, sandbox, wanted))
}

#[derive(Debug, Default, PartialEq)]
struct Request {
    container: Option<String>,
    command: Vec<String>,
    streams: Streams,
}

impl Request {
    fn parse(query: &str) -> Result<Self, Failure> {
        let mut request = Self::default();
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            let yes = || {
                let wrong = || Failure::bad_request(format!("{key}: {value:?} is neither true nor false"));
                flag::parse(&value).ok_or_else(wrong)
            };
            match &*key {
                "command" => request.command.push(value.into_owned()),
                "container" => request.container = Some(value.into_owned()),
                "stdin" => request.streams.stdin = yes()?,
                "stdout" => request.streams.stdout = yes()?,
                "stderr" => request.streams.stderr = yes()?,
                "tty" => request.streams.tty = yes()?,
                _ => {}
            }
        }
        match request.command.is_empty() {
            true => Err(Failure::bad_request("you must specify at least one command for the container")),
            false => Ok(request),
        }
    }
}

async fn run(client: Client, sandbox: Sandbox, request: Request) {
    let Streams { stdin, tty, .. } = request.streams;
    let exec = Exec {
        argv: request.command,
        env: if tty { vec![("TERM".to_owned(), "xterm".to_owned())] } else { Vec::new() },
        cwd: None,
        stdin,
        terminal: tty.then_some(DEFAULT_SIZE),
    };
    let Client { input, output } = client;
    let status = match sandbox.exec(&exec).await {
        Ok(session) => told(carry(session, input, &output).await),
        Err(error) => not_started(&error),
    };
    let _ = output.send(Output::Status(status)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_read_from_the_query() {
        let request = Request::parse(
            "command=sh&command=-c&command=echo%20hi&stdin=true&tty=1&stdout=True&container=main",
        );
        let request = request.unwrap_or_else(|failure| panic!("{}", failure.message));
        assert_eq!(request.command, ["sh", "-c", "echo hi"]);
        assert_eq!(request.streams, Streams { stdin: true, stdout: true, stderr: false, tty: true });
        assert!(Request::parse("stdin=true").is_err(), "a command is required");
    }
}
