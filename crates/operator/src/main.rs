//! `agent-sandbox-controller`: the controllers on a cluster.

use std::process::ExitCode;

use asb_operator::{Options, go, process};
use clap::Parser;
use clap::error::ErrorKind;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs the Agent Sandbox controllers against a Kubernetes cluster.
#[derive(Debug, Parser)]
#[command(name = "agent-sandbox-controller", disable_version_flag = true, max_term_width = 100)]
struct Args {
    #[command(flatten)]
    options: Options,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    // Two providers in one binary panic; we choose ours before anybody asks.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match Args::try_parse_from(std::env::args().map(go::dashes)) {
        Ok(args) => process::run(args.options).await,
        Err(asked) if asked.kind() == ErrorKind::DisplayHelp => {
            print!("{asked}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprint!("{error}");
            ExitCode::FAILURE
        }
    }
}
