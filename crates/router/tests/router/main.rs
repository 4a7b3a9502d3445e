//! A real router between a real client and a sandbox that is a local server.
#![allow(clippy::unwrap_used)]

mod api;
mod directory;
mod lifecycle;
mod proxying;
mod sandbox;
mod world;
