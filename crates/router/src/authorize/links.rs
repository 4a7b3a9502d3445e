//! Signed links and cookies: how a browser, which cannot set `Authorization`, opens a sandbox's page.
//!
//! ```text
//! GET /s/team/web/80/?sandbox_token=T  ─► 302 /s/team/web/80/  Set-Cookie: sandbox_token=T; Path=/s/team/web
//! GET /s/team/web/80/  Cookie: sandbox_token=T  ─► the sandbox, without the cookie
//! ```

use bytes::Bytes;
use http::header::{
    ACCEPT, CACHE_CONTROL, COOKIE, HeaderMap, HeaderValue, LOCATION, ORIGIN, REFERRER_POLICY, SET_COOKIE,
    UPGRADE,
};
use http::uri::{PathAndQuery, Uri};
use http::{Method, Response, StatusCode};

use super::{Asking, Refusal, set_target};
use crate::address::{Via, requested_host};

/// Cookies of our name that are tried. A page of a neighbour may have set some that are none of ours.
const MAX_COOKIES: usize = 4;

/// How browsers are authorised.
#[derive(Debug, Clone)]
pub struct Links {
    pub cookie: String,
    /// Empty: no token is taken from a query.
    pub parameter: String,
    pub same_site: SameSite,
    /// Leave `Secure` out, for plain HTTP on a name other than localhost.
    pub insecure: bool,
    /// Pages besides the sandbox's own that may use the cookie, e.g. `https://dashboard.example.com`.
    pub allowed_origins: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SameSite {
    #[default]
    Lax,
    Strict,
    /// For sandboxes in iframes of another site.
    None,
}

/// Why links cannot be used as configured.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinksInvalid {
    #[error("signed links need a method for scoped tokens: configure a v1 secret or v2 keys")]
    NoScopedTokens,
    #[error("the cookie name `{0}` has characters other than letters, digits, `-`, `_` and `.`")]
    Cookie(String),
    #[error("the query parameter `{0}` has characters other than letters, digits, `-`, `_` and `.`")]
    Parameter(String),
    #[error("browsers refuse SameSite=None without Secure: use lax or strict with an insecure cookie")]
    InsecureNone,
    #[error("`{0}` is not an origin; write it as https://host or https://host:port")]
    Origin(String),
}

impl Default for Links {
    fn default() -> Self {
        Self {
            cookie: "sandbox_token".to_owned(),
            parameter: "sandbox_token".to_owned(),
            same_site: SameSite::Lax,
            insecure: false,
            allowed_origins: Vec::new(),
        }
    }
}

impl std::str::FromStr for SameSite {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "lax" => Ok(Self::Lax),
            "strict" => Ok(Self::Strict),
            "none" => Ok(Self::None),
            _ => Err(format!("`{text}` is not lax, strict or none")),
        }
    }
}

impl Links {
    pub(super) fn validate(&self, scoped_tokens: bool) -> Result<(), LinksInvalid> {
        let is_name =
            |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        let is_origin = |text: &str| {
            let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
            host.is_some_and(|host| !host.is_empty() && !host.contains(['/', '?', '#', '@', '*', ' ']))
        };
        if !scoped_tokens {
            return Err(LinksInvalid::NoScopedTokens);
        }
        if self.cookie.is_empty() || !is_name(&self.cookie) {
            return Err(LinksInvalid::Cookie(self.cookie.clone()));
        }
        if !is_name(&self.parameter) {
            return Err(LinksInvalid::Parameter(self.parameter.clone()));
        }
        if self.insecure && self.same_site == SameSite::None {
            return Err(LinksInvalid::InsecureNone);
        }
        match self.allowed_origins.iter().find(|origin| !is_origin(origin)) {
            Some(bad) => Err(LinksInvalid::Origin(bad.clone())),
            None => Ok(()),
        }
    }

