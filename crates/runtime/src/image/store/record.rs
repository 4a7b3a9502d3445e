//! What the store knows of an image under one name.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Error;
use crate::image::config::Config;
use crate::image::digest::Digest;
use crate::image::error::{malformed, storage};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// As [`crate::image::Reference`] writes it.
    pub name: String,
    /// What a registry knows it by; none for what was never at one.
    pub manifest: Option<Digest>,
    /// Digest of its config: what it is, whatever it is called.
    pub id: Digest,
    /// What is stacked, bottom first.
    pub layers: Vec<Digest>,
    /// Bytes of its files, with those of layers that it shares.
    pub size: u64,
    /// When it came here, in seconds since 1970.
    pub at: u64,
    pub config: Config,
    /// Those of its volumes that hold nothing in the image: they can live outside the root.
    pub volumes: Vec<PathBuf>,
}

impl Record {
    /// How the kubelet tells which image a container has: by its place in a registry, else by itself.
    pub fn image_id(&self) -> String {
        let place = crate::image::Reference::parse(&self.name).map(|name| name.place());
        match (&self.manifest, place) {
            (Some(manifest), Ok(place)) => format!("{place}@{manifest}"),
            _ => self.id.to_string(),
        }
    }

    /// Puts the record in place of whatever has its name.
    pub(super) fn write(&self, names: &Path, temporary: &Path) -> Result<(), Error> {
        let text = serde_json::to_vec_pretty(self).map_err(|error| malformed("a record", error))?;
        let write = || {
            let mut file =
                std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(temporary)?;
            file.write_all(&text)?;
            file.sync_all()?;
            std::fs::rename(temporary, names.join(file_name(&self.name)))
        };
        write().map_err(storage("write", temporary))
    }

    pub(super) fn read(names: &Path, name: &str) -> Result<Option<Self>, Error> {
        let path = names.join(file_name(name));
        match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            text => parse(&path, &text.map_err(storage("read", &path))?).map(Some),
        }
    }

    pub(super) fn remove(&self, names: &Path) -> Result<(), Error> {
        let path = names.join(file_name(&self.name));
        std::fs::remove_file(&path).map_err(storage("remove", &path))
    }
}

/// Every record, by name.
pub fn all(names: &Path) -> Result<Vec<Record>, Error> {
    let mut records = Vec::new();
    for entry in std::fs::read_dir(names).map_err(storage("read", names))?.flatten() {
        match std::fs::read(entry.path()) {
            // Removed meanwhile.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            text => records.push(parse(&entry.path(), &text.map_err(storage("read", &entry.path()))?)?),
        }
    }
    records.sort_by(|a: &Record, b| a.name.cmp(&b.name));
    Ok(records)
}

fn parse(path: &Path, text: &[u8]) -> Result<Record, Error> {
    serde_json::from_slice(text).map_err(|error| malformed(path.display().to_string(), error))
}

/// Names hold slashes and may be long.
fn file_name(name: &str) -> String {
    format!("{}.json", Digest::of(name.as_bytes()).hex())
}
