//! Who we are to a registry: logins from Docker's configuration files, which are also what Kubernetes stores in Secrets of
//! type `kubernetes.io/dockerconfigjson`. Pure.

use std::collections::BTreeMap;
use std::fmt::{Debug, Formatter};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

/// User and password for a registry. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    pub user: String,
    pub password: String,
}

/// Logins by the registry, and perhaps the path there, that they are for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keyring {
    logins: Vec<(String, Login)>,
}

impl Debug for Login {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("Login([redacted])")
    }
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    auth: String,
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

impl Login {
    /// As HTTP sends it.
    pub fn basic(&self) -> String {
        format!("Basic {}", STANDARD.encode(format!("{}:{}", self.user, self.password)))
    }
}

impl Keyring {
    /// Reads `{"auths": {"HOST": {"auth": "…"}}}`. Entries without a login, which belong to helpers, are passed over.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        // What is wrong with it is not repeated: it may hold a password.
        let file: File = serde_json::from_slice(text)
            .map_err(|error| format!("not a Docker configuration (line {})", error.line()))?;
        Self::of(file.auths)
    }

    /// The older form, of Secrets of type `kubernetes.io/dockercfg`: without `auths` around it.
    pub fn parse_old(text: &[u8]) -> Result<Self, String> {
        let entries = serde_json::from_slice(text)
            .map_err(|error| format!("not a Docker configuration (line {})", error.line()))?;
        Self::of(entries)
    }

    pub fn new(registry: &str, login: Login) -> Self {
        Self { logins: vec![(place(registry), login)] }
    }

    pub fn extend(&mut self, other: Self) {
        self.logins.extend(other.logins);
    }

    /// Logins for a repository of a registry, the most specific first.
    pub fn find(&self, host: &str, repository: &str) -> Option<&Login> {
        let wanted = format!("{host}/{repository}");
        let covers = |place: &str| {
            wanted.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let fitting = self.logins.iter().filter(|(place, _)| covers(place));
        fitting.max_by_key(|(place, _)| place.len()).map(|(_, login)| login)
    }

    fn of(entries: BTreeMap<String, Entry>) -> Result<Self, String> {
        let mut logins = Vec::new();
        for (key, entry) in entries {
            if let Some(login) =
                entry.login().ok_or_else(|| format!("the login for {key:?} cannot be read"))?
            {
                logins.push((place(&key), login));
            }
        }
        Ok(Self { logins })
    }
}

impl Entry {
    fn login(self) -> Option<Option<Login>> {
        if !self.username.is_empty() {
            return Some(Some(Login { user: self.username, password: self.password }));
        }
        if self.auth.is_empty() {
            return Some(None);
        }
        let text = String::from_utf8(STANDARD.decode(self.auth.trim()).ok()?).ok()?;
        let (user, password) = text.split_once(':')?;
        Some(Some(Login { user: user.to_owned(), password: password.trim_end_matches('\0').to_owned() }))
    }
}

/// `https://HOST/v1/` and `HOST` are the same.
fn place(key: &str) -> String {
    let key = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    let key = key.trim_end_matches('/');
    key.strip_suffix("/v1").or_else(|| key.strip_suffix("/v2")).unwrap_or(key).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_specific_login_is_taken_and_never_one_for_another_host() {
        let text = r#"{"auths": {
            "https://registry.test/v1/": {"auth": "dXNlcjpwYTpzcw=="},
            "registry.test/team": {"username": "team", "password": "p"},
            "helper.test": {}
        }, "credsStore": "x"}"#;
        let keyring = Keyring::parse(text.as_bytes()).expect("readable");
        let user = |host, repository| {
            keyring.find(host, repository).map(|it| (it.user.as_str(), it.password.as_str()))
        };
        assert_eq!(user("registry.test", "app"), Some(("user", "pa:ss")));
        assert_eq!(user("registry.test", "team/app"), Some(("team", "p")));
        assert_eq!(user("registry.test", "teams/app"), Some(("user", "pa:ss")));
        for other in ["registry.test.evil", "registry.test:5000", "helper.test", "registry"] {
            assert_eq!(user(other, "app"), None, "{other}");
        }
    }

    #[test]
    fn nothing_prints_a_password() {
        let keyring = Keyring::new("registry.test", Login { user: "me".into(), password: "secret".into() });
        assert!(!format!("{keyring:?}").contains("secret"));
        let broken =
            Keyring::parse(br#"{"auths": {"registry.test": {"auth": "secret"}}}"#).expect_err("broken");
        assert!(broken.contains("registry.test") && !broken.contains("secret"), "{broken}");
        let broken = Keyring::parse(br#"{"auths": {"r": {"auth": 5secret}}}"#).expect_err("broken");
        assert!(!broken.contains("secret"), "{broken}");
    }
}
