//! Our scoped token: Ed25519 over a context and the encoded payload.

mod claims;
mod keys;
mod path;
mod signing;

pub use claims::Claims;
pub use keys::{Keys, KeysInvalid};
pub use signing::{SigningKey, SigningKeyInvalid};

const VERSION: &str = "v2.";
/// Keeps a signature of this key over other data from passing as a token.
const CONTEXT: &str = "agent-sandbox/scoped-token/v2.";

pub fn is_v2(token: &str) -> bool {
    token.starts_with(VERSION)
}

fn signed(payload: &str) -> Vec<u8> {
    [CONTEXT.as_bytes(), payload.as_bytes()].concat()
}
