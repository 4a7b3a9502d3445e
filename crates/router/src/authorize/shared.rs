//! One secret for every sandbox: what `asb up` and `ROUTER_AUTH_TOKEN` use.

use std::fmt;
use std::sync::Arc;

use subtle::{Choice, ConstantTimeEq};

use super::{By, Identity};

/// A shared token. Its `Debug` does not show it.
#[derive(Clone)]
pub struct Secret(Box<[u8]>);

impl Secret {
    /// White space around the secret is not part of it. `None` when nothing is left.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        (!text.is_empty()).then(|| Self(text.as_bytes().into()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Secret(..)")
    }
}

/// The configured secrets, each with the identity of its callers.
pub struct SharedTokens {
    secrets: Vec<Secret>,
    identity: Identity,
}

impl SharedTokens {
    pub fn new(secrets: Vec<Secret>) -> Self {
        Self { secrets, identity: Identity { by: By::SharedToken, subject: Arc::from("") } }
    }

    /// Takes as long for a nearly right secret as for a wrong one; only its length shows.
    pub fn check(&self, given: &str) -> Option<Identity> {
        let known = self
            .secrets
            .iter()
            .fold(Choice::from(0), |known, secret| known | given.as_bytes().ct_eq(&secret.0));
        bool::from(known).then(|| self.identity.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_configured_secret_passes() {
        let tokens = SharedTokens::new(["one", " two\n"].into_iter().filter_map(Secret::new).collect());
        assert!(tokens.check("one").is_some() && tokens.check("two").is_some());
        for bad in ["", "on", "one2", "onetwo", " two", "One"] {
            assert!(tokens.check(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn no_secret_and_an_empty_secret_allow_nothing() {
        for secrets in [vec![], vec![""], vec!["  \n"]] {
            let tokens = SharedTokens::new(secrets.into_iter().filter_map(Secret::new).collect());
            assert!(tokens.check("").is_none() && tokens.check(" ").is_none());
        }
    }

    #[test]
    fn a_secret_is_not_printed() {
        assert_eq!(format!("{:?}", Secret::new("hunter2")), "Some(Secret(..))");
    }
}
