//! Talking to one endpoint about one repository: introduces itself when asked to.

use http::header::{ACCEPT, AUTHORIZATION, RANGE, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::Deserialize;
use tokio::sync::Mutex;

use super::auth::{Challenge, token_url};
use super::http::{Answer, Http};
use super::{Endpoint, Login};
use crate::image::Error;
use crate::image::digest::Digest;
use crate::image::manifest::ACCEPTED;

/// More than any token or error page needs.
const SMALL: u64 = 256 << 10;

pub struct Session {
    http: Http,
    endpoint: Endpoint,
    repository: String,
    login: Option<Login>,
    /// What the registry was content with.
    authorization: Mutex<Option<HeaderValue>>,
}

impl Session {
    pub fn new(http: Http, endpoint: Endpoint, repository: String, login: Option<Login>) -> Self {
        Self { http, endpoint, repository, login, authorization: Mutex::default() }
    }

    /// A manifest or index, and the digest that the registry says it has.
    pub async fn manifest(&self, version: &str, most: u64) -> Result<(Vec<u8>, Option<String>), Error> {
        let what = format!("{}:{version}", self.repository).replace(":sha256:", "@sha256:");
        let headers = [(ACCEPT, HeaderValue::from_static(ACCEPTED))];
        let answer = self.get(&format!("manifests/{version}"), &headers, &what).await?;
        let digest = answer.header("docker-content-digest").map(str::to_owned);
        Ok((answer.bytes(most).await.map_err(|problem| self.transfer(&what, problem))?, digest))
    }

    /// A blob, from `offset` on if the registry can do that: its status tells.
    pub async fn blob(&self, digest: &Digest, offset: u64) -> Result<Answer, Error> {
        let range = HeaderValue::from_str(&format!("bytes={offset}-"));
        let headers: Vec<_> =
            range.ok().filter(|_| offset > 0).map(|range| (RANGE, range)).into_iter().collect();
        self.get(&format!("blobs/{digest}"), &headers, &format!("blob {digest}")).await
    }

    pub fn transfer(&self, what: &str, problem: impl ToString) -> Error {
        Error::Transfer {
            registry: self.endpoint.host.clone(),
            what: what.to_owned(),
            problem: problem.to_string(),
        }
    }

    /// Answers with success (or "range not satisfiable", which only callers that ask for one see).
    async fn get(&self, path: &str, more: &[(HeaderName, HeaderValue)], what: &str) -> Result<Answer, Error> {
        let url = self.endpoint.url.join(&format!("v2/{}/{path}", self.repository));
        let url = url.map_err(|error| self.transfer(what, error))?;
        for again in [false, true] {
            let mut headers: HeaderMap = more.iter().cloned().collect();
            let known = self.authorization.lock().await.clone();
            known.iter().for_each(|known| drop(headers.insert(AUTHORIZATION, known.clone())));
            let answer =
                self.http.get(&url, headers).await.map_err(|problem| self.transfer(what, problem))?;
            match answer.status {
                status if status.is_success() || status == StatusCode::RANGE_NOT_SATISFIABLE => {
                    return Ok(answer);
                }
                StatusCode::UNAUTHORIZED if !again => self.introduce(&answer, known.as_ref(), what).await?,
                _ => return Err(self.refused(answer, what).await),
            }
        }
        Err(self.transfer(what, "it asks for authorization again and again"))
    }

    /// Gets what the registry wants to see. One at a time: others that wait find it done.
    async fn introduce(&self, answer: &Answer, tried: Option<&HeaderValue>, what: &str) -> Result<(), Error> {
        let mut authorization = self.authorization.lock().await;
        if authorization.as_ref() != tried {
            return Ok(());
        }
        let headers = answer.headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|it| it.to_str().ok());
        let value = match (Challenge::parse(headers), &self.login) {
            (Some(Challenge::Bearer { realm, service, scope }), login) => {
                let url = token_url(
                    &realm,
                    service.as_deref(),
                    scope.as_deref(),
                    &self.repository,
                    &self.endpoint.url,
                )
                .map_err(|problem| self.transfer(what, problem))?;
                format!("Bearer {}", self.token(&url, login.as_ref(), what).await?)
            }
            (Some(Challenge::Basic), Some(login)) => login.basic(),
            (_, login) => {
                let message = match login {
                    Some(_) => "it wants something else than a password",
                    None => "it asks for a login, and none is known for it",
                };
                return Err(self.denied(what, message));
            }
        };
        let mut value = HeaderValue::from_str(&value).map_err(|error| self.transfer(what, error))?;
        value.set_sensitive(true);
        *authorization = Some(value);
        Ok(())
    }

    async fn token(&self, url: &url::Url, login: Option<&Login>, what: &str) -> Result<String, Error> {
        #[derive(Deserialize)]
        struct Token {
            token: Option<String>,
            access_token: Option<String>,
        }
        let mut headers = HeaderMap::new();
        if let Some(login) = login {
            let mut value =
                HeaderValue::from_str(&login.basic()).map_err(|error| self.transfer(what, error))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let answer =
            self.http.get(url, headers).await.map_err(|problem| self.transfer("a token", problem))?;
        match answer.status {
            status if status.is_success() => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let message =
                    if login.is_some() { "the login is wrong" } else { "it gives no token without a login" };
                return Err(self.denied(what, message));
            }
            _ => return Err(self.refused(answer, "a token").await),
        }
        let text = answer.bytes(SMALL).await.map_err(|problem| self.transfer("a token", problem))?;
        let token: Option<Token> = serde_json::from_slice(&text).ok();
        let token = token.and_then(|token| token.token.or(token.access_token));
        token.ok_or_else(|| self.transfer("a token", "the answer holds none"))
    }

    fn denied(&self, what: &str, message: &str) -> Error {
        let (registry, what) = (self.endpoint.host.clone(), what.to_owned());
        Error::Denied { registry, what, message: message.to_owned() }
    }

    async fn refused(&self, answer: Answer, what: &str) -> Error {
        let status = answer.status;
        let message = message(&answer.bytes(SMALL).await.unwrap_or_default());
        let (registry, what) = (self.endpoint.host.clone(), what.to_owned());
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Error::Denied { registry, what, message },
            StatusCode::NOT_FOUND => Error::NotFound { registry, what, message },
            _ => Error::Answer { registry, what, status: status.as_u16(), message },
        }
    }
}

/// What a registry says about an error; nothing of a page that is not in its form is repeated.
fn message(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Errors {
        errors: Vec<One>,
    }
    #[derive(Deserialize)]
    struct One {
        #[serde(default)]
        message: String,
    }
    let errors = serde_json::from_slice(body).map(|errors: Errors| errors.errors).unwrap_or_default();
    let messages: Vec<_> =
        errors.into_iter().map(|one| one.message).filter(|text| !text.is_empty()).collect();
    messages.join("; ").chars().filter(|letter| !letter.is_control()).take(300).collect()
}
