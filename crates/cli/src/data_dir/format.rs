//! Whether a directory is a data directory that this version can use.
//!
//! An engine removes what its objects do not know: Pods that are gone take their roots and files with them. So it must
//! never start on the files of one store with the objects of another, or with none.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::DataDir;
use crate::failure::hinted;

/// What this version writes. It goes up when an earlier version could no longer read the directory.
const FORMAT: u32 = 1;
const FILE: &str = "format.json";
const STORE: &str = "store.redb";
/// There while a backup is restored.
const RESTORING: &str = "restoring";
/// What versions before `format.json` may have left in a directory without a store.
const KNOWN: [&str; 22] = [
    "lock",
    "engine.json",
    "last.json",
    "kubeconfig",
    "pki",
    "store.journal",
    "api.sock",
    "router.token",
    "router.key",
    "images",
    "sandboxes",
    "volumes",
    "pods",
    "drivers.json",
    "probe",
    "network.json",
    "hub.json",
    "outside.log",
    "node-name",
    "up.log",
    "store.redb",
    "format.json",
];

#[derive(Debug, Serialize, Deserialize)]
struct Format {
    format: u32,
    /// The version that wrote it first.
    version: String,
}

/// What is found in a directory.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// Nothing that counts.
    New,
    /// Of an earlier version, which wrote no format.
    Unmarked,
    Usable,
}

impl DataDir {
    /// Marks a new directory as ours; an error for one that this version must not touch.
    pub fn claim(&self) -> anyhow::Result<()> {
        if self.path.join(RESTORING).exists() {
            let message = format!("the restore into {} was cut off", self.path.display());
            return Err(hinted(message, "remove the directory and run `asb restore` again"));
        }
        match self.find()? {
            Found::Usable => Ok(()),
            Found::New | Found::Unmarked => {
                let format = Format { format: FORMAT, version: env!("CARGO_PKG_VERSION").to_owned() };
                self.keep_secret(FILE, &serde_json::to_string(&format)?)
            }
        }
    }

    /// Begins to restore into this directory, which must not be in use yet. Until [`DataDir::restored`] no engine starts
    /// here.
    pub fn begin_restore(&self) -> anyhow::Result<()> {
        let is_lock = |name: &OsString| name == "lock";
        if self.names()?.iter().any(|name| !is_lock(name)) {
            let message = format!("{} is not empty", self.path.display());
            return Err(hinted(
                message,
                "a backup is restored into a new directory: choose one with --data-dir",
            ));
        }
        self.keep_secret(RESTORING, "")
    }

    pub fn restored(&self) -> anyhow::Result<()> {
        self.claim_restored().with_context(|| format!("failed to complete {}", self.path.display()))
    }

    fn claim_restored(&self) -> anyhow::Result<()> {
        let format = Format { format: FORMAT, version: env!("CARGO_PKG_VERSION").to_owned() };
        self.keep_secret(FILE, &serde_json::to_string(&format)?)?;
        fs::remove_file(self.path.join(RESTORING))?;
        Ok(fs::File::open(&self.path)?.sync_all()?)
    }

