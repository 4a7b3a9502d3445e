//! Secrets that the flags only name: read once at the start, and never printed.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::authorization::Mode;
use crate::settings::{Problem, Settings, problem};

/// Shorter ones can be found by trying.
const SCOPED_TOKEN_SECRET_BYTES: usize = 32;
/// Nothing that is a secret is larger.
const LARGEST: u64 = 1 << 20;

/// A secret text without the space around it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

/// All that is known at the start.
#[derive(Debug, Default)]
pub struct Secrets {
    pub shared_token: Option<Secret>,
    pub scoped_token_secret: Option<Secret>,
    /// Public, but read in the same way.
    pub scoped_token_keys: Option<Secret>,
}

impl Secret {
    fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        (!text.is_empty()).then(|| Self(text.to_owned()))
    }

    /// For the part that compares it; never for a log.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// Reads what the modes need; `environment_token` is ROUTER_AUTH_TOKEN.
pub fn read(settings: &Settings, environment_token: Option<&str>) -> Result<Secrets, Problem> {
    let authorization = &settings.authorization;
    let shared = authorization.modes.contains(&Mode::SharedToken);
    let shared_token = match (&authorization.shared_token_file, shared) {
        (Some(path), _) => Some(of_file("authz-shared-token-file", path)?),
        (None, true) => environment_token.and_then(Secret::new),
        (None, false) => None,
    };
    let optional = |flag, path: &Option<PathBuf>| path.as_deref().map(|path| of_file(flag, path)).transpose();
    let scoped = &authorization.scoped_tokens;
    let secret = optional("authz-scoped-token-secret-file", &scoped.secret_file)?;
    if secret.as_ref().is_some_and(|secret| secret.0.len() < SCOPED_TOKEN_SECRET_BYTES) {
        let reason = format!("the secret must have {SCOPED_TOKEN_SECRET_BYTES} bytes or more");
        return Err(problem("authz-scoped-token-secret-file", reason));
    }
    let keys = optional("authz-scoped-token-verification-keys-file", &scoped.verification_keys_file)?;
    Ok(Secrets { shared_token, scoped_token_secret: secret, scoped_token_keys: keys })
}

fn of_file(flag: &'static str, path: &Path) -> Result<Secret, Problem> {
    let wrong = |reason: String| problem(flag, format!("{}: {reason}", path.display()));
    let size = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?.len();
    if size > LARGEST {
        return Err(wrong("is larger than 1 MiB".to_owned()));
    }
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    Secret::new(&text).ok_or_else(|| wrong("is empty".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Flags;

    fn read_with(flags: &[String], token: Option<&str>) -> Result<Secrets, Problem> {
        let settings = Flags::parse_arguments(flags).unwrap().settings(token.is_some()).unwrap();
        read(&settings, token)
    }

    #[test]
    fn secrets_are_read_trimmed_and_never_printed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, "s3cret\n").unwrap();
        let flags =
            ["--authz-mode=shared-token".to_owned(), format!("--authz-shared-token-file={}", path.display())];
        let secrets = read_with(&flags, None).unwrap();
        assert_eq!(secrets.shared_token.as_ref().unwrap().expose(), "s3cret");
        assert!(!format!("{secrets:?}").contains("s3cret"));
        let of_environment = read_with(&flags[..1], Some(" other ")).unwrap();
        assert_eq!(of_environment.shared_token.unwrap().expose(), "other");
        std::fs::write(&path, " \n").unwrap();
        assert_eq!(read_with(&flags, None).unwrap_err().flag, "authz-shared-token-file");
    }

    #[test]
    fn a_short_secret_is_refused_without_repeating_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        let flags = [
            "--authz-mode=scoped-token".to_owned(),
            format!("--authz-scoped-token-secret-file={}", path.display()),
        ];
        std::fs::write(&path, "0123456789abcdef0123456789abcde\n").unwrap();
        let problem = read_with(&flags, None).unwrap_err().to_string();
        assert!(problem.contains("32 bytes") && !problem.contains("0123"), "{problem}");
        std::fs::write(&path, "0123456789abcdef0123456789abcdef\n").unwrap();
        assert!(read_with(&flags, None).is_ok());
    }
}
