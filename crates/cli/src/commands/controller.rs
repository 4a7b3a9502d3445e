//! `asb controller`: the controllers alone, for a cluster. The same as `agent-sandbox-controller`.

use std::process::ExitCode;

pub async fn run(options: asb_operator::Options) -> ExitCode {
    asb_operator::process::run(options).await
}
