//! The real daemon, spoken to over HTTP and gRPC.
#![allow(clippy::unwrap_used)]

mod attack;
mod daemon;
mod grpc;
mod legacy;
mod limits;
mod rest;
mod schema;
mod support;
