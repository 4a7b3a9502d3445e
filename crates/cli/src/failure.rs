//! How a failure looks to a person: what went wrong, why, and what to do.

use std::process::ExitCode;

/// An error whose message is followed by a hint.
#[derive(Debug)]
pub struct Hinted {
    message: String,
    hint: String,
}

impl std::fmt::Display for Hinted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Hinted {}

pub fn hinted(message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
    Hinted { message: message.into(), hint: hint.into() }.into()
}

/// An error that is told by an exit code of its own.
#[derive(Debug)]
struct Coded {
    message: String,
    code: u8,
}

impl std::fmt::Display for Coded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Coded {}

pub fn coded(message: impl Into<String>, code: u8) -> anyhow::Error {
    Coded { message: message.into(), code }.into()
}

/// Prints the error with its causes and hint; returns the exit code for it.
pub fn render(error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {error}");
    for cause in error.chain().skip(1) {
        eprintln!("  caused by: {cause}");
    }
    if let Some(hinted) = error.chain().find_map(|cause| cause.downcast_ref::<Hinted>()) {
        eprintln!("\nhint: {}", hinted.hint);
    }
    let coded = error.chain().find_map(|cause| cause.downcast_ref::<Coded>());
    coded.map_or(ExitCode::FAILURE, |coded| ExitCode::from(coded.code))
}
