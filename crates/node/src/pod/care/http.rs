//! `httpGet`: one request to a port of the Pod. Every answer from 200 to 399 is a good one.

use asb_runtime::Sandbox;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::header::{ACCEPT, CONNECTION, HOST, HeaderName, HeaderValue, USER_AGENT};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{Request, act, tls};
use crate::failure::with_causes;

const AGENT: &str = concat!("kube-probe/asb-", env!("CARGO_PKG_VERSION"));

pub async fn get(sandbox: &Sandbox, request: &Request) -> Result<(), String> {
    let stream = sandbox.reach(request.port).await.map_err(|error| with_causes(&error))?;
    if !request.tls {
        return ask(stream, request).await;
    }
    ask(tls::connect(stream, &request.host).await?, request).await
}

async fn ask<S>(stream: S, request: &Request) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let failed = |error: hyper::Error| with_causes(&error);
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    let exchange = async {
        let answer = sender.send_request(message(request)?).await.map_err(failed)?;
        let status = answer.status();
        if status.is_success() || status.is_redirection() {
            return Ok(());
        }
        // What it says is only for people: the beginning is enough, and none of it is needed.
        let body = Limited::new(answer.into_body(), act::SAID).collect().await;
        let text = body.map(|body| String::from_utf8_lossy(&body.to_bytes()).trim().to_owned());
        let text = text.ok().filter(|text| !text.is_empty()).map(|text| format!(": {text}"));
        // In the kubelet's words, which monitoring looks for; it leaves the body out.
        Err(format!("HTTP probe failed with statuscode: {}{}", status.as_u16(), text.unwrap_or_default()))
    };
    tokio::pin!(connection);
    tokio::pin!(exchange);
    tokio::select! {
        done = &mut exchange => done,
        // It is over when the server has said all; then so has the exchange.
        _ = &mut connection => exchange.await,
    }
}

fn message(request: &Request) -> Result<hyper::Request<Empty<Bytes>>, String> {
    let wrong = |what: &str| format!("httpHeaders: {what:?} cannot be sent");
    let mut message = hyper::Request::new(Empty::new());
    *message.uri_mut() = request.path.parse().map_err(|_| wrong(&request.path))?;
    let headers = message.headers_mut();
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    headers.insert(HOST, HeaderValue::from_str(&request.host).map_err(|_| wrong("Host"))?);
    for (name, value) in &request.headers {
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong(name))?;
        let value = HeaderValue::from_str(value).map_err(|_| wrong(name))?;
        // Those that the Pod names replace ours; one named twice is sent twice.
        match key == USER_AGENT || key == ACCEPT {
            true => drop(headers.insert(key, value)),
            false => drop(headers.append(key, value)),
        }
    }
    Ok(message)
}
