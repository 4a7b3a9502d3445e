//! Whether a directory is a data directory that this version can use.
//!
//! An engine removes what its objects do not know: Pods that are gone take their roots and files with them. So it must
//! never start on the files of one store with the objects of another, of an older copy, or with none.
//!
//! `format.json` names the store that belongs to the directory. Directories of versions that did not write it are taken
//! as they are, once.

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
/// What a freshly made filesystem has at its top.
const LOST_AND_FOUND: &str = "lost+found";
/// There while a backup is restored.
const RESTORING: &str = "restoring";
/// How the directory begins in which `asb doctor` tries a network.
pub const DOCTOR: &str = ".doctor-";
/// What versions before `format.json` may have left in a directory without a store.
const KNOWN: [&str; 23] = [
    "lock",
    "engine.json",
    "last.json",
    "kubeconfig",
    "pki",
    "store.journal",
    "store.mark",
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
    /// The number of the store, in hexadecimal digits. Earlier versions did not write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    store: Option<String>,
}

impl Format {
    fn of(store: u64) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { format: FORMAT, version, store: Some(format!("{store:016x}")) }
    }
}

impl DataDir {
    /// Marks a new directory as ours; an error for one that this version must not touch. The caller holds the lock.
    pub fn mark_as_ours(&self) -> anyhow::Result<()> {
        let format = self.find()?;
        let found = Format::of(self.store()?);
        match format.as_ref().and_then(|format| format.store.as_ref()) {
            Some(known) if Some(known) == found.store.as_ref() => Ok(()),
            Some(_) => Err(hinted(
                format!("{}/{STORE} is the store of another directory", self.path.display()),
                "put back the file that belongs here, or restore a backup into another directory with `asb restore`; \
                 nothing was changed",
            )),
            None => {
                let version = format.map_or(found.version, |format| format.version);
                self.keep_secret(FILE, &serde_json::to_string(&Format { version, ..found })?)
            }
        }
    }

    /// An error for a directory that this version must not touch. Changes nothing, and needs no lock: for commands that work
    /// beside an engine or without one.
    pub fn check(&self) -> anyhow::Result<()> {
        self.find().map(drop)
    }

    /// The number of the store, which is made if there is none.
    fn store(&self) -> anyhow::Result<u64> {
        asb_apiserver::backup::identify(&self.path).map_err(|error| match error {
            asb_apiserver::Error::Unfit { .. } => hinted(
                format!("{error}; Pods and volumes that it does not know would be removed"),
                "put the newest store.redb back, or restore a backup into another directory with `asb restore`; \
                 nothing was changed",
            ),
            error => hinted(
                format!("{:#}", anyhow::Error::from(error)),
                "put a whole store.redb back, or restore a backup into another directory with `asb restore`",
            ),
        })
    }

    /// Begins to restore into this directory, which must not be in use yet. Until [`DataDir::restored`] no engine starts
    /// here.
    pub fn begin_restore(&self) -> anyhow::Result<()> {
        let counts = |name: &OsString| name != "lock" && name != LOST_AND_FOUND && !is_half_written(name);
        if self.names()?.iter().any(counts) {
            let message = format!("{} is not empty", self.path.display());
            return Err(hinted(
                message,
                "a backup is restored into a new directory: choose one with --data-dir",
            ));
        }
        self.keep_secret(RESTORING, "")
    }

    pub fn restored(&self) -> anyhow::Result<()> {
        self.mark_restored().with_context(|| format!("failed to complete {}", self.path.display()))
    }

    fn mark_restored(&self) -> anyhow::Result<()> {
        self.keep_secret(FILE, &serde_json::to_string(&Format::of(self.store()?))?)?;
        fs::remove_file(self.path.join(RESTORING))?;
        Ok(fs::File::open(&self.path)?.sync_all()?)
    }