    pub(super) fn token_in_query<'a>(&self, query: Option<&'a str>) -> Option<&'a str> {
        let query = query.filter(|_| !self.parameter.is_empty())?;
        query.split('&').find_map(|pair| value_of(pair, &self.parameter))
    }

    pub(super) fn tokens_in_cookies<'a>(&'a self, headers: &'a HeaderMap) -> impl Iterator<Item = &'a str> {
        let values = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let pairs = values.flat_map(|value| value.split(';').map(str::trim));
        pairs.filter_map(|pair| value_of(pair, &self.cookie)).take(MAX_COOKIES)
    }

    /// Only a browser that navigates is redirected: it alone keeps cookies and follows. A page that is addressed by
    /// headers was not opened by a link.
    pub(super) fn redirects(&self, asking: Asking<'_>) -> bool {
        let text = |name| asking.headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        let navigates = match text("sec-fetch-mode") {
            Some(mode) => mode == "navigate",
            None => text(ACCEPT.as_str()).is_some_and(|accept| accept.contains("text/html")),
        };
        asking.method == Method::GET && navigates && !is_upgrade(asking) && asking.route.via != Via::Headers
    }

    /// Sends the browser to the same address without the token, with the token as a cookie for `path`.
    pub(super) fn redirect(&self, uri: &Uri, token: &str, path: &str, max_age: u64) -> Response<Bytes> {
        let target = uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let target = self.without_parameter(target).unwrap_or_else(|| target.to_owned());
        // Two slashes, or what browsers take for them, would name another host.
        let target = match target.as_bytes() {
            [b'/', b'/' | b'\\', ..] => format!("/.{target}"),
            _ => target,
        };
        let same_site = match self.same_site {
            SameSite::Lax => "Lax",
            SameSite::Strict => "Strict",
            SameSite::None => "None",
        };
        let secure = if self.insecure { "" } else { "; Secure" };
        let cookie = format!(
            "{}={token}; Path={path}; Max-Age={max_age}; HttpOnly; SameSite={same_site}{secure}",
            self.cookie
        );
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = StatusCode::FOUND;
        let headers = response.headers_mut();
        // A target and a verified token came in as header-safe text.
        if let (Ok(target), Ok(cookie)) = (HeaderValue::try_from(target), HeaderValue::try_from(cookie)) {
            headers.insert(LOCATION, target);
            headers.insert(SET_COOKIE, cookie);
        }
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        response
    }

    /// Refuses requests that another page made the browser send: the cookie goes along by itself.
    ///
    /// WebSockets and methods that change something must show their origin. Other requests may come without one, unless
    /// the browser says that another page embeds them.
    pub(super) fn check_origin(&self, asking: Asking<'_>) -> Result<(), Refusal> {
        let text = |name| asking.headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        let is_safe = matches!(*asking.method, Method::GET | Method::HEAD | Method::OPTIONS);
        if let Some(origin) = asking.headers.get(ORIGIN) {
            let known = origin.to_str().is_ok_and(|origin| self.is_allowed(origin, asking));
            return if known { Ok(()) } else { Err(Refusal::CrossOrigin) };
        }
        if !is_safe || is_upgrade(asking) {
            return Err(Refusal::CrossOrigin);
        }
        match text("sec-fetch-site") {
            None | Some("same-origin" | "none") => Ok(()),
            Some(_) if text("sec-fetch-mode") == Some("navigate") => match text("sec-fetch-dest") {
                None | Some("document") => Ok(()),
                // Another sandbox may be on the same site, which gets Lax cookies: its page could put this one into a
                // frame under buttons of its own. With None, frames of other pages are what the cookie is for.
                Some(_) if self.same_site == SameSite::None => Ok(()),
                Some(_) => Err(Refusal::CrossOrigin),
            },
            Some(_) => Err(Refusal::CrossOrigin),
        }
    }

    fn is_allowed(&self, origin: &str, asking: Asking<'_>) -> bool {
        if self.allowed_origins.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin)) {
            return true;
        }
        let Ok(host) = requested_host(asking.uri, asking.headers) else { return false };
        let (scheme, default_port) =
            if asking.connection.tls { ("https://", ":443") } else { ("http://", ":80") };
        let host = host.strip_suffix(default_port).unwrap_or(host);
        !host.is_empty()
            && origin
                .split_at_checked(scheme.len())
                .is_some_and(|(start, rest)| start == scheme && rest.eq_ignore_ascii_case(host))
    }

    pub(super) fn clean_uri(&self, uri: &mut Uri) {
        if let Some(target) = uri.path_and_query().and_then(|target| self.without_parameter(target.as_str()))
            && let Ok(target) = PathAndQuery::try_from(target)
        {
            set_target(uri, target);
        }
    }

    pub(super) fn clean_headers(&self, headers: &mut HeaderMap) {
        let is_ours = |value: &HeaderValue| self.without_cookie(value.as_bytes()).is_some();
        if headers.get_all(COOKIE).iter().any(is_ours) {
            let values: Vec<_> = headers.get_all(COOKIE).iter().cloned().collect();
            headers.remove(COOKIE);
            for value in values {
                let kept = self.without_cookie(value.as_bytes());
                // What is left of a valid value is valid.
                if let Ok(kept) = kept.map_or(Ok(value), |bytes| HeaderValue::from_bytes(&bytes))
                    && !kept.is_empty()
                {
                    headers.append(COOKIE, kept);
                }
            }
        }
    }

    pub(super) fn clean_response(&self, headers: &mut HeaderMap) {
        let is_ours = |value: &HeaderValue| {
            let pair = value.as_bytes().split(|&byte| byte == b';').next().unwrap_or_default();
            // Browsers drop spaces around a name, and send a cookie without a name as its value alone.
            let mut pair = pair.trim_ascii();
            while let Some(rest) = pair.strip_prefix(b"=") {
                pair = rest.trim_ascii_start();
            }
            let name = pair.split(|&byte| byte == b'=').next().unwrap_or_default();
            pair.contains(&b'=') && name.trim_ascii_end() == self.cookie.as_bytes()
        };
        if headers.get_all(SET_COOKIE).iter().any(is_ours) {
            let kept: Vec<_> =
                headers.get_all(SET_COOKIE).iter().filter(|value| !is_ours(value)).cloned().collect();
            headers.remove(SET_COOKIE);
            for value in kept {
                headers.append(SET_COOKIE, value);
            }
        }
    }

    /// The target without our parameter; `None` when it has none. Everything else stays byte for byte.
    fn without_parameter(&self, target: &str) -> Option<String> {
        let (path, query) = target.split_once('?').filter(|_| !self.parameter.is_empty())?;
        let ours = |pair: &&str| is_named(pair.as_bytes(), &self.parameter);
        if !query.split('&').any(|pair| ours(&pair)) {
            return None;
        }
        let kept: Vec<_> = query.split('&').filter(|pair| !ours(pair)).collect();
        Some(if kept.is_empty() { path.to_owned() } else { format!("{path}?{}", kept.join("&")) })
    }

    /// A `Cookie` value without our cookie; `None` when it has none.
    fn without_cookie(&self, value: &[u8]) -> Option<Vec<u8>> {
        let ours = |pair: &&[u8]| is_named(pair.trim_ascii(), &self.cookie);
        let mut pairs = value.split(|&byte| byte == b';');
        if !pairs.clone().any(|pair| ours(&pair)) {
            return None;
        }
        let kept: Vec<_> = pairs.by_ref().filter(|pair| !ours(pair)).collect();
        Some(kept.join(&b';').trim_ascii_start().to_vec())
    }
}

fn value_of<'a>(pair: &'a str, name: &str) -> Option<&'a str> {
    pair.strip_prefix(name)?.strip_prefix('=').filter(|value| !value.is_empty())
}

fn is_named(pair: &[u8], name: &str) -> bool {
    pair.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'='))
}

fn is_upgrade(asking: Asking<'_>) -> bool {
    asking.headers.contains_key(UPGRADE) || asking.method == Method::CONNECT
}

#[cfg(test)]
mod tests;
