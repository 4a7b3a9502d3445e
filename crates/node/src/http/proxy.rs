//! `pods/proxy`: one HTTP request to a port of a Pod, and its upgrade to something else.
//!
//! The API server has decided which Pod, scheme and port are meant, and has taken the credentials off; what is between two
//! ends of a connection, and not between client and program, is taken off here.

use asb_runtime::Error;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use futures::FutureExt as _;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::{Failure, pod};
use crate::failure::with_causes;
use crate::node::{Node, uid};
use crate::pod::care::tls;

/// What RFC 9110 and old habit say about a connection, beside what `Connection` names.
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Where a request leads.
#[derive(Debug, PartialEq, Eq)]
struct Destination<'a> {
    namespace: &'a str,
    pod: &'a str,
    tls: bool,
    port: u16,
    /// What the program in the Pod is asked for.
    path: &'a str,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

pub async fn proxy(State(node): State<Node>, request: Request) -> Result<Response, Failure> {
    let uri = request.uri().clone();
    let to = Destination::parse(uri.path())
        .ok_or_else(|| Failure::bad_request(format!("{} does not lead to a port of a Pod", uri.path())))?;
    let pod = pod(&node, to.namespace, to.pod).await?;
    let stream = connect(&node, &pod, &to).await.map_err(|why| unreachable(&why))?;
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let asked =
        format!("/{}{query}", to.path).parse::<Uri>().map_err(|error| unreachable(&error.to_string()))?;
    exchange(stream, asked, &address(&pod), request).await.map_err(|error| unreachable(&with_causes(&error)))
}

impl<'a> Destination<'a> {
    /// `/api/v1/namespaces/NAMESPACE/pods/SCHEME:POD:PORT/proxy/PATH`.
    fn parse(path: &'a str) -> Option<Self> {
        let parts: Vec<_> = path.splitn(9, '/').collect();
        let [_, _, _, _, namespace, _, target, _, path] = *parts else { return None };
        let [scheme, pod, port] = *target.split(':').collect::<Vec<_>>() else { return None };
        Some(Self { namespace, pod, tls: scheme == "https", port: port.parse().ok()?, path })
    }
}

/// In the words of kube-apiserver.
fn unreachable(why: &str) -> Failure {
    Failure {
        code: StatusCode::SERVICE_UNAVAILABLE,
        reason: "ServiceUnavailable",
        message: format!("error trying to reach service: {why}"),
    }
}

fn address(pod: &Pod) -> String {
    pod.status.as_ref().and_then(|status| status.pod_ip.clone()).unwrap_or_else(|| "localhost".to_owned())
}

async fn connect(node: &Node, pod: &Pod, to: &Destination<'_>) -> Result<Box<dyn Stream>, String> {
    let place = format!("dial tcp {}:{}", address(pod), to.port);
    if let Some(own) = node.engine_pod(pod) {
        let stream =
            (own.connect)(to.port).await.map_err(|error| format!("{place}: {}", with_causes(&error)))?;
        return Ok(Box::new(stream));
    }
    let stream = dial(node, pod, to.port).await.map_err(|why| format!("{place}: {why}"))?;
    match to.tls {
        true => Ok(Box::new(tls::connect(stream, &address(pod)).await?)),
        false => Ok(Box::new(stream)),
    }
}

/// Connects on the Pod's loopback interface, as port-forward does, else on its address.
async fn dial(node: &Node, pod: &Pod, port: u16) -> Result<TcpStream, String> {
    let all: Vec<_> = node.shared.sandboxes_of(&uid(pod)).into_values().collect();
    let runs = all.iter().find(|sandbox| sandbox.wait().now_or_never().is_none());
    let sandbox = runs.ok_or("connect: no container of the Pod runs")?;
    let dialled = match sandbox.dial(port).await {
        Err(Error::Refused { .. }) => sandbox.reach(port).await,
        other => other,
    };
    dialled.map_err(|error| match error {
        Error::Refused { .. } => "connect: connection refused".to_owned(),
        other => with_causes(&other),
    })
}

