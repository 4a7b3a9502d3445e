//! The keys that the router verifies v2 tokens with. Public, several at once, replaced without a restart.
//!
//! A file holds either PEM blocks (`PUBLIC KEY`), whose key id is the first 16 hex digits of the SHA-256 of their DER, or
//! JSON: `{"keys":[{"kid":"2026-11","pem":"-----BEGIN PUBLIC KEY-----…"}]}`.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use lru::LruCache;
use ring::digest::{SHA256, digest};
use ring::signature::{ED25519, UnparsedPublicKey};
use rustls_pki_types::SubjectPublicKeyInfoDer;
use rustls_pki_types::pem::PemObject;
use serde::Deserialize;

use super::super::{decode, parts};
use super::{Claims, VERSION, signed};
use crate::authorize::Refusal;

/// The DER of an Ed25519 public key is this and 32 bytes.
pub(super) const SPKI: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
/// Verifying costs some 50 µs, so recent tokens are remembered.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(1024).expect("not zero");

/// Verification keys by id.
#[derive(Default)]
pub struct Keys(RwLock<Arc<KeySet>>);

struct KeySet {
    keys: HashMap<String, [u8; 32]>,
    /// Tokens that these keys signed, by the SHA-256 of their text. Belongs to the set: with new keys it is empty.
    verified: Mutex<LruCache<[u8; 32], Arc<Claims>>>,
}

/// Why a file of verification keys cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeysInvalid {
    #[error("the file has no PEM block `PUBLIC KEY`")]
    NoKey,
    #[error("the file is neither PEM nor JSON of the form {{\"keys\":[{{\"kid\":…,\"pem\":…}}]}}")]
    Form,
    #[error("key {0} is not an Ed25519 public key")]
    NotEd25519(String),
    #[error("the key id `{0}` is used twice or empty")]
    KeyId(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    keys: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    kid: String,
    pem: String,
}

// === impl Keys ===

impl Keys {
    pub fn new(file: &[u8]) -> Result<Self, KeysInvalid> {
        let keys = Self::default();
        keys.reload(file)?;
        Ok(keys)
    }

    /// Replaces all keys and returns whether they differ from the old ones. On an error the old ones stay.
    pub fn reload(&self, file: &[u8]) -> Result<bool, KeysInvalid> {
        let keys = parse(file)?;
        if self.set().keys == keys {
            return Ok(false);
        }
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(KeySet::new(keys));
        Ok(true)
    }

    /// The ids of the keys, for the log.
    pub fn ids(&self) -> Vec<String> {
        let mut ids: Vec<_> = self.set().keys.keys().cloned().collect();
        ids.sort();
        ids
    }

    /// The claims of a token that one of the keys signed. Whether they allow a request is [`Claims::check`].
    pub fn verify(&self, token: &str) -> Result<Arc<Claims>, Refusal> {
        self.set().verify(token)
    }

    fn set(&self) -> Arc<KeySet> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("v2::Keys").field(&self.ids()).finish()
    }
}

// === impl KeySet ===

impl Default for KeySet {
    fn default() -> Self {
        Self::new(HashMap::new())
    }
}

impl KeySet {
    fn new(keys: HashMap<String, [u8; 32]>) -> Self {
        Self { keys, verified: Mutex::new(LruCache::new(REMEMBERED)) }
    }

    fn verify(&self, token: &str) -> Result<Arc<Claims>, Refusal> {
        let (payload, signature) = parts(token, VERSION)?;
        let id = sha256(token.as_bytes());
        if let Some(claims) = self.verified.lock().unwrap_or_else(PoisonError::into_inner).get(&id) {
            return Ok(claims.clone());
        }
        let claims: Claims =
            serde_json::from_slice(&decode(payload)?).map_err(|_| Refusal::TokenMalformed)?;
        let key = UnparsedPublicKey::new(&ED25519, self.keys.get(&claims.kid).ok_or(Refusal::KeyUnknown)?);
        key.verify(&signed(payload), &decode(signature)?).map_err(|_| Refusal::SignatureInvalid)?;
        let claims = Arc::new(claims);
        self.verified.lock().unwrap_or_else(PoisonError::into_inner).put(id, claims.clone());
        Ok(claims)
    }
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest(&SHA256, bytes).as_ref());
    out
}

