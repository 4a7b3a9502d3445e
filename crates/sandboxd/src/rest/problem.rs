//! What can go wrong in the REST API, with the codes and words that clients know.

use std::io;

use hyper::StatusCode;
use rustix::io::Errno;

use crate::paths;
use crate::reply::{self, Reply};

#[derive(Debug)]
pub enum Problem {
    Invalid(String),
    /// The path leaves the root.
    Escape,
    Permission,
    NotFound,
    Conflict(&'static str),
    TooLarge(&'static str),
    TooMany(&'static str),
    Unavailable(&'static str),
    Internal(String),
}

pub const ROOT: &str = "cannot delete the sandbox root; pass recursive=true to clear its contents";
pub const NOT_EMPTY: &str = "directory is not empty; pass recursive=true to remove it";
pub const EXISTS: &str = "target path exists; pass overwrite=true to replace it";

impl Problem {
    pub fn reply(self) -> Reply {
        let (status, code, message) = match &self {
            Self::Invalid(message) => (StatusCode::BAD_REQUEST, "INVALID_ARGUMENT", message.as_str()),
            Self::Escape => (
                StatusCode::FORBIDDEN,
                "PERMISSION_DENIED",
                "path traversal outside sandbox root is forbidden",
            ),
            Self::Permission => (StatusCode::FORBIDDEN, "PERMISSION_DENIED", "permission denied"),
            Self::NotFound => (StatusCode::NOT_FOUND, "NOT_FOUND", "path does not exist within the sandbox"),
            Self::Conflict(message) => (StatusCode::CONFLICT, "CONFLICT", *message),
            Self::TooLarge(message) => (StatusCode::PAYLOAD_TOO_LARGE, "INVALID_ARGUMENT", *message),
            Self::TooMany(message) => (StatusCode::TOO_MANY_REQUESTS, "RESOURCE_EXHAUSTED", *message),
            Self::Unavailable(message) => (StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", *message),
            Self::Internal(message) => (StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL", message.as_str()),
        };
        reply::error(status, code, message)
    }
}

impl From<Errno> for Problem {
    fn from(error: Errno) -> Self {
        match error {
            Errno::NOENT | Errno::NOTDIR => Self::NotFound,
            Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::LOOP => Self::Permission,
            Errno::ISDIR => Self::Invalid("target path is a directory".to_owned()),
            Errno::NAMETOOLONG => Self::Invalid("a name in the path is too long".to_owned()),
            Errno::NXIO => Self::Invalid("not a regular file".to_owned()),
            Errno::INVAL => Self::Invalid("target path is not a regular file".to_owned()),
            Errno::NOTEMPTY => Self::Conflict(NOT_EMPTY),
            Errno::EXIST => Self::Conflict(EXISTS),
            other => Self::Internal(io::Error::from(other).to_string()),
        }
    }
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(number) => Errno::from_raw_os_error(number).into(),
            None => Self::Internal(error.to_string()),
        }
    }
}

impl From<paths::Error> for Problem {
    fn from(error: paths::Error) -> Self {
        match error {
            paths::Error::Escape => Self::Escape,
            paths::Error::Nul => Self::Invalid("path contains a NUL byte".to_owned()),
            paths::Error::Io(error) => error.into(),
        }
    }
}
