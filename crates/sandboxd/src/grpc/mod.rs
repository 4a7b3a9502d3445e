//! gRPC: `process.v1.ProcessService`, which published clients speak, our own `sandboxd.v1.ProcessService`, and server
//! reflection. tonic does the framing; the connection is the same that serves HTTP.

mod call;
mod detached;
mod messages;
mod process;
mod reflection;
mod start;

use std::sync::Arc;

use hyper::Request;
use hyper::body::Incoming;
use tonic::Status;

use self::call::{bidirectional, streaming, unary, whole};
use crate::body::Body;
use crate::reply::Reply;
use crate::routes::State;

pub async fn answer(state: Arc<State>, request: Request<Incoming>) -> Reply {
    let response = match request.uri().path() {
        "/process.v1.ProcessService/Start" => streaming(request, |call| start::start(state, call)).await,
        "/process.v1.ProcessService/Execute" => whole(request, |call| process::execute(state, call)).await,
        "/process.v1.ProcessService/WriteStdin" => {
            unary(request, |call| process::write_stdin(state, call)).await
        }
        "/process.v1.ProcessService/SendSignal" => {
            unary(request, |call| process::send_signal(state, call)).await
        }
        "/process.v1.ProcessService/ResizeTTY" => {
            unary(request, |call| process::resize_tty(state, call)).await
        }
        "/sandboxd.v1.ProcessService/Start" => unary(request, |call| detached::start(state, call)).await,
        "/sandboxd.v1.ProcessService/List" => unary(request, |call| detached::list(state, call)).await,
        "/sandboxd.v1.ProcessService/Connect" => {
            streaming(request, |call| detached::connect(state, call)).await
        }
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
        | "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo" => {
            bidirectional(request, reflection::info).await
        }
        other => Status::unimplemented(format!("unknown method {other}")).into_http(),
    };
    response.map(Body::Grpc)
}

pub fn unauthenticated() -> Reply {
    let status =
        Status::unauthenticated("this daemon wants a token: send `authorization: Bearer TOKEN` metadata");
    status.into_http().map(Body::Grpc)
}
