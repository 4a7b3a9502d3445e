//! The daemon inside a sandbox: runs commands and moves files for whoever reaches its port.
//!
//! It speaks the legacy runtime API that every published client knows. There is no authentication here on purpose: the
//! sandbox's network lets in nobody but the router, and the router checks the caller.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod body;
mod cli;
mod copy;
mod detach;
mod download;
mod execute;
mod listing;
mod multipart;
mod paths;
mod reply;
mod routes;
mod server;
mod upload;
mod validation;
mod words;

use std::process::ExitCode;

fn main() -> ExitCode {
    let options = match cli::parse(std::env::args().skip(1)) {
        Ok(cli::Command::Serve(options)) => options,
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
