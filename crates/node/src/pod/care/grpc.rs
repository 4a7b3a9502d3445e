//! `grpc`: one call of `grpc.health.v1.Health/Check`. Its two messages have one field each, so they are written by hand.

use asb_runtime::Sandbox;
use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full, Limited};
use hyper::HeaderMap;
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::failure::with_causes;

const METHOD: &str = "/grpc.health.v1.Health/Check";
/// Far more than an answer has.
const LARGEST: usize = 4096;
/// `HealthCheckResponse.ServingStatus`
const STATUSES: [&str; 4] = ["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"];

pub async fn check(sandbox: &Sandbox, port: u16, service: &str) -> Result<(), String> {
    let stream = sandbox.reach(port).await.map_err(|error| with_causes(&error))?;
    let failed = |error: hyper::Error| with_causes(&error);
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.map_err(failed)?;
    let call = async {
        let request = hyper::Request::post(format!("http://localhost:{port}{METHOD}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Full::new(question(service)))
            .map_err(|error| with_causes(&error))?;
        let answer = sender.send_request(request).await.map_err(failed)?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, LARGEST).collect().await.map_err(|error| error.to_string())?;
        let trailers = body.trailers().cloned().unwrap_or_default();
        judge(&head.headers, &trailers, &body.to_bytes())
    };
    tokio::pin!(connection);
    tokio::pin!(call);
    tokio::select! {
        done = &mut call => done,
        _ = &mut connection => call.await,
    }
}

/// `HealthCheckRequest { service = 1 }` in the frame of gRPC: not compressed, its length, itself.
fn question(service: &str) -> Bytes {
    let mut message = BytesMut::new();
    if !service.is_empty() {
        message.put_u8(1 << 3 | 2);
        put_varint(&mut message, service.len());
        message.put_slice(service.as_bytes());
    }
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    frame.put_slice(&message);
    frame.freeze()
}

fn put_varint(to: &mut BytesMut, mut value: usize) {
    while value >= 0x80 {
        to.put_u8((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    to.put_u8(value as u8);
}

/// A call that failed says so in its trailers, or in its headers when there was nothing to send.
fn judge(headers: &HeaderMap, trailers: &HeaderMap, body: &[u8]) -> Result<(), String> {
    let text = |name: &str| {
        let value = trailers.get(name).or_else(|| headers.get(name))?;
        Some(value.to_str().unwrap_or_default().to_owned())
    };
    match text("grpc-status").as_deref() {
        Some("0") => {}
        Some("12") => return Err("the server does not have grpc.health.v1.Health".to_owned()),
        Some(code) => {
            let message = text("grpc-message").unwrap_or_default();
            return Err(format!("the health check failed with status {code}: {message}"));
        }
        None => return Err("the answer is not one of gRPC".to_owned()),
    }
    let status = status(body).ok_or("the answer to the health check cannot be read")?;
    match STATUSES.get(status) {
        Some(&"SERVING") => Ok(()),
        name => Err(format!("service unhealthy (responded with {:?})", name.unwrap_or(&"an unknown status"))),
    }
}

/// `HealthCheckResponse { status = 1 }`; without the field it is 0.
fn status(body: &[u8]) -> Option<usize> {
    let [0, a, b, c, d, message @ ..] = body else { return None };
    if u32::from_be_bytes([*a, *b, *c, *d]) as usize != message.len() {
        return None;
    }
    match message {
        [] => Some(0),
        [8, status] if *status < 0x80 => Some(usize::from(*status)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        pairs.iter().for_each(|(name, value)| drop(map.insert(*name, value.parse().unwrap())));
        map
    }

    #[test]
    fn question_is_framed_as_protocol_buffers_are() {
        assert_eq!(&question("")[..], [0, 0, 0, 0, 0]);
        assert_eq!(&question("ab")[..], [0, 0, 0, 0, 4, 10, 2, b'a', b'b']);
        assert_eq!(question(&"x".repeat(200))[..8], [0, 0, 0, 0, 203, 10, 0xc8, 1]);
    }

    #[test]
    fn only_serving_is_well() {
        let ok = headers(&[("grpc-status", "0")]);
        let none = HeaderMap::new();
        assert_eq!(judge(&none, &ok, &[0, 0, 0, 0, 2, 8, 1]), Ok(()));
        for body in [&[0, 0, 0, 0, 2, 8, 2][..], &[0, 0, 0, 0, 0], &[], &[0, 0, 0, 0, 9, 8, 1]] {
            assert!(judge(&none, &ok, body).is_err(), "{body:?}");
        }
        let failed = headers(&[("grpc-status", "5"), ("grpc-message", "unknown service")]);
        assert!(judge(&failed, &none, &[]).unwrap_err().contains("status 5: unknown service"));
        assert!(judge(&headers(&[("grpc-status", "12")]), &none, &[]).unwrap_err().contains("does not have"));
        assert!(judge(&none, &none, &[]).is_err());
    }
}
