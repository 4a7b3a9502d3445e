//! `sandbox-router`: the router on a cluster.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    asb_sandbox_router::process::run(std::env::args().skip(1).collect()).await
}
