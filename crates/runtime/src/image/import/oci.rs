//! The images of an OCI layout: `index.json` leads to manifests, everything else is a blob.

use super::{Document, Error, Files, Found, Layer, blob_path, check, malformed};
use crate::image::Limits;
use crate::image::manifest::{Descriptor, architecture, choose};

/// Annotations that name an image, the fullest first.
const NAMES: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];

pub fn images(files: &Files, limits: &Limits) -> Result<Vec<Found>, Error> {
    let Document::Index(entries) = Document::parse(&files.read("index.json", limits)?)? else {
        return Err(malformed("index.json", "it is not an index"));
    };
    // One image for several machines may be listed as such, without a further index.
    let platforms = entries.iter().filter(|entry| entry.platform.is_some()).count();
    let entries = match platforms > 1 && entries.iter().all(|entry| name(entry) == name(&entries[0])) {
        true => vec![choose(&entries, architecture())?.clone()],
        false => entries,
    };
    entries.iter().map(|entry| image(files, entry, limits)).collect()
}

fn image(files: &Files, entry: &Descriptor, limits: &Limits) -> Result<Found, Error> {
    let mut digest = entry.digest.clone();
    for _ in 0..3 {
        let text = files.read(&blob_path(&digest), limits)?;
        check("a manifest", &digest, &text)?;
        match Document::parse(&text)? {
            Document::Index(entries) => digest = choose(&entries, architecture())?.digest.clone(),
            Document::Manifest(manifest) => {
                let layers = manifest.layers.into_iter();
                return Ok(Found {
                    names: name(entry).into_iter().collect(),
                    manifest: Some(digest),
                    config: (blob_path(&manifest.config.digest), manifest.config.digest),
                    layers: layers.map(|it| Layer { path: blob_path(&it.digest), blob: Some(it) }).collect(),
                });
            }
        }
    }
    Err(malformed("index.json", "indexes are nested too deeply"))
}

/// A bare tag is no name.
fn name(entry: &Descriptor) -> Option<String> {
    let named = NAMES.iter().filter_map(|key| entry.annotations.get(*key));
    named.filter(|name| name.contains([':', '/'])).map(|name| name.to_owned()).next()
}