    fn find(&self) -> anyhow::Result<Found> {
        let path = self.path.display();
        let marked = match fs::read(self.path.join(FILE)) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error).with_context(|| format!("failed to read {path}/{FILE}")),
        };
        if let Some(text) = &marked {
            let format: Format = serde_json::from_slice(text).map_err(|error| {
                hinted(
                    format!("{path}/{FILE} is damaged: {error}"),
                    "if the directory is one of asb's, remove that file; else choose another --data-dir",
                )
            })?;
            if format.format > FORMAT {
                let Format { format, version } = format;
                return Err(hinted(
                    format!(
                        "{path} was written by asb {version} (format {format}), which is newer than this one ({FORMAT})"
                    ),
                    "use that version, or choose another --data-dir",
                ));
            }
        }
        let has_store = fs::metadata(self.path.join(STORE)).is_ok_and(|file| file.len() > 0);
        if has_store {
            return Ok(if marked.is_some() { Found::Usable } else { Found::Unmarked });
        }
        if let Some(kept) = self.orphaned()? {
            return Err(hinted(
                format!("{path}/{STORE} is missing or empty, but {kept} has the files of its sandboxes"),
                "put the file back, or restore a backup into another directory with `asb restore`; nothing was changed",
            ));
        }
        if marked.is_some() {
            return Ok(Found::Usable);
        }
        let names = self.names()?;
        let foreign = names.iter().find(|name| !KNOWN.iter().any(|known| *name == known) && !is_hidden(name));
        match foreign {
            None => Ok(Found::New),
            Some(name) => Err(hinted(
                format!("{path} is no data directory of asb: it has {name:?}"),
                "choose a new or empty directory with --data-dir",
            )),
        }
    }

    /// A directory of the node that is not empty.
    fn orphaned(&self) -> anyhow::Result<Option<&'static str>> {
        for name in ["volumes", "pods", "sandboxes"] {
            if !names_in(&self.path.join(name))?.is_empty() {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    fn names(&self) -> anyhow::Result<Vec<OsString>> {
        names_in(&self.path)
    }
}

/// Half-written files of ours.
fn is_hidden(name: &OsString) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

fn names_in(directory: &Path) -> anyhow::Result<Vec<OsString>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("failed to read {}", directory.display()))?,
    };
    entries.map(|entry| Ok(entry?.file_name())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(files: &[(&str, &str)]) -> (tempfile::TempDir, DataDir) {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let data_dir = DataDir::choose(Some(dir.path())).unwrap();
        (dir, data_dir)
    }

    /// All files with what is in them.
    fn contents(path: &Path) -> Vec<(OsString, Vec<u8>)> {
        let mut all: Vec<_> = names_in(path)
            .unwrap()
            .into_iter()
            .map(|name| (name.clone(), fs::read(path.join(name)).unwrap_or_default()))
            .collect();
        all.sort();
        all
    }

    #[test]
    fn a_new_directory_and_one_of_an_earlier_version_are_taken() {
        for files in [
            vec![],
            vec![("lock", ""), ("up.log", "x"), ("images/layers/x", "")],
            vec![("store.redb", "redb"), ("volumes/pvc-1/file", "data"), ("notes.txt", "the user's")],
        ] {
            let (dir, data_dir) = directory(&files);
            data_dir.claim().unwrap();
            assert!(dir.path().join(FILE).exists(), "{files:?}");
            data_dir.claim().unwrap();
        }
    }

    #[test]
    fn a_directory_that_is_newer_damaged_foreign_or_without_its_store_is_refused_and_left_alone() {
        let newer = r#"{"format": 2, "version": "9.0.0"}"#;
        let ours = r#"{"format": 1, "version": "0.1.0"}"#;
        for (files, message) in [
            (vec![("format.json", newer), ("store.redb", "x")], "was written by asb 9.0.0 (format 2)"),
            (vec![("format.json", "{"), ("store.redb", "x")], "format.json is damaged"),
            (
                vec![("format.json", ours), ("volumes/pvc-1/file", "data")],
                "store.redb is missing or empty, but volumes",
            ),
            (
                vec![("format.json", ours), ("store.redb", ""), ("pods/u/v", "data")],
                "missing or empty, but pods",
            ),
            (vec![("sandboxes/a/spec", "data")], "store.redb is missing or empty, but sandboxes"),
            (vec![("thesis.tex", "years of work")], "is no data directory of asb: it has \"thesis.tex\""),
            (vec![("restoring", ""), ("store.redb", "x")], "was cut off"),
        ] {
            let (dir, data_dir) = directory(&files);
            let before = contents(dir.path());
            let error = data_dir.claim().unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
            assert_eq!(contents(dir.path()), before, "{files:?}");
        }
    }

    #[test]
    fn a_backup_is_restored_into_a_new_directory_only() {
        let (_dir, used) = directory(&[("store.redb", "x")]);
        assert!(used.begin_restore().unwrap_err().to_string().contains("is not empty"));
        let (_dir, fresh) = directory(&[("lock", "")]);
        fresh.begin_restore().unwrap();
        assert!(fresh.claim().is_err(), "not before it is complete");
        fs::write(fresh.path().join("store.redb"), "x").unwrap();
        fresh.restored().unwrap();
        fresh.claim().unwrap();
    }
}
