//! One connection to the router, kept open as an SDK does: commands by HTTP, run by `sandboxd` inside.

use std::time::Instant;

use anyhow::Context;
use http::{Request, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::engine::{Engine, NAMESPACE};
use crate::peer::COMMAND;

pub struct Router {
    sender: SendRequest<Full<Bytes>>,
    token: String,
}

impl Router {
    pub async fn connect(engine: &Engine) -> anyhow::Result<Self> {
        let token = std::fs::read_to_string(engine.data_dir().join("router.token"))?;
        let stream = TcpStream::connect(engine.router()).await.context("failed to reach the router")?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self { sender, token: token.trim().to_owned() })
    }

    /// Runs the command in a sandbox; answers with when its result came.
    pub async fn run(&mut self, sandbox: &str) -> anyhow::Result<Instant> {
        let request = Request::post("/execute")
            .header(header::HOST, "router")
            .header(header::AUTHORIZATION, format!("Bearer {}", self.token))
            .header(header::CONTENT_TYPE, "application/json")
            .header("X-Sandbox-ID", sandbox)
            .header("X-Sandbox-Namespace", NAMESPACE)
            .body(Full::from(json!({ "command": COMMAND.join(" ") }).to_string()))?;
        self.sender.ready().await?;
        let answer = self.sender.send_request(request).await?;
        let body = answer.into_body().collect().await?.to_bytes();
        let came = Instant::now();
        let answer: Value = serde_json::from_slice(&body).with_context(|| format!("it answered {body:?}"))?;
        anyhow::ensure!(answer["stdout"] == "hi\n" && answer["exit_code"] == 0, "it answered {answer}");
        Ok(came)
    }
}
