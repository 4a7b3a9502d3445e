//! What can go wrong with an image, by what somebody would do about it.

use std::io;
use std::path::{Path, PathBuf};

use super::digest::Digest;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{name:?} is not the name of an image: {problem}")]
    Name { name: String, problem: String },
    /// Nowhere to get it from.
    #[error("no image {name:?} on this machine, and its name has no registry")]
    NoRegistry { name: String },
    #[error("no image {name:?} on this machine")]
    Missing { name: String },
    #[error("image {name:?} is used by {}", by.join(", "))]
    InUse { name: String, by: Vec<String> },
    /// The image itself is at fault.
    #[error("{what} is not as it must be: {problem}")]
    Malformed { what: String, problem: String },
    #[error("{what} has digest {found}, not {expected}")]
    Digest { what: String, expected: Digest, found: Digest },
    #[error("{entry:?} in the archive is refused: {problem}")]
    Entry { entry: String, problem: String },
    #[error("the image is refused: {problem}")]
    TooLarge { problem: String },
    #[error("failed to {step} {}", path.display())]
    Storage {
        step: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("failed to unpack {}", path.display())]
    Unpack {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("failed to read {what}")]
    Read {
        what: String,
        #[source]
        source: io::Error,
    },
    /// The registry wants to know who asks, or does not like the answer.
    #[error("registry {registry} refuses access to {what}{}", said(message))]
    Denied { registry: String, what: String, message: String },
    #[error("registry {registry} has no {what}{}", said(message))]
    NotFound { registry: String, what: String, message: String },
    #[error("registry {registry} answered {status} for {what}{}", said(message))]
    Answer { registry: String, what: String, status: u16, message: String },
    #[error("failed to get {what} from registry {registry}: {problem}")]
    Transfer { registry: String, what: String, problem: String },
}

impl Error {
    /// What the person who asked could do about it, if that is known.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoRegistry { .. } | Self::Missing { .. } => {
                "`asb image ls` shows what is here; name the registry (HOST/NAME:TAG), or set --default-registry".into()
            }
            Self::InUse { .. } => "remove these sandboxes first (`asb rm NAME`)".into(),
            Self::Denied { registry, .. } => format!(
                "give credentials for {registry}: imagePullSecrets in a Pod, --auth-file or ~/.docker/config.json for asb"
            ),
            Self::NotFound { .. } => "check the spelling of name and tag; private images need credentials".into(),
            Self::Transfer { registry, .. } => {
                format!("check that {registry} can be reached; plain HTTP needs --insecure-registry {registry}")
            }
            _ => return None,
        })
    }

    /// Whether trying again can help without anybody doing something.
    pub(super) fn passes(&self) -> bool {
        match self {
            Self::Transfer { .. } => true,
            Self::Answer { status, .. } => *status == 429 || *status >= 500,
            _ => false,
        }
    }
}

fn said(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}

pub(super) fn storage(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Storage { step, path, source }
}

pub(super) fn malformed(what: impl Into<String>, problem: impl ToString) -> Error {
    Error::Malformed { what: what.into(), problem: problem.to_string() }
}
