//! What a v2 token allows, and whether a request stays within it.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, Method};
use serde::{Deserialize, Serialize};

use super::super::{MintError, check_label};
use super::path;
use crate::address::Address;
use crate::authorize::{By, Identity, Pass, Refusal};

const METHOD_OVERRIDES: [&str; 3] = ["x-http-method-override", "x-http-method", "x-method-override"];
const PATH_OVERRIDES: [&str; 2] = ["x-original-url", "x-rewrite-url"];

/// The payload. A token with a field that this version does not know is refused: it may be a restriction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claims {
    /// The key that signed. Set by [`super::SigningKey::sign`].
    pub kid: String,
    pub ns: String,
    pub name: String,
    /// Only the Sandbox object with this UID, not a later one of the same name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Only these ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<Vec<u16>>,
    /// Only these methods, in capitals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<Vec<String>>,
    /// Only this path inside the sandbox, or with `*` at the end only paths that begin so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Seconds since 1970 from which on the token is refused.
    pub exp: u64,
    /// Seconds since 1970 before which the token is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nbf: Option<u64>,
    /// A name for this token, shown in the access log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jti: Option<String>,
}

impl Claims {
    /// Everything in one sandbox until `exp`.
    pub fn new(namespace: &str, name: &str, exp: u64) -> Self {
        Self {
            kid: String::new(),
            ns: namespace.to_owned(),
            name: name.to_owned(),
            uid: None,
            port: None,
            method: None,
            path: None,
            exp,
            nbf: None,
            jti: None,
        }
    }

    /// Whether a request to `path` inside the addressed sandbox is within the token. Pure.
    pub fn check(&self, method: &Method, path: &str, address: &Address, now: u64) -> Result<(), Refusal> {
        if now >= self.exp {
            return Err(Refusal::Expired);
        }
        if self.nbf.is_some_and(|nbf| now < nbf) {
            return Err(Refusal::NotYetValid);
        }
        if self.ns != address.namespace || self.name != address.name {
            return Err(Refusal::OtherSandbox);
        }
        if let (Some(wanted), Some(given)) = (&self.uid, &address.uid)
            && wanted != given
        {
            return Err(Refusal::OtherUid);
        }
        if self.port.as_ref().is_some_and(|ports| !ports.contains(&address.port)) {
            return Err(Refusal::OtherPort);
        }
        let is_method = |allowed: &String| allowed == method.as_str();
        if self.method.as_ref().is_some_and(|methods| !methods.iter().any(is_method)) {
            return Err(Refusal::OtherMethod);
        }
        self.path.as_ref().map_or(Ok(()), |allowed| path::check(allowed, path))
    }

    /// Refuses headers by which some servers take another method or path than the request's.
    pub fn check_overrides(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        // Servers that make variables of headers read `_` as `-`.
        let spelled = |name: &HeaderName| name.as_str().replace('_', "-");
        let has = |names: &[&str]| headers.keys().any(|name| names.contains(&spelled(name).as_str()));
        if self.method.is_some() && has(&METHOD_OVERRIDES) {
            return Err(Refusal::OtherMethod);
        }
        if self.path.is_some() && has(&PATH_OVERRIDES) {
            return Err(Refusal::AmbiguousPath);
        }
        Ok(())
    }

    pub fn pass(&self) -> Pass {
        let Self { kid, ns, name, .. } = self;
        let subject = match &self.jti {
            Some(jti) => format!("{kid}/{ns}/{name}/{jti}"),
            None => format!("{kid}/{ns}/{name}"),
        };
        Pass {
            identity: Identity { by: By::ScopedToken, subject: Arc::from(subject) },
            uid: self.uid.clone(),
        }
    }

