//! `asb-bench`: how fast and how small, next to what people use today, in one run.
//!
//! It never fails for being slow; it fails when something does not work.

mod args;
mod commands;
mod controllers;
mod engine;
mod front;
mod memory;
mod peer;
mod report;
mod router;
mod stats;
mod steps;
mod stopwatch;
mod table;
mod target;
mod workload;

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::Parser;

// As in `asb`, so that our server in this process is the one that ships.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let args = args::Args::parse();
    let _ = rustls::crypto::ring::default_provider().install_default();
    match on_disk().and_then(|()| commands::run(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Starts anew with temporary files on disk, where `/tmp` may be memory; the programs we compare with inherit that.
fn on_disk() -> anyhow::Result<()> {
    if std::env::var_os("TMPDIR").is_some() {
        return Ok(());
    }
    let error = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env("TMPDIR", "/var/tmp")
        .exec();
    Err(anyhow::Error::new(error).context("failed to start myself again"))
}