    /// What `format.json` says of a directory that can be used; `None` for one that is new or of an earlier version.
    fn find(&self) -> anyhow::Result<Option<Format>> {
        let path = self.path.display();
        if self.path.join(RESTORING).exists() {
            let message = format!("the restore into {path} was cut off, or is under way");
            return Err(hinted(message, "if none runs, remove the directory and run `asb restore` again"));
        }
        let format = self.format()?;
        if fs::metadata(self.path.join(STORE)).is_ok_and(|file| file.len() > 0) {
            return Ok(format);
        }
        let hint = "put the file back, or restore a backup into another directory with `asb restore`; nothing was changed";
        if let Some(kept) = self.orphaned()? {
            let message =
                format!("{path}/{STORE} is missing or empty, but {kept} has the files of its sandboxes");
            return Err(hinted(message, hint));
        }
        if format.as_ref().is_some_and(|format| format.store.is_some()) {
            return Err(hinted(format!("{path}/{STORE} is missing or empty"), hint));
        }
        if format.is_some() {
            return Ok(format);
        }
        let names = self.names()?;
        let is_ours = |name: &OsString| KNOWN.iter().any(|known| name == known) || is_half_written(name);
        let foreign = names.iter().find(|name| !is_ours(name) && *name != LOST_AND_FOUND);
        match foreign {
            None => Ok(None),
            Some(name) => Err(hinted(
                format!("{path} is no data directory of asb: it has {name:?}"),
                "choose a new or empty directory with --data-dir",
            )),
        }
    }

