//! Who may reach which sandbox.
//!
//! ```text
//! trusted connection ──────────────────────────────┐
//! Authorization ─┬ shared token ───────────────────┤
//!                ├ v1 / v2 scoped token ───────────┼─► Pass (identity)
//!                └ TokenReview ─► SubjectAccessReview
//! ?sandbox_token= ─ scoped token ─┬ navigation ─► 302 and a cookie
//! Cookie          ─ scoped token ─┴ origin check ──┘
//! ```
//!
//! Any configured method may allow a request; with none configured every request is refused. The decision uses the
//! request and its address only, never the directory, so a refused caller does not learn which sandboxes exist.

mod cache;
mod credentials;
mod links;
mod local;
mod refusal;
mod review;
mod scoped;
mod shared;

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::uri::{PathAndQuery, Uri};
use http::{HeaderMap, Method, Request, Response};

pub use links::{Links, LinksInvalid, SameSite};
pub use refusal::Refusal;
pub use review::{Access, ReviewConfig};
pub use scoped::MintError;
pub use scoped::v1::{self, SecretTooShort};
pub use scoped::v2;
pub use shared::Secret;

use crate::address::{Address, Addressing, Route};
use crate::error::Error;
use crate::limits::Exceeded;
use credentials::Scheme;
use review::Review;
use shared::SharedTokens;

/// Which methods may allow a request. The default allows none.
#[derive(Default)]
pub struct Authorization {
    /// Check nothing. Only for a router that is reachable by trusted callers alone.
    pub allow_all: bool,
    /// `Authorization: Bearer <secret>`, or the secret as password of `Basic`: every sandbox.
    pub tokens: Vec<Secret>,
    /// Tokens for one sandbox, signed with a shared secret.
    pub scoped_v1: Option<v1::Key>,
    /// Tokens for one sandbox, signed with Ed25519. Keep a clone of the `Arc` to reload the keys.
    pub scoped_v2: Option<Arc<v2::Keys>>,
    /// Tokens of Kubernetes, e.g. of service accounts.
    pub review: Option<ReviewConfig>,
    /// Signed links and cookies for browsers. Needs a scoped token method.
    pub links: Option<Links>,
}

/// Decides whether a request may pass.
pub struct Authorizer {
    allow_all: bool,
    shared: SharedTokens,
    scoped_v1: Option<v1::Key>,
    scoped_v2: Option<Arc<v2::Keys>>,
    review: Option<Review>,
    links: Option<Links>,
    addressing: Addressing,
}

/// A request that asks to pass.
#[derive(Clone, Copy)]
pub struct Asking<'a> {
    pub method: &'a Method,
    /// As received, before a path prefix is stripped.
    pub uri: &'a Uri,
    pub headers: &'a HeaderMap,
    pub route: &'a Route,
    pub connection: Connection,
    /// The caller's address was refused too often. Then only credentials count that cannot be guessed and that no API
    /// server needs to be asked about: behind a proxy, many callers may have one address.
    pub limited: Option<Exceeded>,
}

/// What the router knows about a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Connection {
    /// The API server authorised it, e.g. for `kubectl port-forward`.
    pub trusted: bool,
    /// The caller speaks TLS, with this router or with a trusted proxy.
    pub tls: bool,
}

/// The caller, for the access log and for limits. Never holds a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub by: By,
    /// The user, token or sandbox; empty when the method knows none.
    pub subject: Arc<str>,
}

/// The method that allowed a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum By {
    AllowAll,
    TrustedConnection,
    SharedToken,
    ScopedToken,
    Review,
}

/// A request may pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pass {
    pub identity: Identity,
    /// The token is for the Sandbox with this UID only.
    pub uid: Option<String>,
}

/// What happens to a request that was not refused.
#[derive(Debug)]
pub enum Verdict {
    Allow(Pass),
    /// A signed link was opened: the browser keeps the token as a cookie and asks again without it.
    Redirect(Response<Bytes>),
}

// === impl Authorization ===

