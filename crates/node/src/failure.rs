//! Errors as people read them in a status or at the end of an exec.

use std::error::Error;

/// An error and what caused it, in one line.
pub fn with_causes(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |cause: &&dyn Error| Error::source(*cause));
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
