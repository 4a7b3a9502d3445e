//! `asb`: isolated, stateful environments for agents, on this machine or any cluster.

mod args;
mod commands;
mod connect;
mod container;
mod data_dir;
mod engine;
mod failure;
mod registries;
mod rootless;
mod router_pod;
mod stdio;

use std::process::ExitCode;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let args = args::Args::parse();
    args::init_logging(&args);
    match prepare(&args) {
        Ok(data_dir) => work(args, &data_dir),
        Err(error) => failure::render(&error),
    }
}

/// What must be done while there is one thread.
fn prepare(args: &args::Args) -> anyhow::Result<data_dir::DataDir> {
    let data_dir = data_dir::DataDir::choose(args.data_dir.as_deref())?;
    rootless::enter(&args.command, &data_dir)?;
    Ok(data_dir)
}

fn work(args: args::Args, data_dir: &data_dir::DataDir) -> ExitCode {
    // Two providers in one binary panic; we choose ours before anybody asks.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut runtime = match args.command.is_service() {
        true => tokio::runtime::Builder::new_multi_thread(),
        // One thread for one person: none that must be made and woken first.
        false => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = runtime.worker_threads(2).enable_all().build();
    let done = match runtime {
        Ok(runtime) => {
            let done = runtime.block_on(commands::run(data_dir, args.command));
            // A blocked read of standard input must not keep the program alive.
            runtime.shutdown_background();
            done
        }
        Err(error) => Err(error.into()),
    };
    done.unwrap_or_else(|error| failure::render(&error))
}