async fn exchange(
    stream: Box<dyn Stream>,
    asked: Uri,
    address: &str,
    mut request: Request,
) -> Result<Response, hyper::Error> {
    let protocol = upgrade(request.headers());
    let from_client = protocol.is_some().then(|| hyper::upgrade::on(&mut request));
    *request.uri_mut() = asked;
    to_next_hop(request.headers_mut(), protocol.as_ref());
    if !request.headers().contains_key(header::HOST)
        && let Ok(address) = HeaderValue::from_str(address)
    {
        request.headers_mut().insert(header::HOST, address);
    }
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection.with_upgrades());
    let mut response = sender.send_request(request).await?;
    let switched =
        (response.status() == StatusCode::SWITCHING_PROTOCOLS).then(|| upgrade(response.headers()));
    if let (Some(from_client), Some(Some(_))) = (from_client, &switched) {
        let from_pod = hyper::upgrade::on(&mut response);
        tokio::spawn(async move {
            let (Ok(client), Ok(pod)) = tokio::join!(from_client, from_pod) else { return };
            let (mut client, mut pod) = (TokioIo::new(client), TokioIo::new(pod));
            let _ = tokio::io::copy_bidirectional(&mut client, &mut pod).await;
        });
    }
    to_next_hop(response.headers_mut(), switched.flatten().as_ref());
    Ok(response.map(Body::new))
}

/// What the connection is to be upgraded to.
fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let asked = words(headers, &header::CONNECTION).any(|word| word.eq_ignore_ascii_case("upgrade"));
    headers.get(header::UPGRADE).filter(|_| asked).cloned()
}

/// Takes off what was said about the connection to here; an upgrade is said again.
fn to_next_hop(headers: &mut HeaderMap, upgrade: Option<&HeaderValue>) {
    let named: Vec<_> = words(headers, &header::CONNECTION).filter_map(|word| word.parse().ok()).collect();
    let trailers = words(headers, &header::TE).any(|word| word.eq_ignore_ascii_case("trailers"));
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove::<&HeaderName>(name);
    }
    if trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    if let Some(protocol) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, protocol.clone());
    }
}

/// The words of a header that is a list.
fn words<'a>(headers: &'a HeaderMap, name: &'a HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn destination_is_read_from_the_path() {
        let parse = |target: &str, path: &str| {
            let path = format!("/api/v1/namespaces/one/pods/{target}/proxy/{path}");
            Destination::parse(&path)
                .map(|to| (to.namespace.to_owned(), to.pod.to_owned(), to.tls, to.port, to.path.to_owned()))
        };
        let web =
            |tls, port, path: &str| Some(("one".to_owned(), "web".to_owned(), tls, port, path.to_owned()));
        assert_eq!(parse("http:web:80", ""), web(false, 80, ""));
        assert_eq!(parse("https:web:443", "a/b%2F//"), web(true, 443, "a/b%2F//"));
        assert_eq!(parse("web:80", ""), None);
        assert_eq!(parse("http:web:x", ""), None);
        assert_eq!(Destination::parse("/api/v1/namespaces/one/pods/http:web:80/proxy"), None);
    }

    #[test]
    fn what_concerns_one_connection_stays_there() {
        let mut request = headers(&[
            ("connection", "keep-alive, X-Mine"),
            ("x-mine", "1"),
            ("te", "gzip, trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("accept", "*/*"),
        ]);
        assert_eq!(upgrade(&request), None, "the connection does not ask for it");
        to_next_hop(&mut request, None);
        assert_eq!(request, headers(&[("te", "trailers"), ("accept", "*/*")]));
    }

    #[test]
    fn an_upgrade_is_asked_for_again() {
        let mut request = headers(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")]);
        let protocol = upgrade(&request);
        assert!(protocol.as_ref().is_some_and(|protocol| protocol == "websocket"));
        to_next_hop(&mut request, protocol.as_ref());
        assert_eq!(request, headers(&[("connection", "Upgrade"), ("upgrade", "websocket")]));
    }
}
