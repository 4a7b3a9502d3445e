//! The reference router's scoped token: HMAC-SHA256 over a context and the encoded payload.

use std::fmt;
use std::sync::Arc;

use ring::hmac;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use super::{MintError, check_label, decode, encode, parts};
use crate::address::Address;
use crate::authorize::{By, Identity, Pass, Refusal};

const VERSION: &str = "v1.";
/// Keeps a signature of this key over other data from passing as a token.
const CONTEXT: &[u8] = b"agent-sandbox/scoped-token/v1.";
const MIN_SECRET: usize = 32;

/// The secret that signs and verifies. Its `Debug` does not show it.
pub struct Key(hmac::Key);

/// The secret is too easy to guess.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the secret for scoped tokens has {0} bytes without white space around it; at least 32 are needed")]
pub struct SecretTooShort(usize);

#[derive(Serialize, Deserialize)]
struct Payload {
    ns: String,
    name: String,
    exp: i64,
}

pub fn is_v1(token: &str) -> bool {
    token.starts_with(VERSION)
}

// === impl Key ===

impl Key {
    /// White space around the secret is not part of it: files end with a line break.
    pub fn new(secret: &[u8]) -> Result<Self, SecretTooShort> {
        let secret = secret.trim_ascii();
        if secret.len() < MIN_SECRET {
            return Err(SecretTooShort(secret.len()));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, secret)))
    }

    /// Makes a token for one sandbox that is valid until, not including, `exp` (seconds since 1970).
    pub fn mint(&self, namespace: &str, name: &str, now: u64, exp: u64) -> Result<String, MintError> {
        check_label(namespace)?;
        check_label(name)?;
        if exp <= now {
            return Err(MintError::Lifetime);
        }
        let exp = i64::try_from(exp).map_err(|_| MintError::Lifetime)?;
        let payload = Payload { ns: namespace.to_owned(), name: name.to_owned(), exp };
        let payload = encode(serde_json::to_vec(&payload).expect("a payload is plain JSON"));
        let signature = self.sign(&payload);
        Ok(format!("{VERSION}{payload}.{}", encode(signature)))
    }

    /// Checks a token for the addressed sandbox; returns the pass and when the token ends.
    pub fn check(&self, token: &str, address: &Address, now: u64) -> Result<(Pass, u64), Refusal> {
        let (payload, signature) = parts(token, VERSION)?;
        let same = self.sign(payload).as_ref().ct_eq(&decode(signature)?);
        if !bool::from(same) {
            return Err(Refusal::SignatureInvalid);
        }
        let payload: Payload =
            serde_json::from_slice(&decode(payload)?).map_err(|_| Refusal::TokenMalformed)?;
        let exp = u64::try_from(payload.exp).unwrap_or(0);
        if now >= exp {
            return Err(Refusal::Expired);
        }
        if address.uid.is_some() {
            return Err(Refusal::UidNotAllowed);
        }
        if payload.ns != address.namespace || payload.name != address.name {
            return Err(Refusal::OtherSandbox);
        }
        let subject = Arc::from(format!("{}/{}", payload.ns, payload.name));
        Ok((Pass { identity: Identity { by: By::ScopedToken, subject }, uid: None }, exp))
    }

    fn sign(&self, payload: &str) -> hmac::Tag {
        let mut signed = hmac::Context::with_key(&self.0);
        signed.update(CONTEXT);
        signed.update(payload.as_bytes());
        signed.sign()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("v1::Key(..)")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
    /// Made with another implementation: Python's hmac over the payload {"ns":"team","name":"web","exp":2000}.
    const VECTOR: &str =
        "v1.eyJucyI6InRlYW0iLCJuYW1lIjoid2ViIiwiZXhwIjoyMDAwfQ.MCB3MYBtvVmtfyZlG2gTR3UFxsAeb3JA-3Q5coYkYcY";
    const WITHOUT_CONTEXT: &str =
        "v1.eyJucyI6InRlYW0iLCJuYW1lIjoid2ViIiwiZXhwIjoyMDAwfQ.wG1858ZzMZlAbGy9qWeOlqGkI9eK6LidA24wTIpCdI0";

    fn key() -> Key {
        Key::new(SECRET).unwrap()
    }

    fn web() -> Address {
        Address::new("team", "web", 8888)
    }

    fn check(token: &str, address: &Address, now: u64) -> Result<(), Refusal> {
        key().check(token, address, now).map(|_| ())
    }

    #[test]
    fn a_known_token_is_made_and_accepted() {
        assert_eq!(key().mint("team", "web", 1000, 2000).unwrap(), VECTOR);
        let (pass, exp) = key().check(VECTOR, &web(), 1000).unwrap();
        assert_eq!((pass.identity.to_string().as_str(), exp), ("scoped-token:team/web", 2000));
    }

    #[test]
    fn a_token_opens_its_own_sandbox_only() {
        for (namespace, name) in [("team", "other"), ("other", "web")] {
            assert_eq!(check(VECTOR, &Address::new(namespace, name, 8888), 1000), Err(Refusal::OtherSandbox));
        }
        let with_uid = Address { uid: Some("u".to_owned()), ..web() };
        assert_eq!(check(VECTOR, &with_uid, 1000), Err(Refusal::UidNotAllowed));
        let with_ip = Address { pod_address: Some([10, 0, 0, 9].into()), ..web() };
        assert_eq!(
            check(VECTOR, &with_ip, 1000),
            Ok(()),
            "the address reaches nothing but the named sandbox"
        );
    }

    #[test]
    fn the_end_is_exclusive() {
        assert_eq!(check(VECTOR, &web(), 1999), Ok(()));
        assert_eq!(check(VECTOR, &web(), 2000), Err(Refusal::Expired));
        let shortest = key().mint("team", "web", 1000, 1001).unwrap();
        assert_eq!(check(&shortest, &web(), 1000), Ok(()));
        assert_eq!(key().mint("team", "web", 1000, 1000), Err(MintError::Lifetime));
    }

    #[test]
    fn forged_and_damaged_tokens_are_refused() {
        assert_eq!(check(WITHOUT_CONTEXT, &web(), 1000), Err(Refusal::SignatureInvalid));
        let other = Key::new(b"another secret of at least 32 bytes").unwrap();
        assert_eq!(other.check(VECTOR, &web(), 1000).unwrap_err(), Refusal::SignatureInvalid);
        for bad in ["", "v1", "v1.", "v1..", "v1.x", "v1.x.", "v1..x", &VECTOR[3..], "v2.a.b", "v1.!.!"] {
            assert!(matches!(check(bad, &web(), 1000), Err(Refusal::TokenMalformed)), "{bad}");
        }
        assert!(check(&format!("{VECTOR}="), &web(), 1000).is_err(), "padding");
        assert!(check(&format!("{VECTOR}.x"), &web(), 1000).is_err(), "a fourth part");
    }

    #[test]
    fn secrets_and_fields_are_checked_before_minting() {
        assert_eq!(Key::new(&SECRET[..31]).unwrap_err(), SecretTooShort(31));
        let trailing = Key::new(b"0123456789abcdef0123456789abcdef\n").unwrap();
        assert_eq!(trailing.mint("team", "web", 1000, 2000).unwrap(), VECTOR);
        for (namespace, name) in [("", "web"), ("team", ""), ("Team", "web")] {
            assert!(key().mint(namespace, name, 0, 9).is_err());
        }
        assert_eq!(format!("{:?}", key()), "v1::Key(..)");
    }

    proptest! {
        #![proptest_config(crate::fuzz::config())]

        #[test]
        fn one_changed_character_spoils_a_token(at in 3..VECTOR.len(), to in "[A-Za-z0-9_-]") {
            let mut token = VECTOR.to_owned();
            token.replace_range(at..=at, &to);
            prop_assume!(token != VECTOR);
            prop_assert!(check(&token, &web(), 1000).is_err(), "{}", token);
        }

        #[test]
        fn any_text_gets_an_answer(token in "(v1\\.)?[ -~]{0,80}") {
            prop_assert!(check(&token, &web(), 1000).is_err());
        }
    }
}