    /// Refuses to sign what could never be used, or is not what its maker meant.
    pub(super) fn validate(&self) -> Result<(), MintError> {
        check_label(&self.ns)?;
        check_label(&self.name)?;
        if self.exp == 0 || self.nbf.is_some_and(|nbf| nbf >= self.exp) {
            return Err(MintError::Lifetime);
        }
        match &self.port {
            Some(ports) if ports.is_empty() => return Err(MintError::Empty("ports")),
            Some(ports) if ports.contains(&0) => return Err(MintError::Port),
            _ => {}
        }
        if let Some(methods) = &self.method {
            let is_method = |text: &str| {
                !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-')
            };
            match methods.iter().find(|text| !is_method(text)) {
                Some(bad) => return Err(MintError::Method(bad.clone())),
                None if methods.is_empty() => return Err(MintError::Empty("methods")),
                None => {}
            }
        }
        match &self.path {
            Some(path) if !path.starts_with('/') || path.contains('?') => Err(MintError::Path(path.clone())),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(claims: &Claims, method: &str, path: &str, port: u16) -> Result<(), Refusal> {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        claims.check(&method, path, &Address::new("team", "web", port), 1000)
    }

    #[test]
    fn every_claim_narrows_the_token() {
        let all = Claims::new("team", "web", 2000);
        assert_eq!(check(&all, "POST", "/x", 80), Ok(()));
        for (claims, refusal) in [
            (Claims { exp: 1000, ..all.clone() }, Refusal::Expired),
            (Claims { nbf: Some(1001), ..all.clone() }, Refusal::NotYetValid),
            (Claims { ns: "other".to_owned(), ..all.clone() }, Refusal::OtherSandbox),
            (Claims { name: "other".to_owned(), ..all.clone() }, Refusal::OtherSandbox),
            (Claims { port: Some(vec![8888, 81]), ..all.clone() }, Refusal::OtherPort),
            (Claims { port: Some(vec![]), ..all.clone() }, Refusal::OtherPort),
            (Claims { method: Some(vec!["GET".to_owned()]), ..all.clone() }, Refusal::OtherMethod),
            (Claims { path: Some("/y".to_owned()), ..all.clone() }, Refusal::OtherPath),
        ] {
            assert_eq!(check(&claims, "POST", "/x", 80), Err(refusal), "{claims:?}");
        }
        let narrow = Claims {
            port: Some(vec![80]),
            method: Some(vec!["POST".to_owned()]),
            path: Some("/x".to_owned()),
            nbf: Some(1000),
            ..all
        };
        assert_eq!(check(&narrow, "POST", "/x", 80), Ok(()));
    }

    #[test]
    fn a_uid_binds_the_address_even_when_the_caller_sends_none() {
        let claims = Claims { uid: Some("u-1".to_owned()), ..Claims::new("team", "web", 2000) };
        let mut address = Address::new("team", "web", 80);
        assert_eq!(claims.check(&Method::GET, "/", &address, 1000), Ok(()));
        claims.pass().bind(&mut address);
        assert_eq!(address.uid.as_deref(), Some("u-1"));
        address.uid = Some("u-2".to_owned());
        assert_eq!(claims.check(&Method::GET, "/", &address, 1000), Err(Refusal::OtherUid));
    }

    #[test]
    fn what_could_never_be_used_is_not_signed() {
        let all = Claims::new("team", "web", 2000);
        assert_eq!(all.validate(), Ok(()));
        for bad in [
            Claims { ns: "Team".to_owned(), ..all.clone() },
            Claims { name: String::new(), ..all.clone() },
            Claims { nbf: Some(2000), ..all.clone() },
            Claims { port: Some(vec![]), ..all.clone() },
            Claims { port: Some(vec![0]), ..all.clone() },
            Claims { method: Some(vec![]), ..all.clone() },
            Claims { method: Some(vec!["get".to_owned()]), ..all.clone() },
            Claims { path: Some("x".to_owned()), ..all.clone() },
            Claims { path: Some("/x?y".to_owned()), ..all.clone() },
        ] {
            assert!(bad.validate().is_err(), "{bad:?}");
        }
    }
}
