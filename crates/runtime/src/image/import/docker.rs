//! The images of a `docker save` archive: `manifest.json` lists them with the paths of their parts.

use serde::Deserialize;

use super::{Error, Files, Found, Layer, malformed};
use crate::image::Limits;
use crate::image::digest::Digest;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

pub fn images(files: &Files, limits: &Limits) -> Result<Vec<Found>, Error> {
    let text = files.read("manifest.json", limits)?;
    let entries: Vec<Entry> =
        serde_json::from_slice(&text).map_err(|error| malformed("manifest.json", error))?;
    entries.into_iter().map(image).collect()
}

fn image(entry: Entry) -> Result<Found, Error> {
    // `HEX.json` or `blobs/sha256/HEX`: the name is the digest.
    let file = entry.config.rsplit('/').next().unwrap_or_default();
    let hex = file.strip_suffix(".json").unwrap_or(file);
    let digest: Digest =
        format!("sha256:{hex}").parse().map_err(|problem| malformed("manifest.json", problem))?;
    Ok(Found {
        names: entry.repo_tags.unwrap_or_default(),
        manifest: None,
        config: (entry.config, digest),
        layers: entry.layers.into_iter().map(|path| Layer { path, blob: None }).collect(),
    })
}
