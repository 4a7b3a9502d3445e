//! gRPC, by the client that published SDKs are built on.

pub mod client;
mod detached;
mod process;
mod reflection;
mod shutdown;
mod start;

#[path = "../../../src/grpc/messages.rs"]
#[allow(dead_code, clippy::duplicate_mod)]
pub mod messages;
pub use client::{Client, run};
