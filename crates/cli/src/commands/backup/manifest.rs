//! `backup.json`: what is in a backup.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::failure::hinted;

pub const FILE: &str = "backup.json";
/// Goes up when this version's backups can no longer be read by an earlier one.
const FORMAT: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    pub format: u32,
    /// The version of `asb` that made it.
    pub version: String,
    pub created: String,
    /// The revision of the API at which the objects were copied.
    pub revision: u64,
    pub objects: u64,
    /// Volumes whose files are in the backup.
    pub volumes: Vec<String>,
    /// Volumes that Pods had in use while their files were copied.
    pub in_use: Vec<String>,
    /// Names of the images in the backup.
    pub images: Vec<String>,
    /// SHA-256 of every other file, by path.
    pub files: BTreeMap<String, String>,
}

impl Manifest {
    pub fn new() -> Self {
        Self {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            created: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            revision: 0,
            objects: 0,
            volumes: Vec::new(),
            in_use: Vec::new(),
            images: Vec::new(),
            files: BTreeMap::new(),
        }
    }

    /// Reads the manifest of a backup that is complete and not newer than this version.
    pub fn read(backup: &Path) -> anyhow::Result<Self> {
        let path = backup.join(FILE);
        let text = std::fs::read(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => hinted(
                format!("{} is no backup, or one that was cut off: it has no {FILE}", backup.display()),
                "`asb backup DIR` makes one",
            ),
            _ => anyhow::Error::from(error).context(format!("failed to read {}", path.display())),
        })?;
        let format = |text: &[u8]| -> Option<(u64, String)> {
            let value: serde_json::Value = serde_json::from_slice(text).ok()?;
            Some((value["format"].as_u64()?, value["version"].as_str()?.to_owned()))
        };
        if let Some((format, version)) = format(&text).filter(|(format, _)| *format > FORMAT.into()) {
            return Err(hinted(
                format!(
                    "{} was made by asb {version} (format {format}), which is newer than this one",
                    backup.display()
                ),
                "restore it with that version",
            ));
        }
        let manifest: Self =
            serde_json::from_slice(&text).with_context(|| format!("{} is damaged", path.display()))?;
        // They become names of directories.
        let plain = |name: &String| !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0']);
        if let Some(name) = manifest.volumes.iter().find(|name| !plain(name)) {
            anyhow::bail!("{}: volumes: {name:?} is not the name of a volume", path.display());
        }
        Ok(manifest)
    }

    /// Checks that every file is what it was when the backup was made.
    pub fn verify(&self, backup: &Path) -> anyhow::Result<()> {
        for (name, wanted) in &self.files {
            let path = backup.join(name);
            let mut file = File::open(&path).with_context(|| format!("failed to open {}", path.display()))?;
            let mut hashing = Hashing::new(io::sink());
            io::copy(&mut file, &mut hashing)
                .with_context(|| format!("failed to read {}", path.display()))?;
            if hashing.finish() != *wanted {
                let message = format!("{} is not what it was when the backup was made", path.display());
                return Err(hinted(message, "the disk or a copy is damaged: use another copy of the backup"));
            }
        }
        Ok(())
    }
}

/// A writer that knows the digest of what went through it.
pub struct Hashing<W> {
    out: W,
    digest: Sha256,
}

impl<W: Write> Hashing<W> {
    pub fn new(out: W) -> Self {
        Self { out, digest: Sha256::new() }
    }

    pub fn finish(self) -> String {
        self.digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.digest.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backup(manifest: &str, objects: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("objects.jsonl"), objects).unwrap();
        if !manifest.is_empty() {
            std::fs::write(dir.path().join(FILE), manifest).unwrap();
        }
        dir
    }

    #[test]
    fn a_backup_that_is_cut_off_newer_or_damaged_is_refused_by_name() {
        let error = |dir: &tempfile::TempDir| Manifest::read(dir.path()).unwrap_err().to_string();
        assert!(error(&backup("", "x")).contains("cut off"));
        assert!(error(&backup("{", "x")).contains("is damaged"));
        let newer = r#"{"format": 7, "version": "9.0.0", "somethingNew": true}"#;
        assert!(error(&backup(newer, "x")).contains("was made by asb 9.0.0"));
        for name in ["../../etc", "/etc", ".clone-x", ""] {
            let manifest = Manifest { volumes: vec![name.to_owned()], ..Manifest::new() };
            let written = serde_json::to_string(&manifest).unwrap();
            assert!(error(&backup(&written, "x")).contains("is not the name of a volume"), "{name}");
        }
    }

    #[test]
    fn a_file_that_was_changed_or_is_missing_is_named() {
        let mut hashing = Hashing::new(Vec::new());
        hashing.write_all(b"objects").unwrap();
        let mut manifest = Manifest::new();
        manifest.files.insert("objects.jsonl".to_owned(), hashing.finish());
        let written = serde_json::to_string(&manifest).unwrap();
        let dir = backup(&written, "objects");
        assert_eq!(Manifest::read(dir.path()).unwrap(), manifest);
        manifest.verify(dir.path()).unwrap();
        std::fs::write(dir.path().join("objects.jsonl"), "objectz").unwrap();
        assert!(
            manifest.verify(dir.path()).unwrap_err().to_string().contains("objects.jsonl is not what it was")
        );
        std::fs::remove_file(dir.path().join("objects.jsonl")).unwrap();
        assert!(manifest.verify(dir.path()).unwrap_err().to_string().contains("failed to open"));
    }
}
