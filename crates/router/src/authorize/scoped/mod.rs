//! Tokens that open one sandbox: `<version>.<payload>.<signature>`, both parts base64url without padding.
//!
//! `v1` is the reference router's format, signed with a shared secret. `v2` is ours: signed with Ed25519, so the router
//! holds no secret that could make tokens, and it can be narrowed to ports, methods and paths.

pub mod v1;
pub mod v2;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::Refusal;
use crate::address::is_label;

/// Longer tokens are refused before any work is done on them.
const MAX_LENGTH: usize = 8 * 1024;

/// Why a token cannot be made.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum MintError {
    #[error("`{0}` is not a sandbox's namespace or name: {LABEL}")]
    Label(String),
    #[error("a token must be valid for at least 1 second")]
    Lifetime,
    #[error("the port 0 cannot be reached; use 1 to 65535")]
    Port,
    #[error("an empty list of {0} would allow none; leave it out to allow all")]
    Empty(&'static str),
    #[error("`{0}` is not an HTTP method; write it in capitals, e.g. GET")]
    Method(String),
    #[error("`{0}` is not a path; start it with `/`, and end it with `*` for a prefix")]
    Path(String),
}

const LABEL: &str = "use lower-case letters, digits and inner dashes, at most 63 characters";

/// The payload and signature of a token of this version, both still encoded.
fn parts<'a>(token: &'a str, version: &str) -> Result<(&'a str, &'a str), Refusal> {
    let rest = token.strip_prefix(version).filter(|_| token.len() <= MAX_LENGTH);
    let (payload, signature) = rest.and_then(|rest| rest.split_once('.')).ok_or(Refusal::TokenMalformed)?;
    if payload.is_empty() || signature.is_empty() {
        Err(Refusal::TokenMalformed)
    } else {
        Ok((payload, signature))
    }
}

fn decode(text: &str) -> Result<Vec<u8>, Refusal> {
    URL_SAFE_NO_PAD.decode(text).map_err(|_| Refusal::TokenMalformed)
}

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn check_label(text: &str) -> Result<(), MintError> {
    if is_label(text) { Ok(()) } else { Err(MintError::Label(text.to_owned())) }
}
