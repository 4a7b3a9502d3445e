//! Makes v2 tokens. The router only verifies them; the issuer keeps the private key.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};
use rustls_pki_types::PrivatePkcs8KeyDer;
use rustls_pki_types::pem::PemObject;

use super::super::{MintError, encode};
use super::keys::{SPKI, fingerprint};
use super::{Claims, VERSION, signed};

/// An Ed25519 private key with its id. Its `Debug` shows the id only.
pub struct SigningKey {
    kid: String,
    pair: Ed25519KeyPair,
    pkcs8: Vec<u8>,
}

/// Why a private key cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SigningKeyInvalid {
    #[error("the system has no random numbers")]
    Random,
    #[error("the text has no PEM block `PRIVATE KEY`")]
    NoKey,
    #[error("the key is not an Ed25519 private key; make one with `openssl genpkey -algorithm ed25519`")]
    NotEd25519,
}

impl SigningKey {
    pub fn generate() -> Result<Self, SigningKeyInvalid> {
        let document =
            Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| SigningKeyInvalid::Random)?;
        Self::from_pkcs8(document.as_ref())
    }

    /// Reads PKCS#8 as [`SigningKey::to_pem`] and openssl write it.
    pub fn from_pem(pem: &str) -> Result<Self, SigningKeyInvalid> {
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| SigningKeyInvalid::NoKey)?;
        Self::from_pkcs8(der.secret_pkcs8_der())
    }

    fn from_pkcs8(der: &[u8]) -> Result<Self, SigningKeyInvalid> {
        // openssl leaves the public key out, which only the second reader accepts.
        let pair =
            Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).map_err(|_| SigningKeyInvalid::NotEd25519)?;
        let kid = fingerprint(&spki(&pair));
        Ok(Self { kid, pair, pkcs8: der.to_vec() })
    }

    /// The same key under another id, for a file of keys in JSON.
    pub fn with_kid(&self, kid: &str) -> Self {
        let again = Self::from_pkcs8(&self.pkcs8).expect("it was read before");
        Self { kid: kid.to_owned(), ..again }
    }

    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// The private key. Keep it secret.
    pub fn to_pem(&self) -> String {
        pem("PRIVATE KEY", &self.pkcs8)
    }

    /// The public key, for the router's file of verification keys.
    pub fn public_pem(&self) -> String {
        pem("PUBLIC KEY", &spki(&self.pair))
    }

    /// Makes a token. `claims.kid` is set to the key's.
    pub fn sign(&self, claims: Claims) -> Result<String, MintError> {
        claims.validate()?;
        let claims = Claims { kid: self.kid.clone(), ..claims };
        Ok(self.sign_payload(&serde_json::to_string(&claims).expect("claims are plain JSON")))
    }

    pub(super) fn sign_payload(&self, json: &str) -> String {
        let payload = encode(json);
        let signature = self.pair.sign(&signed(&payload));
        format!("{VERSION}{payload}.{}", encode(signature))
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("SigningKey").field("kid", &self.kid).finish_non_exhaustive()
    }
}

fn spki(pair: &Ed25519KeyPair) -> Vec<u8> {
    [&SPKI, pair.public_key().as_ref()].concat()
}

fn pem(label: &str, der: &[u8]) -> String {
    let body = STANDARD.encode(der);
    let mut text = format!("-----BEGIN {label}-----\n");
    for at in (0..body.len()).step_by(64) {
        text.push_str(&body[at..body.len().min(at + 64)]);
        text.push('\n');
    }
    text + &format!("-----END {label}-----\n")
}

#[cfg(test)]
mod tests {
    use http::Method;
    use proptest::prelude::*;

    use super::super::Keys;
    use super::*;
    use crate::address::Address;

    #[test]
    fn a_key_survives_its_file() {
        let key = SigningKey::generate().unwrap();
        let again = SigningKey::from_pem(&key.to_pem()).unwrap();
        assert_eq!((again.kid(), again.public_pem()), (key.kid(), key.public_pem()));
        assert_eq!(SigningKey::from_pem("x").unwrap_err(), SigningKeyInvalid::NoKey);
        let public = key.public_pem();
        assert_eq!(SigningKey::from_pem(&public).unwrap_err(), SigningKeyInvalid::NoKey);
    }

    #[test]
    fn a_private_key_is_not_printed() {
        let key = SigningKey::generate().unwrap();
        assert_eq!(format!("{key:?}"), format!("SigningKey {{ kid: {:?}, .. }}", key.kid()));
    }

    proptest! {
        #![proptest_config(crate::fuzz::config())]

        #[test]
        fn claims_survive_the_token(
            uid in proptest::option::of("[a-f0-9-]{1,36}"), port in proptest::option::of(proptest::collection::vec(1..=u16::MAX, 1..4)),
            method in proptest::option::of(proptest::collection::vec("GET|POST|PUT", 1..3)), path in proptest::option::of("(/[a-z]{1,4}){1,3}/?\\*?"),
            exp in 2..u64::from(u32::MAX), jti in proptest::option::of("\\PC{0,9}"),
        ) {
            let key = SigningKey::generate().unwrap();
            let claims = Claims { uid, port, method, path, nbf: Some(exp - 1), jti, ..Claims::new("team", "web", exp) };
            let token = key.sign(claims.clone()).unwrap();
            let read = Keys::new(key.public_pem().as_bytes()).unwrap().verify(&token).unwrap();
            prop_assert_eq!(&*read, &Claims { kid: key.kid().to_owned(), ..claims.clone() });
            let port = claims.port.as_ref().map_or(80, |ports| ports[0]);
            let method = claims.method.as_ref().map_or(Method::GET, |methods| methods[0].parse().unwrap());
            let path = claims.path.as_deref().map_or("/", |path| path.trim_end_matches('*'));
            prop_assert!(read.check(&method, path, &Address::new("team", "web", port), exp - 1).is_ok());
        }
    }
}
