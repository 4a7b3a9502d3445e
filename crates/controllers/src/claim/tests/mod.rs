//! The decisions of the claim controller, proved without an API server.

mod candidates;
mod cold;
mod metadata;
mod plan;
mod properties;
mod status;
mod transfer;
mod wake;
mod world;
