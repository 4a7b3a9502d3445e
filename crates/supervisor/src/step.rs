//! Errors that name the step, the path and the errno.

use std::path::Path;

use asb_supervisor::launch::Failure;
use rustix::io::Errno;

pub type Result<T> = std::result::Result<T, Failure>;

/// Names what was being done when a system call failed.
pub trait Step<T> {
    fn step(self, step: &str) -> Result<T>;
    fn step_at(self, step: &str, path: impl AsRef<Path>) -> Result<T>;
}

impl<T, E: Into<Cause>> Step<T> for std::result::Result<T, E> {
    fn step(self, step: &str) -> Result<T> {
        self.map_err(|cause| failure(step, None, cause.into()))
    }

    fn step_at(self, step: &str, path: impl AsRef<Path>) -> Result<T> {
        self.map_err(|cause| failure(step, Some(path.as_ref()), cause.into()))
    }
}

/// What a step can fail of: always an errno in the end.
pub struct Cause(i32);

impl From<Errno> for Cause {
    fn from(errno: Errno) -> Self {
        Self(errno.raw_os_error())
    }
}

impl From<std::io::Error> for Cause {
    fn from(error: std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

fn failure(step: &str, path: Option<&Path>, Cause(errno): Cause) -> Failure {
    Failure { step: step.to_owned(), path: path.map(Path::to_owned), errno, program: None }
}
