//! `asb-bench`: how fast and how small, next to what people use today, in one run.
//!
//! It never fails for being slow; it fails when something does not work.

mod args;
mod commands;
mod engine;
mod memory;
mod peer;
mod report;
mod stats;
mod steps;
mod stopwatch;
mod table;
mod target;
mod workload;

use std::process::ExitCode;

use clap::Parser;

// As in `asb`, so that our server in this process is the one that ships.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let args = args::Args::parse();
    let _ = rustls::crypto::ring::default_provider().install_default();
    match commands::run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