impl Authorization {
    pub fn allow_all() -> Self {
        Self { allow_all: true, ..Self::default() }
    }

    /// One secret for every sandbox. An empty secret allows nothing.
    pub fn shared_token(secret: &str) -> Self {
        Self { tokens: Secret::new(secret).into_iter().collect(), ..Self::default() }
    }
}

// === impl Authorizer ===

impl Authorizer {
    pub fn new(
        config: Authorization,
        addressing: Addressing,
        client: kube::Client,
    ) -> Result<Self, LinksInvalid> {
        let Authorization { allow_all, tokens, scoped_v1, scoped_v2, review, links } = config;
        if let Some(links) = &links {
            links.validate(scoped_v1.is_some() || scoped_v2.is_some())?;
        }
        let review = review.map(|config| Review::new(config, client));
        let shared = SharedTokens::new(tokens);
        Ok(Self { allow_all, shared, scoped_v1, scoped_v2, review, links, addressing })
    }

    /// Decides about one request. Only a token review that is not cached waits.
    pub async fn authorize(&self, asking: Asking<'_>) -> Result<Verdict, Error> {
        if asking.connection.trusted && local::is_local(asking, self.addressing.domain.as_ref()) {
            return Ok(Identity::unnamed(By::TrustedConnection).into());
        }
        if self.allow_all {
            return Ok(Identity::unnamed(By::AllowAll).into());
        }
        match (self.check(asking).await, asking.limited) {
            (Err(Error::Refused(_)), Some(limited)) => Err(limited.into()),
            (verdict, _) => verdict,
        }
    }

    async fn check(&self, asking: Asking<'_>) -> Result<Verdict, Error> {
        let mut refused = None;
        let given = credentials::from_header(asking.headers);
        if let Some((scheme, secret)) = &given {
            match self.check_header(*scheme, secret, asking).await {
                Ok(pass) => return Ok(Verdict::Allow(pass)),
                Err(error) => refused = Some(error),
            }
        }
        if let Some(links) = &self.links {
            match self.check_browser(links, asking) {
                Some(Ok(verdict)) => return Ok(verdict),
                Some(Err(refusal)) => refused = refused.or(Some(refusal.into())),
                None => {}
            }
        }
        match refused {
            Some(error) => Err(error),
            None if given.is_none() && self.review.as_ref().is_some_and(Review::allows_missing_token) => {
                Ok(Identity::unnamed(By::Review).into())
            }
            None if asking.connection.trusted => Err(Refusal::NotLocal.into()),
            None => Err(Refusal::NoCredentials.into()),
        }
    }

    async fn check_header(&self, scheme: Scheme, secret: &str, asking: Asking<'_>) -> Result<Pass, Error> {
        if asking.limited.is_none()
            && let Some(identity) = self.shared.check(secret)
        {
            return Ok(Pass { identity, uid: None });
        }
        if let Some(checked) = self.check_scoped(secret, asking) {
            return Ok(checked?.0);
        }
        match &self.review {
            // A password is not sent to the API server: it was meant for another system.
            Some(review) if scheme == Scheme::Bearer => {
                let identity = review.check(secret, asking).await?;
                Ok(Pass { identity, uid: None })
            }
            _ => Err(Refusal::UnknownCredentials.into()),
        }
    }

    /// `None` when the text is not a scoped token of a configured version.
    fn check_scoped(&self, token: &str, asking: Asking<'_>) -> Option<Result<(Pass, Scope), Refusal>> {
        let (v1, v2) = (self.scoped_v1.as_ref(), self.scoped_v2.as_ref());
        if let Some(key) = v1.filter(|_| v1::is_v1(token)) {
            return Some(
                key.check(token, &asking.route.address, now())
                    .map(|(pass, exp)| (pass, Scope { expires: exp, port: false })),
            );
        }
        let keys = v2.filter(|_| v2::is_v2(token))?;
        Some(keys.verify(token).and_then(|claims| {
            claims.check(asking.method, asking.route.path(asking.uri), &asking.route.address, now())?;
            claims.check_overrides(asking.headers)?;
            Ok((claims.pass(), Scope { expires: claims.exp, port: claims.port.is_some() }))
        }))
    }

