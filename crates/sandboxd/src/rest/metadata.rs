//! `GET /v1/metadata`: the variables of the environment that callers may see.

use std::collections::BTreeMap;
use std::ffi::OsString;

const SECRET: [&str; 10] =
    ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "CRED", "KEY", "AUTH", "BEARER", "PRIVATE", "CERT"];

/// Only names with the prefix, and none that looks like a secret.
pub fn visible(
    environment: impl Iterator<Item = (OsString, OsString)>,
    prefix: &str,
) -> BTreeMap<String, String> {
    environment
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
        .filter(|(name, _)| name.starts_with(prefix))
        .filter(|(name, _)| !SECRET.iter().any(|word| name.to_uppercase().contains(word)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_and_foreign_variables_are_hidden() {
        let names = [
            "SANDBOX_ID",
            "SANDBOX_WORKSPACE",
            "SANDBOX_API_TOKEN",
            "SANDBOX_SSH_KEY",
            "SANDBOX_AUTH_HEADER",
            "SANDBOX_BEARER",
            "SANDBOX_CRED",
            "SANDBOX_PASSWD",
            "SANDBOX_TLS_CERT",
            "SANDBOX_PRIVATE_URL",
            "SANDBOX_my_secret",
            "sandbox_id",
            "HOME",
        ];
        let shown = visible(names.iter().map(|name| (name.into(), "x".into())), "SANDBOX_");
        assert_eq!(shown.into_keys().collect::<Vec<_>>(), ["SANDBOX_ID", "SANDBOX_WORKSPACE"]);
    }
}
