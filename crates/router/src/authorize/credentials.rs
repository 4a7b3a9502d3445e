//! Reads the secret out of `Authorization`.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use http::header::AUTHORIZATION;

/// Longer secrets are not looked at.
const MAX_LENGTH: usize = 16 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    Bearer,
    Basic,
}

/// The bearer token, or the password of `Basic` with any user: clients that can only take a URL send that for
/// `http://token:SECRET@host`. The first `Authorization` header counts.
pub fn from_header(headers: &HeaderMap) -> Option<(Scheme, Cow<'_, str>)> {
    let text = std::str::from_utf8(headers.get(AUTHORIZATION)?.as_bytes()).ok()?.trim();
    let (scheme, secret) = text.split_once(' ')?;
    let secret = secret.trim();
    if secret.is_empty() || secret.len() > MAX_LENGTH {
        return None;
    }
    if scheme.eq_ignore_ascii_case("bearer") {
        Some((Scheme::Bearer, Cow::Borrowed(secret)))
    } else if scheme.eq_ignore_ascii_case("basic") {
        let pair = String::from_utf8(STANDARD.decode(secret).ok()?).ok()?;
        let (_, password) = pair.split_once(':')?;
        (!password.is_empty()).then(|| (Scheme::Basic, Cow::Owned(password.to_owned())))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(header: &str) -> Option<(Scheme, String)> {
        let headers = [(AUTHORIZATION, header.parse().unwrap())].into_iter().collect();
        from_header(&headers).map(|(scheme, secret)| (scheme, secret.into_owned()))
    }

    #[test]
    fn bearer_is_read_in_any_case_and_trimmed() {
        for good in ["Bearer secret", "bearer secret", "BEARER   secret "] {
            assert_eq!(read(good), Some((Scheme::Bearer, "secret".to_owned())), "{good}");
        }
        for bad in ["", "Bearer", "Bearer ", "Bearer    ", "secret", "Digest secret", "Bearersecret"] {
            assert_eq!(read(bad), None, "{bad}");
        }
        assert_eq!(read(&format!("Bearer {}", "x".repeat(MAX_LENGTH + 1))), None);
    }

    #[test]
    fn the_password_of_basic_is_the_secret() {
        let basic = |pair: &str| read(&format!("Basic {}", STANDARD.encode(pair)));
        assert_eq!(basic("token:secret"), Some((Scheme::Basic, "secret".to_owned())));
        assert_eq!(basic(":a:b"), Some((Scheme::Basic, "a:b".to_owned())));
        for bad in ["", "secret", "secret:"] {
            assert_eq!(basic(bad), None, "{bad}");
        }
        assert_eq!(read("Basic not base64"), None);
        assert_eq!(read("Basic /w=="), None, "not UTF-8");
    }

    proptest! {
        #![proptest_config(crate::fuzz::config())]

        #[test]
        fn any_header_gets_an_answer(header in "(bearer |basic )?[ -~]{0,60}") {
            let _ = read(&header);
        }
    }
}
