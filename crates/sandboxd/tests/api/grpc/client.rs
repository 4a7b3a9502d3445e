//! Just enough of a client: methods by name, messages by type.

use std::time::{Duration, Instant};

use prost::Message;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::messages::process::*;
use crate::support::Daemon;

#[derive(Clone)]
pub struct Client(tonic::client::Grpc<Channel>);

/// Runs a test on a thread of its own.
pub fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), test).await.expect("it ends") });
}

pub fn config(command: &[&str]) -> Option<ProcessConfig> {
    let command = command.iter().map(|&word| word.to_owned()).collect();
    Some(ProcessConfig { command, ..Default::default() })
}

pub fn shell(script: &str) -> Option<ProcessConfig> {
    config(&["/bin/sh", "-c", script])
}

impl Client {
    pub async fn connect(daemon: &Daemon) -> Self {
        let endpoint = Endpoint::try_from(format!("http://127.0.0.1:{}", daemon.port())).unwrap();
        Self(tonic::client::Grpc::new(endpoint.connect().await.unwrap()))
    }

    pub async fn unary<R: Message + Default + 'static>(
        &mut self,
        method: &'static str,
        request: impl Message + 'static,
    ) -> Result<R, Status> {
        self.call(method, Request::new(request)).await
    }

    pub async fn call<Q: Message + 'static, R: Message + Default + 'static>(
        &mut self,
        method: &'static str,
        request: Request<Q>,
    ) -> Result<R, Status> {
        self.0.ready().await.unwrap();
        let path = method.parse().unwrap();
        self.0.unary(request, path, ProstCodec::default()).await.map(tonic::Response::into_inner)
    }

    pub async fn stream<Q: Message + 'static, R: Message + Default + 'static>(
        &mut self,
        method: &'static str,
        request: Q,
    ) -> Result<Streaming<R>, Status> {
        self.0.ready().await.unwrap();
        let path = method.parse().unwrap();
        let call = self.0.server_streaming(Request::new(request), path, ProstCodec::default());
        call.await.map(tonic::Response::into_inner)
    }

    pub async fn converse<Q: Message + 'static, R: Message + Default + 'static>(
        &mut self,
        method: &'static str,
        requests: Vec<Q>,
    ) -> Result<Streaming<R>, Status> {
        self.0.ready().await.unwrap();
        let path = method.parse().unwrap();
        let requests = Request::new(tokio_stream::iter(requests));
        self.0.streaming(requests, path, ProstCodec::default()).await.map(tonic::Response::into_inner)
    }

    pub async fn execute(&mut self, config: Option<ProcessConfig>) -> Result<ExecuteResponse, Status> {
        self.unary("/process.v1.ProcessService/Execute", ExecuteRequest { config }).await
    }

    /// Starts a process and takes its `init` event.
    pub async fn start(
        &mut self,
        config: Option<ProcessConfig>,
        pty: Option<Pty>,
    ) -> Result<(i32, Streaming<StartResponse>), Status> {
        let request = StartRequest { config, pty };
        let mut stream = self.stream("/process.v1.ProcessService/Start", request).await?;
        match next(&mut stream).await {
            Some(Event::Init(init)) => Ok((init.process_id, stream)),
            other => panic!("the first event is init, not {other:?}"),
        }
    }

    pub async fn write(&mut self, process_id: i32, text: &str) -> Result<Empty, Status> {
        let payload = Some(Payload::Input(text.as_bytes().to_vec().into()));
        self.unary("/process.v1.ProcessService/WriteStdin", WriteStdinRequest { process_id, payload }).await
    }

    pub async fn eof(&mut self, process_id: i32) -> Result<Empty, Status> {
        let payload = Some(Payload::Eof(Empty {}));
        self.unary("/process.v1.ProcessService/WriteStdin", WriteStdinRequest { process_id, payload }).await
    }

    pub async fn signal(&mut self, process_id: i32, signal: i32) -> Result<Empty, Status> {
        self.unary("/process.v1.ProcessService/SendSignal", SendSignalRequest { process_id, signal }).await
    }

    pub async fn resize(&mut self, process_id: i32, cols: u32, rows: u32) -> Result<Empty, Status> {
        let request = ResizeTtyRequest { process_id, cols, rows };
        self.unary("/process.v1.ProcessService/ResizeTTY", request).await
    }
}

pub async fn next(stream: &mut Streaming<StartResponse>) -> Option<Event> {
    stream.message().await.unwrap().and_then(|message| message.event)
}

/// Everything until the end: stdout, stderr and the exit code.
pub async fn rest(mut stream: Streaming<StartResponse>) -> (String, String, i32) {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    loop {
        match next(&mut stream).await.expect("exit comes before the end") {
            Event::Init(_) => panic!("init comes once"),
            Event::Stdout(bytes) => stdout.extend_from_slice(&bytes),
            Event::Stderr(bytes) => stderr.extend_from_slice(&bytes),
            Event::Exit(exit) => {
                assert_eq!(next(&mut stream).await, None, "exit is the last event");
                return (text(stdout), text(stderr), exit.exit_code);
            }
        }
    }
}

/// Reads until stdout contains `wanted`.
pub async fn until(stream: &mut Streaming<StartResponse>, wanted: &str) {
    let mut seen = String::new();
    while !seen.contains(wanted) {
        match next(stream).await {
            Some(Event::Stdout(bytes)) => seen += std::str::from_utf8(&bytes).unwrap(),
            other => panic!("{other:?} after {seen:?}, before {wanted:?}"),
        }
    }
}

pub fn code<T: std::fmt::Debug>(result: Result<T, Status>) -> Code {
    result.unwrap_err().code()
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Waits until `condition` holds, while the connection goes on.
pub async fn eventually_async<F: Future<Output = bool>>(condition: impl Fn() -> F) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition().await {
        assert!(Instant::now() < deadline, "never happened");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
