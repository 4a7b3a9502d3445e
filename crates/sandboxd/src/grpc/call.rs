//! Makes async functions into methods of a gRPC service.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request as HttpRequest, Response as HttpResponse};
use prost::Message;
use tokio_stream::Stream;
use tonic::server::Grpc;
use tonic::{Request, Response, Status, Streaming, body::Body};
use tonic_prost::ProstCodec;

/// What a streaming method returns.
pub type Events<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

pub async fn unary<Q, R, F>(
    request: HttpRequest<Incoming>,
    method: impl FnOnce(Request<Q>) -> F,
) -> HttpResponse<Body>
where
    Q: Message + Default + 'static,
    R: Message + 'static,
    F: Future<Output = Result<R, Status>> + Send,
{
    let once = Once(Some(|call| async move { method(call).await.map(Response::new) }));
    Grpc::new(ProstCodec::<R, Q>::default()).unary(once, request).await
}

/// A unary method that makes its response by itself.
pub async fn whole<Q, R, F>(
    request: HttpRequest<Incoming>,
    method: impl FnOnce(Request<Q>) -> F,
) -> HttpResponse<Body>
where
    Q: Message + Default + 'static,
    R: Message + 'static,
    F: Future<Output = Result<Response<R>, Status>> + Send,
{
    Grpc::new(ProstCodec::<R, Q>::default()).unary(Once(Some(method)), request).await
}

pub async fn streaming<Q, R, F>(
    request: HttpRequest<Incoming>,
    method: impl FnOnce(Request<Q>) -> F,
) -> HttpResponse<Body>
where
    Q: Message + Default + 'static,
    R: Message + 'static,
    F: Future<Output = Result<Events<R>, Status>> + Send,
{
    let once = Once(Some(|call| async move { method(call).await.map(Response::new) }));
    Grpc::new(ProstCodec::<R, Q>::default()).server_streaming(once, request).await
}

pub async fn bidirectional<Q, R, F>(
    request: HttpRequest<Incoming>,
    method: impl FnOnce(Request<Streaming<Q>>) -> F + Send,
) -> HttpResponse<Body>
where
    Q: Message + Default + 'static,
    R: Message + 'static,
    F: Future<Output = Result<Events<R>, Status>> + Send,
{
    let once = Once(Some(|call| async move { method(call).await.map(Response::new) }));
    Grpc::new(ProstCodec::<R, Q>::default()).streaming(once, request).await
}

/// How long the caller waits: the `grpc-timeout` header.
pub fn deadline<Q>(call: &Request<Q>) -> Result<Option<Duration>, Status> {
    let Some(value) = call.metadata().get("grpc-timeout") else { return Ok(None) };
    let parsed = value.to_str().ok().and_then(timeout);
    parsed.map(Some).ok_or_else(|| Status::invalid_argument("grpc-timeout is not a number and a unit"))
}

fn timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if !(1..=8).contains(&digits.len()) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

/// A service for exactly one call.
struct Once<M>(Option<M>);

impl<Q, R, M, F> tower_service::Service<Request<Q>> for Once<M>
where
    M: FnOnce(Request<Q>) -> F,
    F: Future<Output = Result<Response<R>, Status>>,
{
    type Response = Response<R>;
    type Error = Status;
    type Future = F;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Q>) -> F {
        let method = self.0.take().expect("tonic calls a service once per request");
        method(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_up_to_eight_digits_and_a_unit() {
        assert_eq!(timeout("250m"), Some(Duration::from_millis(250)));
        assert_eq!(timeout("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(timeout("1S"), Some(Duration::from_secs(1)));
        for text in ["", "S", "1", "123456789S", "-1S", "1x", "1é"] {
            assert_eq!(timeout(text), None, "{text}");
        }
    }
}
