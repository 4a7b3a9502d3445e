//! The daemon inside a sandbox: runs commands and moves files for the callers that reach its ports.
//!
//! It speaks the three APIs that published clients know: the legacy runtime's, REST below `/v1`, and gRPC. Authentication
//! is off by default on purpose: the sandbox's network lets in only the router, and the router checks the caller.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod auth;
mod body;
mod cli;
mod connection;
mod copy;
mod detach;
mod draft;
mod duration;
mod grpc;
mod install;
mod legacy;
mod log;
mod multipart;
mod paths;
mod process;
mod range;
mod reply;
mod rest;
mod routes;
mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    let options = match cli::parse(std::env::args_os().skip(1)) {
        Ok(cli::Command::Serve(options)) => options,
        Ok(cli::Command::Install { directory }) => return ended(&directory, install::install(&directory)),
        Ok(cli::Command::Pack { path }) => return ended(&path, copy::pack(&path, std::io::stdout())),
        Ok(cli::Command::Unpack { target, name }) => {
            return ended(&target, copy::unpack(std::io::stdin().lock(), &target, &name));
        }
        Ok(cli::Command::Print(text)) => {
            println!("{text}");
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            eprintln!("error: {message}\n\n{}", cli::USAGE);
            return ExitCode::from(2);
        }
    };
    match server::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

fn ended(path: &std::path::Path, done: std::io::Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}
