//! Asks the Kubernetes API who a token belongs to, and whether that user may reach the sandbox.
//!
//! The user needs a verb on `sandboxes/proxy` of `agents.x-k8s.io`: `get` for GET, HEAD and OPTIONS, `create` for every
//! other method and for WebSockets and other tunnels.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request};
use ring::digest::{Context, SHA256};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::cache::{Cache, Failed, Key, Times};
use super::{Asking, By, Identity, Refusal};
use crate::error::Error;
use crate::headers;

const TIMEOUT: Duration = Duration::from_secs(3);
/// Calls to the API at once, so that a flood of unknown tokens is not passed on to the API server.
const CONCURRENT_CALLS: usize = 32;

/// How tokens of Kubernetes are checked.
#[derive(Debug, Clone)]
pub struct ReviewConfig {
    /// The token must be for one of these; empty accepts tokens for the API server itself.
    pub audiences: Vec<String>,
    pub access: Access,
    /// How long an allowed answer is remembered.
    pub ttl: Duration,
    /// How long a refusal is remembered.
    pub refused_ttl: Duration,
    /// How much longer an allowed answer may serve while the API server is away. Zero turns this off.
    pub stale: Duration,
    /// Remembered tokens, and remembered pairs of token and sandbox.
    pub cache_size: NonZeroUsize,
    /// Let requests without any token pass, as the reference router does without `--authz-tokenreview-require-token`.
    pub allow_missing_token: bool,
}

/// What a known user may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Access {
    /// What a SubjectAccessReview allows for the sandbox.
    #[default]
    Reviewed,
    /// Every sandbox, as in the reference router's `tokenreview` mode.
    AnySandbox,
}

impl Default for ReviewConfig {
    fn default() -> Self {
        Self {
            audiences: Vec::new(),
            access: Access::Reviewed,
            ttl: Duration::from_secs(30),
            refused_ttl: Duration::from_secs(30),
            stale: Duration::ZERO,
            cache_size: NonZeroUsize::new(2048).expect("not zero"),
            allow_missing_token: false,
        }
    }
}

pub struct Review {
    config: ReviewConfig,
    client: kube::Client,
    calls: Semaphore,
    users: Cache<Arc<User>>,
    rights: Cache<()>,
}

/// A user as Kubernetes describes it; passed back unchanged when asking for rights.
#[derive(Debug)]
struct User {
    name: Arc<str>,
    spec: Value,
}

#[derive(Deserialize)]
struct Reviewed<S> {
    #[serde(default = "Option::default")]
    status: Option<S>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct TokenStatus {
    authenticated: bool,
    user: UserInfo,
    audiences: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct UserInfo {
    username: String,
    uid: String,
    groups: Vec<String>,
    extra: Value,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct AccessStatus {
    allowed: bool,
    denied: bool,
}

// === impl Review ===

impl Review {
    pub fn new(config: ReviewConfig, client: kube::Client) -> Self {
        let times = Times { allowed: config.ttl, refused: config.refused_ttl, stale: config.stale };
        let users = Cache::new(config.cache_size, times);
        let rights = Cache::new(config.cache_size, times);
        Self { config, client, calls: Semaphore::new(CONCURRENT_CALLS), users, rights }
    }

    pub fn allows_missing_token(&self) -> bool {
        self.config.allow_missing_token
    }

    /// The user that a token belongs to, when it may send this request to the sandbox.
    pub async fn check(&self, token: &str, asking: Asking<'_>) -> Result<Identity, Error> {
        let id = hash(&[token.as_bytes()]);
        let user = match asking.limited {
            None => {
                let user = self.users.get(id, || Box::pin(self.ask_user(token))).await;
                user.map_err(|failed| error("tokenreview", failed))??
            }
            Some(limited) => self.users.known(&id).ok_or(limited)?,
        };
        if self.config.access == Access::Reviewed {
            let verb = verb(asking);
            let address = &asking.route.address;
            let (namespace, name) = (address.namespace.as_str(), address.name.as_str());
            let parts = [&id[..], verb.as_bytes(), b"/", namespace.as_bytes(), b"/", name.as_bytes()];
            let right = hash(&parts);
            match asking.limited {
                None => {
                    let ask = || Box::pin(self.ask_right(&user, verb, namespace, name));
                    let allowed = self.rights.get(right, ask).await;
                    allowed.map_err(|failed| error("subjectaccessreview", failed))??;
                }
                Some(limited) => self.rights.known(&right).ok_or(limited)?,
            }
        }
        Ok(Identity { by: By::Review, subject: user.name.clone() })
    }

    async fn ask_user(&self, token: &str) -> Result<Result<Arc<User>, Refusal>, String> {
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "spec": {"token": token, "audiences": self.config.audiences},
        });
        let status = self.create("/apis/authentication.k8s.io/v1/tokenreviews", &review).await?;
        Ok(user(status, &self.config.audiences))
    }

    async fn ask_right(
        &self,
        user: &User,
        verb: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Result<(), Refusal>, String> {
        let mut spec = user.spec.clone();
        spec["resourceAttributes"] = json!({
            "group": asb_types::GROUP, "resource": "sandboxes", "subresource": "proxy", "verb": verb,
            "namespace": namespace, "name": name,
        });
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec,
        });
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let status: AccessStatus = self.create(path, &review).await?;
        Ok(if status.allowed && !status.denied { Ok(()) } else { Err(Refusal::AccessDenied) })
    }

