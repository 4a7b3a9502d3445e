//! Where images come from, from flags to what the runtime wants.

use std::path::{Path, PathBuf};

use anyhow::Context;
use asb_runtime::image::{Keyring, Registries as Settings, authorities};

use crate::args::Registries;

impl Registries {
    /// Reads what the flags name.
    pub fn read(&self) -> anyhow::Result<Settings> {
        let trusted = match &self.registry_ca {
            Some(path) => {
                let pem = read(path)?;
                authorities(&pem)
                    .map_err(|problem| anyhow::anyhow!("--registry-ca {}: {problem}", path.display()))?
            }
            None => Vec::new(),
        };
        Ok(Settings {
            default_registry: self.default_registry.clone(),
            mirrors: self.registry_mirror.clone(),
            insecure: self.insecure_registry.iter().cloned().collect(),
            authorities: trusted,
            ..Settings::default()
        })
    }

    /// The same flags for an engine that is started in the background.
    pub fn flags(&self) -> Vec<String> {
        let default = self.default_registry.iter().map(|it| ("--default-registry", it.clone()));
        let mirrors = self.registry_mirror.iter();
        let mirrors = mirrors.map(|it| ("--registry-mirror", format!("{}={}", it.registry, it.url)));
        let insecure = self.insecure_registry.iter().map(|it| ("--insecure-registry", it.clone()));
        // The engine runs in another directory.
        let authorities = self.registry_ca.iter().filter_map(|path| std::path::absolute(path).ok());
        let authorities = authorities.map(|it| ("--registry-ca", it.display().to_string()));
        let all = default.chain(mirrors).chain(insecure).chain(authorities);
        all.flat_map(|(flag, value)| [flag.to_owned(), value]).collect()
    }

    /// Logins of this user. A file that was not named need not be there.
    pub fn keyring(&self) -> anyhow::Result<Keyring> {
        let path = match (&self.auth_file, usual_file()) {
            (Some(named), _) => named.clone(),
            (None, Some(usual)) if usual.exists() => usual,
            (None, _) => return Ok(Keyring::default()),
        };
        let parsed = Keyring::parse(&read(&path)?);
        parsed.map_err(|problem| anyhow::anyhow!("{}: {problem}", path.display()))
    }
}

/// Where `docker login` and its kin keep them.
fn usual_file() -> Option<PathBuf> {
    let directory = std::env::var_os("DOCKER_CONFIG").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".docker"));
    directory.or_else(home).map(|directory| directory.join("config.json"))
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("failed to read {}", path.display()))
}