    /// Checks the link's parameter, then the cookies. `None` without either.
    fn check_browser(&self, links: &Links, asking: Asking<'_>) -> Option<Result<Verdict, Refusal>> {
        let mut refused = None;
        if let Some(token) = links.token_in_query(asking.uri.query()) {
            match self.check_scoped(token, asking).unwrap_or(Err(Refusal::TokenMalformed)) {
                Ok((_, scope)) if links.redirects(asking) => {
                    let max_age = scope.expires.saturating_sub(now());
                    let path = self.addressing.path_of(&asking.route.address, scope.port);
                    let path = path.filter(|_| asking.route.target.is_some());
                    let response = links.redirect(asking.uri, token, path.as_deref().unwrap_or("/"), max_age);
                    return Some(Ok(Verdict::Redirect(response)));
                }
                Ok((pass, _)) => return Some(Ok(Verdict::Allow(pass))),
                Err(refusal) => refused = Some(refusal),
            }
        }
        for token in links.tokens_in_cookies(asking.headers) {
            match self.check_scoped(token, asking).unwrap_or(Err(Refusal::TokenMalformed)) {
                Ok((pass, _)) => {
                    return Some(links.check_origin(asking).map(|()| Verdict::Allow(pass)));
                }
                Err(refusal) => refused = refused.or(Some(refusal)),
            }
        }
        refused.map(Err)
    }

    /// Removes every credential of this router from a request that goes to a sandbox: sandboxes run untrusted code.
    /// Also gives it the path that the sandbox sees.
    pub fn clean_request<B>(&self, route: &Route, request: &mut Request<B>) {
        if let Some(target) = &route.target {
            set_target(request.uri_mut(), target.clone());
        }
        request.headers_mut().remove(http::header::AUTHORIZATION);
        if let Some(links) = &self.links {
            links.clean_uri(request.uri_mut());
            links.clean_headers(request.headers_mut());
        }
    }

    /// Keeps a sandbox from setting the router's own cookie.
    pub fn clean_response(&self, headers: &mut HeaderMap) {
        if let Some(links) = &self.links {
            links.clean_response(headers);
        }
    }
}

/// What a cookie for a token may cover.
struct Scope {
    expires: u64,
    /// The token is for some ports only, so its cookie is for one port.
    port: bool,
}

/// Replaces path and query. The authority, which HTTP/2 has instead of `Host`, stays.
fn set_target(uri: &mut Uri, target: PathAndQuery) {
    let mut parts = std::mem::take(uri).into_parts();
    parts.path_and_query = Some(target.clone());
    *uri = Uri::from_parts(parts).unwrap_or_else(|_| Uri::from(target));
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

// === impl Identity ===

impl Identity {
    fn unnamed(by: By) -> Self {
        thread_local!(static EMPTY: Arc<str> = Arc::from(""));
        Self { by, subject: EMPTY.with(Clone::clone) }
    }

    /// The subject stands for one caller; otherwise callers are told apart by their address.
    pub fn is_individual(&self) -> bool {
        matches!(self.by, By::ScopedToken | By::Review) && !self.subject.is_empty()
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = match self.by {
            By::AllowAll => "anonymous",
            By::TrustedConnection => "trusted-connection",
            By::SharedToken => "shared-token",
            By::ScopedToken => "scoped-token",
            By::Review => "user",
        };
        if self.subject.is_empty() { write!(out, "{by}") } else { write!(out, "{by}:{}", self.subject) }
    }
}

impl From<Identity> for Verdict {
    fn from(identity: Identity) -> Self {
        Self::Allow(Pass { identity, uid: None })
    }
}

// === impl Pass ===

impl Pass {
    /// Narrows the address to what the token allows.
    pub fn bind(&self, address: &mut Address) {
        if let Some(uid) = &self.uid {
            address.uid = Some(uid.clone());
        }
    }
}

#[cfg(test)]
mod tests;
