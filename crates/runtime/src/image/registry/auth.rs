//! What a registry wants before it answers: the challenge of a 401. Pure.

use url::Url;

/// How to introduce ourselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Challenge {
    Basic,
    /// Get a token there, then come back.
    Bearer {
        realm: String,
        service: Option<String>,
        scope: Option<String>,
    },
}

impl Challenge {
    /// Reads `WWW-Authenticate`; the strongest of several that we know.
    pub fn parse<'a>(headers: impl Iterator<Item = &'a str>) -> Option<Self> {
        let mut basic = None;
        for header in headers {
            let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
            if scheme.eq_ignore_ascii_case("basic") {
                basic = Some(Self::Basic);
            } else if scheme.eq_ignore_ascii_case("bearer") {
                let find = |name: &str| parameters(rest).find(|(key, _)| key.eq_ignore_ascii_case(name));
                let value = |name| find(name).map(|(_, value)| value);
                if let Some(realm) = value("realm") {
                    return Some(Self::Bearer { realm, service: value("service"), scope: value("scope") });
                }
            }
        }
        basic
    }
}

/// Where to get a token. Never without TLS, unless the registry itself is talked to without.
pub fn token_url(
    realm: &str,
    service: Option<&str>,
    scope: Option<&str>,
    repository: &str,
    registry: &Url,
) -> Result<Url, String> {
    let mut url =
        Url::parse(realm).map_err(|error| format!("it sends us to {realm:?} for a token: {error}"))?;
    if url.scheme() != "https" && (url.scheme() != "http" || registry.scheme() == "https") {
        return Err(format!("it sends us to {realm:?} for a token, which is not https"));
    }
    let scope = scope.map_or_else(|| format!("repository:{repository}:pull"), str::to_owned);
    let mut query = url.query_pairs_mut();
    query.extend_pairs(service.map(|service| ("service", service)));
    query.append_pair("scope", &scope);
    drop(query);
    Ok(url)
}

/// `key="value", key=value`: commas within quotes belong to the value.
fn parameters(mut text: &str) -> impl Iterator<Item = (String, String)> {
    std::iter::from_fn(move || {
        text = text.trim_start_matches([' ', ',']);
        let (key, rest) = text.split_once('=')?;
        let (value, rest) = match rest.strip_prefix('"') {
            Some(quoted) => {
                let end = quoted.find('"')?;
                (&quoted[..end], &quoted[end + 1..])
            }
            None => rest.split_once(',').unwrap_or((rest, "")),
        };
        text = rest;
        Some((key.trim().to_owned(), value.trim().to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read_and_the_token_one_preferred() {
        let bearer =
            r#"Bearer realm="https://auth.test/token",service="r.test",scope="repository:a/b:pull,push""#;
        let parsed = Challenge::parse(["Basic realm=\"x\"", bearer].into_iter());
        let expected = Challenge::Bearer {
            realm: "https://auth.test/token".into(),
            service: Some("r.test".into()),
            scope: Some("repository:a/b:pull,push".into()),
        };
        assert_eq!(parsed, Some(expected));
        assert_eq!(Challenge::parse(["basic"].into_iter()), Some(Challenge::Basic));
        assert_eq!(Challenge::parse(["Negotiate", "Bearer x=y", ""].into_iter()), None);
    }

    #[test]
    fn tokens_are_asked_for_where_nobody_can_listen() {
        let url = |realm, registry: &str| {
            token_url(realm, Some("s"), None, "a/b", &Url::parse(registry).expect("valid"))
        };
        let asked = url("https://auth.test/t?x=1", "https://r.test/").expect("fine");
        assert_eq!(asked.as_str(), "https://auth.test/t?x=1&service=s&scope=repository%3Aa%2Fb%3Apull");
        assert!(url("http://auth.test/t", "http://r.test/").is_ok());
        for realm in ["http://auth.test/t", "file:///etc/passwd", "nonsense"] {
            assert!(url(realm, "https://r.test/").is_err(), "{realm}");
        }
    }
}
