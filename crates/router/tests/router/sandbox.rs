//! What runs inside the sandbox: a local server that tells what it saw.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use asb_router::{Dial, Stream, Target};
use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use http::header::{CONNECTION, UPGRADE};
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// Shared between the test and the server inside.
#[derive(Default)]
pub struct Inside {
    /// Lets `/slow` and the second half of `/stream` go on.
    pub go: Notify,
    pub slow_begun: Notify,
    /// `/slow` was given up before it answered.
    pub abandoned: AtomicBool,
    pub requests: AtomicUsize,
    connections: Mutex<JoinSet<()>>,
}

/// Dials the server inside, and counts.
pub struct CountingDial {
    pub address: Mutex<Option<SocketAddr>>,
    pub dials: Mutex<Vec<(Target, u16)>>,
}

impl Dial for CountingDial {
    fn dial<'a>(&'a self, target: &'a Target, port: u16) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        self.dials.lock().unwrap().push((target.clone(), port));
        let address = *self.address.lock().unwrap();
        Box::pin(async move {
            let address = address.ok_or(io::ErrorKind::ConnectionRefused)?;
            Ok(Box::new(TcpStream::connect(address).await?) as Box<dyn Stream>)
        })
    }
}

impl Inside {
    pub async fn listen(self: &Arc<Self>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let inside = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let served = inside.clone();
                let connection = async move {
                    let service = service_fn(|request| answer(served.clone(), request));
                    let _ = http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .with_upgrades()
                        .await;
                };
                inside.connections.lock().unwrap().spawn(connection);
            }
        });
        address
    }

    pub fn open_connections(&self) -> usize {
        let mut connections = self.connections.lock().unwrap();
        while connections.try_join_next().is_some() {}
        connections.len()
    }

    /// Cuts every open connection, as a server does with idle ones.
    pub async fn cut_connections(&self) {
        let mut connections = std::mem::take(&mut *self.connections.lock().unwrap());
        connections.shutdown().await;
    }
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

async fn answer(inside: Arc<Inside>, mut request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    inside.requests.fetch_add(1, Ordering::SeqCst);
    if request.headers().contains_key(UPGRADE) {
        let upgraded = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let (mut from, mut to) = tokio::io::split(TokioIo::new(upgraded.await.unwrap()));
            let _ = tokio::io::copy(&mut from, &mut to).await;
        });
        let mut response = Response::new(Full::default().boxed_unsync());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        response.headers_mut().insert(CONNECTION, "Upgrade".parse().unwrap());
        response.headers_mut().insert(UPGRADE, request.headers()[UPGRADE].clone());
        return Ok(response);
    }
    match request.uri().path() {
        "/slow" => {
            let guard = Abandoned(Some(inside.clone()));
            inside.slow_begun.notify_one();
            inside.go.notified().await;
            guard.answered();
            Ok(Response::new(Full::from("slow").boxed_unsync()))
        }
        "/stream" => {
            let later = futures::stream::once(async move {
                inside.go.notified().await;
                Ok(Frame::data(Bytes::from("two")))
            });
            let first = futures::stream::iter([Ok(Frame::data(Bytes::from("one")))]);
            Ok(Response::new(StreamBody::new(first.chain(later)).boxed_unsync()))
        }
        _ => Ok(echo(request).await),
    }
}

async fn echo(request: Request<Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let headers: Vec<_> =
        head.headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
    let seen = json!({
        "method": head.method.as_str(), "target": head.uri.to_string(), "headers": headers,
        "length": body.len(), "sum": body.iter().map(|&byte| u64::from(byte)).sum::<u64>(),
    });
    let mut response = Response::new(Full::from(seen.to_string()).boxed_unsync());
    *response.status_mut() = StatusCode::IM_A_TEAPOT;
    for cookie in ["a=1", "b=2"] {
        response.headers_mut().append("set-cookie", cookie.parse().unwrap());
    }
    response
}

/// Notes when `/slow` is dropped before its end.
struct Abandoned(Option<Arc<Inside>>);

impl Abandoned {
    fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for Abandoned {
    fn drop(&mut self) {
        if let Some(inside) = &self.0 {
            inside.abandoned.store(true, Ordering::SeqCst);
        }
    }
}
