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

/// Prints the error with its causes and hint; returns the exit code for it.
pub fn render(error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {error}");
    for cause in error.chain().skip(1) {
        eprintln!("  caused by: {cause}");
    }
    if let Some(hinted) = error.chain().find_map(|cause| cause.downcast_ref::<Hinted>()) {
        eprintln!("\nhint: {}", hinted.hint);
    }
    ExitCode::FAILURE
}