/// The key id of a key that is given without one.
pub(super) fn fingerprint(spki: &[u8]) -> String {
    sha256(spki)[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse(file: &[u8]) -> Result<HashMap<String, [u8; 32]>, KeysInvalid> {
    let mut keys = HashMap::new();
    let mut add = |kid: String, key| match keys.insert(kid.clone(), key) {
        None if !kid.is_empty() => Ok(()),
        _ => Err(KeysInvalid::KeyId(kid)),
    };
    if file.trim_ascii_start().starts_with(b"{") {
        let file: File = serde_json::from_slice(file).map_err(|_| KeysInvalid::Form)?;
        for Entry { kid, pem } in file.keys {
            let der =
                SubjectPublicKeyInfoDer::from_pem_slice(pem.as_bytes()).map_err(|_| KeysInvalid::NoKey)?;
            let key = public_key(&der).ok_or_else(|| KeysInvalid::NotEd25519(kid.clone()))?;
            add(kid, key)?;
        }
    } else {
        for (index, der) in SubjectPublicKeyInfoDer::pem_slice_iter(file).enumerate() {
            let der = der.map_err(|_| KeysInvalid::Form)?;
            let key = public_key(&der).ok_or_else(|| KeysInvalid::NotEd25519((index + 1).to_string()))?;
            add(fingerprint(&der), key)?;
        }
    }
    if keys.is_empty() { Err(KeysInvalid::NoKey) } else { Ok(keys) }
}

fn public_key(spki: &[u8]) -> Option<[u8; 32]> {
    spki.strip_prefix(&SPKI)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::SigningKey;
    use super::*;

    /// Made with `openssl genpkey -algorithm ed25519`.
    const OPENSSL_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAZgfpxsxFeL7ebsaRJnYYuXC0Ehl+29t76bvkm2m6dCQ=\n-----END PUBLIC KEY-----\n";
    const OPENSSL_PRIVATE: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEICPICyZpskqaYhpYvnJT2A7PNPahv8WTr6LrpzMot2p9\n-----END PRIVATE KEY-----\n";
    /// Of the RSA algorithm.
    const RSA: &str = "-----BEGIN PUBLIC KEY-----\nMIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQC2UYv0xe2eKFQh205I54HvFUWt\nhjIozivhvT1IXBVeVSgtdwVVxOnkhVeDCC07c1JFFuqmofFz6ouIw+LUmeXuYeFR\nou2dkIIsoiHA/mGhWczCJeC7m9aBN68JkgHPx9/fK9kmrUd3zcE2jAuKWv+/W4+x\nAl2/xpU2ahe1kziIHwIDAQAB\n-----END PUBLIC KEY-----\n";

    fn sign(key: &SigningKey) -> String {
        key.sign(Claims::new("team", "web", 2000)).unwrap()
    }

    #[test]
    fn a_key_of_openssl_signs_and_verifies() {
        let key = SigningKey::from_pem(OPENSSL_PRIVATE).unwrap();
        assert_eq!(key.public_pem(), OPENSSL_PUBLIC);
        assert_eq!(key.kid(), "105f031a4045c0a3");
        let claims = Keys::new(OPENSSL_PUBLIC.as_bytes()).unwrap().verify(&sign(&key)).unwrap();
        assert_eq!((claims.ns.as_str(), claims.kid.as_str()), ("team", "105f031a4045c0a3"));
    }

    #[test]
    fn keys_are_chosen_by_their_id() {
        let (one, two) = (SigningKey::generate().unwrap(), SigningKey::generate().unwrap());
        let keys = Keys::new(format!("{}\n{}", one.public_pem(), two.public_pem()).as_bytes()).unwrap();
        assert!(keys.verify(&sign(&one)).is_ok() && keys.verify(&sign(&two)).is_ok());
        let swapped = one.with_kid(two.kid());
        assert_eq!(keys.verify(&sign(&swapped)).unwrap_err(), Refusal::SignatureInvalid);
        let unknown = two.with_kid("other");
        assert_eq!(keys.verify(&sign(&unknown)).unwrap_err(), Refusal::KeyUnknown);
    }

    #[test]
    fn ids_can_be_given_in_json() {
        let key = SigningKey::generate().unwrap();
        let file = json!({"keys": [{"kid": "2026-11", "pem": key.public_pem()}]}).to_string();
        let keys = Keys::new(file.as_bytes()).unwrap();
        assert_eq!(keys.verify(&sign(&key)).unwrap_err(), Refusal::KeyUnknown);
        assert!(keys.verify(&sign(&key.with_kid("2026-11"))).is_ok());
        assert_eq!(format!("{keys:?}"), r#"v2::Keys(["2026-11"])"#);
    }

    #[test]
    fn replaced_keys_no_longer_verify_even_remembered_tokens() {
        let (old, new) = (SigningKey::generate().unwrap(), SigningKey::generate().unwrap());
        let keys = Keys::new(old.public_pem().as_bytes()).unwrap();
        let token = sign(&old);
        assert!(keys.verify(&token).is_ok() && keys.verify(&token).is_ok());
        assert_eq!(keys.reload(b"garbage"), Err(KeysInvalid::NoKey));
        assert!(keys.verify(&token).is_ok(), "a bad file changes nothing");
        keys.reload(new.public_pem().as_bytes()).unwrap();
        assert_eq!(keys.verify(&token).unwrap_err(), Refusal::KeyUnknown);
        assert!(keys.verify(&sign(&new)).is_ok());
    }

    #[test]
    fn files_that_are_not_keys_are_refused() {
        let pem = SigningKey::generate().unwrap().public_pem();
        let twice = format!("{pem}{pem}");
        let twice_json =
            json!({"keys": [{"kid": "a", "pem": pem}, {"kid": "a", "pem": OPENSSL_PUBLIC}]}).to_string();
        let empty_kid = json!({"keys": [{"kid": "", "pem": pem}]}).to_string();
        for (file, error) in [
            ("", KeysInvalid::NoKey),
            ("{}", KeysInvalid::Form),
            (r#"{"keys":[]}"#, KeysInvalid::NoKey),
            (r#"{"keys":[{"kid":"a","pem":"x"}]}"#, KeysInvalid::NoKey),
            (RSA, KeysInvalid::NotEd25519("1".to_owned())),
            (OPENSSL_PRIVATE, KeysInvalid::NoKey),
            (&twice_json, KeysInvalid::KeyId("a".to_owned())),
            (&empty_kid, KeysInvalid::KeyId(String::new())),
        ] {
            assert_eq!(Keys::new(file.as_bytes()).unwrap_err(), error, "{file}");
        }
        assert!(matches!(Keys::new(twice.as_bytes()), Err(KeysInvalid::KeyId(_))));
    }

    #[test]
    fn a_payload_with_unknown_or_missing_fields_is_refused() {
        let key = SigningKey::generate().unwrap();
        let keys = Keys::new(key.public_pem().as_bytes()).unwrap();
        let kid = key.kid();
        for bad in [
            json!({"kid": kid, "ns": "a", "name": "b", "exp": 1, "only_from": "10.0.0.1"}),
            json!({"kid": kid, "ns": "a", "name": "b"}),
            json!({"kid": kid, "ns": "a", "exp": 1}),
            json!({"kid": kid, "ns": "a", "name": "b", "exp": -1}),
            json!({"kid": kid, "ns": "a", "name": "b", "exp": 1, "port": 80}),
            json!([]),
        ] {
            let token = key.sign_payload(&bad.to_string());
            assert_eq!(keys.verify(&token).unwrap_err(), Refusal::TokenMalformed, "{bad}");
        }
    }

    proptest! {
        #![proptest_config(crate::fuzz::config())]

        #[test]
        fn one_changed_character_spoils_a_token(at in 3_usize..150, to in "[A-Za-z0-9_.-]") {
            let key = SigningKey::from_pem(OPENSSL_PRIVATE).unwrap();
            let keys = Keys::new(OPENSSL_PUBLIC.as_bytes()).unwrap();
            let good = sign(&key);
            prop_assert!(keys.verify(&good).is_ok());
            let mut token = good.clone();
            token.replace_range(at..=at, &to);
            prop_assume!(token != good);
            prop_assert!(keys.verify(&token).is_err(), "{}", token);
        }

        #[test]
        fn any_text_gets_an_answer(token in "(v2\\.)?[ -~]{0,80}", file in "[ -~\n]{0,80}") {
            let keys = Keys::new(OPENSSL_PUBLIC.as_bytes()).unwrap();
            prop_assert!(keys.verify(&token).is_err());
            prop_assert!(Keys::new(file.as_bytes()).is_err());
        }
    }
}
