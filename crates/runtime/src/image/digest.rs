//! Digests: what an image is known by, and what everything that was fetched is checked against.

use std::fmt::{Display, Formatter};
use std::io::{self, Read};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::Sha256;

/// A SHA-256 digest, written `sha256:…`. No other algorithm is in use.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

/// Passes bytes on and digests them.
pub struct Hashing<R> {
    source: R,
    hash: Sha256,
    count: u64,
}

impl Digest {
    pub fn of(bytes: &[u8]) -> Self {
        Self(<Sha256 as sha2::Digest>::digest(bytes).into())
    }

    /// Without the algorithm: 64 characters, safe as a file name.
    pub fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Display for Digest {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl FromStr for Digest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not sha256: and 64 of 0-9 and a-f");
        let hex = text.strip_prefix("sha256:").ok_or_else(wrong)?;
        let lower = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
        if hex.len() != 64 || !hex.as_bytes().iter().all(lower) {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(hex.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
        }
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for Digest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

impl<R> Hashing<R> {
    pub fn new(source: R) -> Self {
        Self { source, hash: <Sha256 as sha2::Digest>::new(), count: 0 }
    }

    /// The digest of everything that was read, and how many bytes that were.
    pub fn finish(self) -> (Digest, u64) {
        let count = self.count;
        (self.take().1, count)
    }

    /// The source, and the digest of everything that was read from it.
    pub fn take(self) -> (R, Digest) {
        (self.source, Digest(sha2::Digest::finalize(self.hash).into()))
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buffer)?;
        sha2::Digest::update(&mut self.hash, &buffer[..count]);
        self.count += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_is_read_as_it_is_written() {
        let digest = Digest::of(b"");
        assert_eq!(
            digest.to_string(),
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
        assert_eq!(digest.to_string().parse(), Ok(digest));
    }

    #[test]
    fn anything_else_is_no_digest() {
        let hex = "a".repeat(64);
        for text in
            [hex.clone(), format!("sha512:{hex}"), format!("sha256:{}", "A".repeat(64)), "sha256:../x".into()]
        {
            assert!(text.parse::<Digest>().is_err(), "{text}");
        }
    }
}
