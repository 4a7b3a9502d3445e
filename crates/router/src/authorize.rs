//! Who may pass: everybody who knows the token.

use http::HeaderMap;
use http::header::AUTHORIZATION;
use subtle::ConstantTimeEq;

use crate::error::Error;

/// The one token of this router. Has no `Debug`, so it cannot reach a log.
pub struct Token(Option<Box<[u8]>>);

impl Token {
    /// `None` lets everybody in.
    pub fn new(token: Option<String>) -> Self {
        Self(token.map(|token| token.into_bytes().into()))
    }

    /// Takes as long for a token that is nearly right as for one that is all wrong.
    pub fn check(&self, headers: &HeaderMap) -> Result<(), Error> {
        let Some(wanted) = &self.0 else { return Ok(()) };
        let given = bearer(headers).ok_or(Error::Unauthenticated)?;
        if given.as_bytes().ct_eq(wanted).into() { Ok(()) } else { Err(Error::Unauthenticated) }
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(token: Option<&str>, header: Option<&str>) -> Result<(), Error> {
        let mut headers = HeaderMap::new();
        if let Some(header) = header {
            headers.insert(AUTHORIZATION, header.parse().unwrap());
        }
        Token::new(token.map(str::to_owned)).check(&headers)
    }

    #[test]
    fn only_the_right_token_passes() {
        for good in ["Bearer secret", "bearer secret", "BEARER   secret "] {
            assert_eq!(check(Some("secret"), Some(good)), Ok(()), "{good}");
        }
        for bad in ["Bearer secre", "Bearer secret2", "Bearer ", "Bearer", "Basic secret", "secret"] {
            assert_eq!(check(Some("secret"), Some(bad)), Err(Error::Unauthenticated), "{bad}");
        }
        assert_eq!(check(Some("secret"), None), Err(Error::Unauthenticated));
    }

    #[test]
    fn without_a_token_everybody_passes() {
        assert_eq!(check(None, None), Ok(()));
        assert_eq!(check(None, Some("Bearer whatever")), Ok(()));
    }
}
