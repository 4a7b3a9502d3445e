//! `backup.json`: what is in a backup.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use anyhow::Context;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{IMAGES, LAYERS, OBJECTS, VOLUMES};
use crate::commands::volume::is_plain;
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
        manifest.check().map_err(|problem| anyhow::anyhow!("{}: {problem}", path.display()))?;
        Ok(manifest)
    }

    /// Names become those of directories and files.
    fn check(&self) -> Result<(), String> {
        if let Some(name) = self.volumes.iter().find(|name| !is_plain(name)) {
            return Err(format!("volumes: {name:?} is not the name of a volume"));
        }
        let of = |name: &str, directory: &str| {
            let name = name.strip_prefix(directory)?.strip_prefix('/')?.strip_suffix(".tar")?;
            Some(is_plain(name))
        };
        let known = |name: &str| {
            [OBJECTS, IMAGES].contains(&name)
                || of(name, VOLUMES).or_else(|| of(name, LAYERS)).unwrap_or_default()
        };
        if let Some(name) = self.files.keys().find(|name| !known(name)) {
            return Err(format!("files: {name:?} is no file of a backup"));
        }
        let volumes = self.volumes.iter().map(|volume| format!("{VOLUMES}/{volume}.tar"));
        match volumes.chain([OBJECTS.to_owned()]).find(|file| !self.files.contains_key(file)) {
            Some(file) => Err(format!("files: there is no digest of {file}")),
            None => Ok(()),
        }
    }

    /// Opens a file of the backup: one that has a digest, and is a plain file of it.
    pub fn open(&self, backup: &Path, name: &str) -> anyhow::Result<File> {
        let path = backup.join(name);
        let open = || -> io::Result<File> {
            if !self.files.contains_key(name) {
                return Err(io::Error::other(format!("{FILE} has no digest of it")));
            }
            // Not waiting for what may be a pipe.
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            let directory = File::open(backup)?;
            let file = File::from(openat2(&directory, name, flags, Mode::empty(), resolve)?);
            match file.metadata()?.is_file() {
                true => Ok(file),
                false => Err(io::Error::other("it is no plain file")),
            }
        };
        open().with_context(|| format!("failed to open {}", path.display()))
    }

    /// Checks that every file is what it was when the backup was made.
    pub fn verify(&self, backup: &Path) -> anyhow::Result<()> {
        for (name, wanted) in &self.files {
            let path = backup.join(name);
            let mut file = self.open(backup, name)?;
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
    fn a_manifest_that_names_files_elsewhere_or_without_a_digest_is_refused() {
        let error = |manifest: Manifest| {
            let written = serde_json::to_string(&manifest).unwrap();
            Manifest::read(backup(&written, "x").path()).unwrap_err().to_string()
        };
        for name in ["../objects.jsonl", "/etc/shadow", "volumes/../x.tar", "volumes/x", "layers/a/b.tar", ""]
        {
            let files = [(name.to_owned(), String::new()), (OBJECTS.to_owned(), String::new())].into();
            let found = error(Manifest { files, ..Manifest::new() });
            assert!(found.contains("is no file of a backup"), "{name}: {found}");
        }
        assert!(error(Manifest::new()).contains("no digest of objects.jsonl"));
        let files = [(OBJECTS.to_owned(), String::new())].into();
        let manifest = Manifest { files, volumes: vec!["pvc-1".to_owned()], ..Manifest::new() };
        assert!(error(manifest).contains("no digest of volumes/pvc-1.tar"));
    }

    #[test]
    fn a_file_of_a_backup_is_a_plain_one_that_lies_in_it() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(outside.path().join("secret"), "x").unwrap();
        std::fs::create_dir_all(dir.path().join("layers")).unwrap();
        let objects = dir.path().join(OBJECTS);
        let names = [OBJECTS, "volumes/secret.tar", "layers/pipe.tar"];
        let files = names.map(|name| (name.to_owned(), String::new())).into();
        let manifest = Manifest { files, ..Manifest::new() };
        std::os::unix::fs::symlink(outside.path().join("secret"), &objects).unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("volumes")).unwrap();
        std::fs::rename(outside.path().join("secret"), outside.path().join("secret.tar")).unwrap();
        let pipe = dir.path().join("layers/pipe.tar");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
        for name in names {
            assert!(manifest.open(dir.path(), name).is_err(), "{name}");
        }
        std::fs::remove_file(&objects).unwrap();
        std::fs::write(&objects, "x").unwrap();
        manifest.open(dir.path(), OBJECTS).unwrap();
        assert!(manifest.open(dir.path(), IMAGES).is_err(), "it has no digest");
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
