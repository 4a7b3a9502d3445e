//! `asb router`: the router alone, for a cluster. The same as `sandbox-router`.

use std::process::ExitCode;

use crate::args::Router;

pub async fn run(router: Router) -> ExitCode {
    asb_sandbox_router::process::run(router.flags).await
}
