//! Errors as people read them in a status or at the end of an exec.

use std::error::Error;

/// An error and what caused it, in one line.
pub fn with_causes(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
