//! Messages for the operator.

use std::fmt::Display;
use std::io::Write;

/// Writes a line to stderr. `eprintln!` would panic where that fails, and a full disk or a closed pipe behind stderr must
/// not end the daemon.
pub fn warn(message: impl Display) {
    let _ = writeln!(std::io::stderr(), "warning: {message}");
}
