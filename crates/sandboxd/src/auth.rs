//! The optional bearer token. Without one every caller is served: the sandbox's network lets only the router in.

use std::path::{Path, PathBuf};

use hyper::header::AUTHORIZATION;
use hyper::{HeaderMap, Method};
use subtle::ConstantTimeEq;

/// Not printable: it has no `Debug`.
pub struct Token(Vec<u8>);

/// The file that holds the token: the flag's, else that of `SANDBOXD_TOKEN_FILE`.
pub fn file(flag: Option<PathBuf>) -> Option<PathBuf> {
    flag.or_else(|| {
        std::env::var_os("SANDBOXD_TOKEN_FILE").filter(|name| !name.is_empty()).map(PathBuf::from)
    })
}

impl Token {
    pub fn read(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let bytes =
            std::fs::read(path).map_err(|error| format!("cannot read the token file {shown}: {error}"))?;
        let token = bytes.trim_ascii();
        if token.is_empty() {
            return Err(format!("the token file {shown} is empty"));
        }
        Ok(Self(token.to_owned()))
    }

    /// Probes need no token: a kubelet has none.
    pub fn allows(&self, method: &Method, path: &str, headers: &HeaderMap) -> bool {
        let is_probe = matches!(*method, Method::GET | Method::HEAD) && matches!(path, "/" | "/v1/health");
        is_probe || headers.get(AUTHORIZATION).is_some_and(|given| self.matches(given.as_bytes()))
    }

    fn matches(&self, header: &[u8]) -> bool {
        let Some((scheme, token)) = header.split_at_checked(7) else { return false };
        scheme.eq_ignore_ascii_case(b"Bearer ") && bool::from(token.trim_ascii().ct_eq(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_token_and_the_probes_are_allowed() {
        let token = Token(b"secret".to_vec());
        let allows = |method: Method, path: &str, header: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(header) = header {
                headers.insert(AUTHORIZATION, header.parse().unwrap());
            }
            token.allows(&method, path, &headers)
        };
        assert!(allows(Method::GET, "/", None) && allows(Method::GET, "/v1/health", None));
        assert!(allows(Method::POST, "/execute", Some("Bearer secret")));
        assert!(allows(Method::POST, "/execute", Some("bearer secret")));
        for header in [
            None,
            Some("Bearer"),
            Some("Bearer "),
            Some("Bearer secre"),
            Some("Bearer secrets"),
            Some("Basic secret"),
        ] {
            assert!(!allows(Method::POST, "/execute", header), "{header:?}");
        }
        assert!(!allows(Method::GET, "/v1/files/", None));
        assert!(!allows(Method::POST, "/", None));
    }
}