    /// Posts a review and returns its status. The error is a text for the caller: it never holds the request.
    async fn create<S: DeserializeOwned>(&self, path: &str, review: &Value) -> Result<S, String> {
        let request = Request::post(path).header("content-type", "application/json");
        let request = request.body(review.to_string().into_bytes()).map_err(|error| error.to_string())?;
        let call = async {
            let _permit = self.calls.acquire().await.expect("the semaphore is never closed");
            self.client.request_text(request).await.map_err(|error| describe(&error))
        };
        let text = tokio::time::timeout(TIMEOUT, call)
            .await
            .map_err(|_| format!("no answer from the API server within {} s", TIMEOUT.as_secs()))??;
        // The answer repeats the token, so neither it nor the parser's error is shown.
        let reviewed: Reviewed<S> =
            serde_json::from_str(&text).map_err(|_| "the API server's answer cannot be read".to_owned())?;
        reviewed.status.ok_or_else(|| "the API server's answer has no status".to_owned())
    }
}

fn error(review: &str, Failed { cause, cached }: Failed) -> Error {
    let text = if cached { format!("{review} (cached): {cause}") } else { format!("{review}: {cause}") };
    tracing::debug!(review, cached, cause, "review failed");
    Error::ReviewFailed(text)
}

fn describe(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("the API server answered {}: {}", status.code, status.reason),
        _ => "the API server cannot be reached".to_owned(),
    }
}

/// Whether a review found a user, and for one of the audiences asked for.
fn user(status: TokenStatus, audiences: &[String]) -> Result<Arc<User>, Refusal> {
    if !status.authenticated || status.user.username.is_empty() {
        return Err(Refusal::NotAuthenticated);
    }
    // An API server that knows nothing of audiences returns none, and its answer is then not about ours.
    if !audiences.is_empty() && !status.audiences.iter().any(|audience| audiences.contains(audience)) {
        return Err(Refusal::OtherAudience);
    }
    let UserInfo { username, uid, groups, extra } = status.user;
    let name = Arc::from(username.as_str());
    Ok(Arc::new(User { name, spec: json!({"user": username, "uid": uid, "groups": groups, "extra": extra}) }))
}

/// A tunnel begins with GET and can do everything, so it needs what Kubernetes asks for `exec`.
fn verb(asking: Asking<'_>) -> &'static str {
    match *asking.method {
        Method::GET | Method::HEAD | Method::OPTIONS if headers::upgrade(asking.headers).is_none() => "get",
        _ => "create",
    }
}

fn hash(parts: &[&[u8]]) -> Key {
    let mut context = Context::new(&SHA256);
    parts.iter().for_each(|part| context.update(part));
    let mut key = [0; 32];
    key.copy_from_slice(context.finish().as_ref());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(value: Value) -> TokenStatus {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn only_an_authenticated_user_for_our_audience_is_accepted() {
        let ours = ["router".to_owned()];
        for (value, audiences, wanted) in [
            (json!({}), &[][..], Err(Refusal::NotAuthenticated)),
            (json!({"authenticated": false, "user": {"username": "u"}}), &[], Err(Refusal::NotAuthenticated)),
            (json!({"authenticated": true}), &[], Err(Refusal::NotAuthenticated)),
            (json!({"authenticated": true, "user": {"username": "u"}}), &[], Ok("u")),
            (json!({"authenticated": true, "user": {"username": "u"}}), &ours, Err(Refusal::OtherAudience)),
            (
                json!({"authenticated": true, "user": {"username": "u"}, "audiences": ["other"]}),
                &ours,
                Err(Refusal::OtherAudience),
            ),
            (
                json!({"authenticated": true, "user": {"username": "u"}, "audiences": ["other", "router"]}),
                &ours,
                Ok("u"),
            ),
        ] {
            let got = user(status(value.clone()), audiences);
            assert_eq!(got.as_ref().map(|user| &*user.name).map_err(|refusal| *refusal), wanted, "{value}");
        }
    }

    #[test]
    fn methods_that_change_nothing_need_get_and_tunnels_need_create() {
        use http::header::{CONNECTION, UPGRADE};
        use http::{HeaderMap, HeaderValue, Uri};

        use crate::address::{Address, Route, Via};

        let verb = |method: Method, headers: &HeaderMap| {
            let route = Route { address: Address::new("team", "web", 80), via: Via::Headers, target: None };
            let (uri, connection) = (Uri::from_static("/"), Default::default());
            verb(Asking { method: &method, uri: &uri, headers, route: &route, connection, limited: None })
        };
        let mut headers = HeaderMap::new();
        for method in [Method::GET, Method::HEAD, Method::OPTIONS] {
            assert_eq!(verb(method, &headers), "get");
        }
        for method in
            [Method::POST, Method::PUT, Method::DELETE, Method::PATCH, Method::CONNECT, Method::TRACE]
        {
            assert_eq!(verb(method, &headers), "create");
        }
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        assert_eq!(verb(Method::GET, &headers), "get", "no upgrade without Connection");
        headers.insert(CONNECTION, HeaderValue::from_static("keep-alive, Upgrade"));
        assert_eq!(verb(Method::GET, &headers), "create");
    }
}
