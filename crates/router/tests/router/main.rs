//! A real router between a real client and a sandbox that is a local server.
#![allow(clippy::unwrap_used)]

mod api;
mod attack;
mod directory;
mod fuzz;
mod http2;
mod lifecycle;
mod proxying;
mod recording;
mod responses;
mod sandbox;
mod smuggling;
mod world;