    /// Reads `format.json`, if there is one; an error for one that is damaged or newer than this version.
    fn format(&self) -> anyhow::Result<Option<Format>> {
        let path = self.path.display();
        let text = match fs::read(self.path.join(FILE)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("failed to read {path}/{FILE}")),
        };
        // A newer version may have written anything else beside these two.
        #[derive(Deserialize)]
        struct Version {
            format: u32,
            version: String,
        }
        let damaged = |error| {
            hinted(
                format!("{path}/{FILE} is damaged: {error}"),
                "if the directory is one of asb's, remove that file; else choose another --data-dir",
            )
        };
        let Version { format, version } = serde_json::from_slice(&text).map_err(damaged)?;
        if format > FORMAT {
            let message = format!(
                "{path} was written by asb {version} (format {format}), which is newer than this one ({FORMAT})"
            );
            return Err(hinted(message, "use that version, or choose another --data-dir"));
        }
        serde_json::from_slice(&text).map(Some).map_err(damaged)
    }

    /// A directory of the node that has the files of a Pod, a volume or a sandbox.
    fn orphaned(&self) -> anyhow::Result<Option<&'static str>> {
        // What else is below `sandboxes` is made before there is a store: programs, and slots that end with their engine.
        for name in ["volumes", "pods", "sandboxes/sandbox"] {
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

/// What an engine or a command that was cut off has left: a file under its first name (`.format.json.new`), or the
/// directory of `asb doctor`.
fn is_half_written(name: &OsString) -> bool {
    let Some(name) = name.to_str() else { return false };
    let file = name.strip_prefix('.').and_then(|name| name.strip_suffix(".new"));
    file.is_some_and(|file| file == RESTORING || KNOWN.contains(&file)) || name.starts_with(DOCTOR)
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

    /// A store of its own, as it was written after so many more starts.
    fn store() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        asb_apiserver::backup::identify(dir.path()).unwrap();
        dir
    }

    fn copy(from: &tempfile::TempDir, to: &tempfile::TempDir) {
        fs::copy(from.path().join(STORE), to.path().join(STORE)).unwrap();
    }

    #[test]
    fn a_new_directory_and_one_of_an_earlier_version_are_taken() {
        let earlier = r#"{"format": 1, "version": "0.0.9"}"#;
        for (files, has_store) in [
            (vec![], false),
            (vec![("lock", ""), ("up.log", "x"), ("images/layers/x", "")], false),
            (vec![("format.json", earlier)], false),
            (vec![("lost+found/x", ""), (".format.json.new", ""), (".doctor-1/x", "")], false),
            // A first start that was killed before it had a store.
            (vec![("sandboxes/slot/1/x", ""), ("sandboxes/bin/x/y", ""), ("store.redb", "")], false),
            (vec![("volumes/pvc-1/file", "data"), ("notes.txt", "the user's")], true),
            (vec![("volumes/pvc-1/file", "data"), ("format.json", earlier)], true),
        ] {
            let (dir, data_dir) = directory(&files);
            if has_store {
                copy(&store(), &dir);
            }
            data_dir.mark_as_ours().unwrap();
            let format = data_dir.format().unwrap().expect("marked");
            assert!(format.store.is_some(), "{files:?}");
            data_dir.mark_as_ours().unwrap();
            assert_eq!(data_dir.format().unwrap().unwrap().store, format.store);
        }
    }

    #[test]
    fn the_store_of_another_directory_and_none_where_one_was_are_refused_and_left_alone() {
        let (dir, data_dir) = directory(&[]);
        data_dir.mark_as_ours().unwrap();
        let own = fs::read(dir.path().join(STORE)).unwrap();
        copy(&store(), &dir);
        let before = contents(dir.path());
        let error = data_dir.mark_as_ours().unwrap_err().to_string();
        assert!(error.contains("is the store of another directory"), "{error}");
        assert_eq!(contents(dir.path()), before);
        fs::remove_file(dir.path().join(STORE)).unwrap();
        let error = data_dir.mark_as_ours().unwrap_err().to_string();
        assert!(error.contains("store.redb is missing or empty"), "{error}");
        assert!(!dir.path().join(STORE).exists());
        fs::write(dir.path().join(STORE), own).unwrap();
        data_dir.mark_as_ours().unwrap();
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
            (vec![("sandboxes/sandbox/a/spec", "data")], "store.redb is missing or empty, but sandboxes"),
            (vec![(".ssh/id_ed25519", "key")], "is no data directory of asb: it has \".ssh\""),
            (vec![(".bashrc.new", "")], "is no data directory of asb: it has \".bashrc.new\""),
            (vec![("thesis.tex", "years of work")], "is no data directory of asb: it has \"thesis.tex\""),
            (vec![("restoring", ""), ("store.redb", "x")], "was cut off"),
            (vec![("format.json", ours), ("store.redb", "no store")], "failed to open the store"),
        ] {
            let (dir, data_dir) = directory(&files);
            let before = contents(dir.path());
            let error = data_dir.mark_as_ours().unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
            assert_eq!(contents(dir.path()), before, "{files:?}");
            assert_eq!(data_dir.check().is_err(), message != "failed to open the store", "{files:?}");
        }
    }

    #[test]
    fn a_backup_is_restored_into_a_new_directory_only() {
        let (_dir, used) = directory(&[("store.redb", "x")]);
        assert!(used.begin_restore().unwrap_err().to_string().contains("is not empty"));
        let (_dir, home) = directory(&[(".ssh/key", "x")]);
        assert!(home.begin_restore().unwrap_err().to_string().contains("is not empty"));
        let (_dir, fresh) = directory(&[("lock", ""), ("lost+found/x", "")]);
        fresh.begin_restore().unwrap();
        assert!(fresh.mark_as_ours().is_err(), "not before it is complete");
        fresh.restored().unwrap();
        fresh.mark_as_ours().unwrap();
    }

    #[test]
    fn a_restore_that_is_cut_off_before_it_began_can_begin_again_and_one_after_that_is_refused() {
        // Killed before the mark had its name: nothing was restored yet.
        let (_dir, data_dir) = directory(&[("lock", ""), (".restoring.new", "")]);
        data_dir.check().unwrap();
        data_dir.begin_restore().unwrap();
        for begin in [DataDir::mark_as_ours, DataDir::check, DataDir::begin_restore] {
            assert!(begin(&data_dir).is_err());
        }
        assert!(data_dir.check().unwrap_err().to_string().contains("was cut off"));
        // Killed when all was there but the mark: it says so itself.
        let (dir, data_dir) = directory(&[]);
        data_dir.begin_restore().unwrap();
        asb_apiserver::backup::identify(dir.path()).unwrap();
        data_dir.mark_restored().unwrap();
        fs::write(dir.path().join(RESTORING), "").unwrap();
        assert!(data_dir.mark_as_ours().unwrap_err().to_string().contains("was cut off"));
    }
}
