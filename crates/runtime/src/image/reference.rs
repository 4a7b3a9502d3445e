//! Names of images: `[HOST[:PORT]/]PATH[:TAG][@DIGEST]`. Pure.

use std::fmt::{Display, Formatter};

use super::Error;
use super::digest::Digest;

/// A name that was read and found right.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reference {
    /// `None`: a short name, which is found on this machine only.
    pub registry: Option<String>,
    pub repository: String,
    pub tag: Option<String>,
    /// Wins over the tag.
    pub digest: Option<Digest>,
}

impl Reference {
    pub fn parse(name: &str) -> Result<Self, Error> {
        let wrong = |problem: String| Error::Name { name: name.to_owned(), problem };
        if name.len() > 512 {
            return Err(wrong("it is longer than 512 characters".into()));
        }
        let (rest, digest) = match name.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest.parse().map_err(wrong)?)),
            None => (name, None),
        };
        // A colon before the last slash belongs to a port.
        let (path, tag) = match rest.rsplit_once(':') {
            Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
            _ => (rest, None),
        };
        if let Some(tag) = tag.filter(|tag| !is_tag(tag)) {
            return Err(wrong(format!("{tag:?} is not a tag (1 to 128 letters, digits, `_`, `.` and `-`)")));
        }
        let (registry, repository) = match path.split_once('/') {
            Some((first, rest)) if is_host(first) => (Some(first.to_owned()), rest),
            _ => (None, path),
        };
        if let Some(part) = repository.split('/').find(|part| !is_part(part)) {
            return Err(wrong(format!(
                "{part:?} is not lowercase letters and digits, joined by `.`, `_` or `-`"
            )));
        }
        Ok(Self { registry, repository: repository.to_owned(), tag: tag.map(str::to_owned), digest })
    }

    /// The same image at a registry, for a short name. The default may hold a path as well: `HOST/PATH`.
    pub fn at(&self, default_registry: &str) -> Self {
        let (host, path) =
            default_registry.trim_end_matches('/').split_once('/').unwrap_or((default_registry, ""));
        let repository = match path {
            "" => self.repository.clone(),
            path => format!("{path}/{}", self.repository),
        };
        Self { registry: Some(host.trim_end_matches('/').to_owned()), repository, ..self.clone() }
    }

    /// Where it is, without tag and digest.
    pub fn place(&self) -> String {
        match &self.registry {
            Some(registry) => format!("{registry}/{}", self.repository),
            None => self.repository.clone(),
        }
    }

    /// What a registry calls it: the digest, else the tag.
    pub fn version(&self) -> String {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => digest.to_string(),
            (None, Some(tag)) => tag.clone(),
            (None, None) => "latest".to_owned(),
        }
    }

    /// Whether another image may have this name tomorrow without anybody saying so.
    pub fn floats(&self) -> bool {
        self.digest.is_none() && self.tag.as_deref().is_none_or(|tag| tag == "latest")
    }
}

/// The full name, under which the store knows the image.
impl Display for Reference {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let separator = if self.digest.is_some() { '@' } else { ':' };
        write!(f, "{}{separator}{}", self.place(), self.version())
    }
}

fn is_host(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b':' | b'[' | b']');
    let begins = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'[');
    begins && text.bytes().all(allowed) && (text.contains(['.', ':']) || text == "localhost")
}

fn is_tag(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=128).contains(&text.len())
        && text.bytes().all(|byte| word(byte) || byte == b'.' || byte == b'-')
        && text.bytes().next().is_some_and(word)
}

fn is_part(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let edges = text.bytes().next().is_some_and(word) && text.bytes().next_back().is_some_and(word);
    edges && text.bytes().all(|byte| word(byte) || matches!(byte, b'.' | b'_' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(name: &str) -> String {
        Reference::parse(name).expect("valid").to_string()
    }

    #[test]
    fn names_get_their_tag_and_keep_their_registry() {
        let digest = Digest::of(b"x");
        for (name, expected) in [
            ("app", "app:latest".to_owned()),
            ("team/app:v1", "team/app:v1".to_owned()),
            ("localhost/app", "localhost/app:latest".to_owned()),
            ("registry.test:5000/a/b", "registry.test:5000/a/b:latest".to_owned()),
            ("[::1]:5000/a:B_1.2-x", "[::1]:5000/a:B_1.2-x".to_owned()),
            (&format!("registry.test/a:v1@{digest}"), format!("registry.test/a@{digest}")),
        ] {
            assert_eq!(full(name), expected);
        }
        assert_eq!(Reference::parse("team/app").expect("valid").registry, None, "a word is no host");
    }

    #[test]
    fn default_registry_may_hold_a_path() {
        let short = Reference::parse("app:1").expect("valid");
        assert_eq!(short.at("registry.test").to_string(), "registry.test/app:1");
        assert_eq!(short.at("registry.test:5000/team/").to_string(), "registry.test:5000/team/app:1");
    }

    #[test]
    fn names_that_are_none_are_refused() {
        let long = "a".repeat(600);
        for name in [
            "",
            "App",
            "a//b",
            "/a",
            "a:",
            "a:b c",
            "a@sha256:12",
            "../etc",
            "a/../b",
            "registry.test/",
            &long,
            "a b",
        ] {
            assert!(matches!(Reference::parse(name), Err(Error::Name { .. })), "{name:?} was taken");
        }
    }

    #[test]
    fn only_latest_floats() {
        for (name, floats) in [("a", true), ("a:latest", true), ("a:1", false)] {
            assert_eq!(Reference::parse(name).expect("valid").floats(), floats, "{name}");
        }
        assert!(!Reference::parse(&format!("a@{}", Digest::of(b""))).expect("valid").floats());
    }
}
