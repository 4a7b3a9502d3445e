//! Images from files: OCI layouts, `docker save` archives (both as a directory or a tar archive, compressed or not) and
//! plain root directories.

mod directory;
mod docker;
mod files;
mod oci;

use std::path::Path;

pub use directory::{Recipe, from_directory};
use files::Files;

use super::Error;
use super::assemble::{self, Assembled};
use super::digest::Digest;
use super::error::malformed;
use super::manifest::{Descriptor, Document, Manifest};
use super::reference::Reference;
use super::store::{Blob, Lease, Record, Store, wrong_digest};

/// An image that was found in an archive: what it is called there, and its parts.
struct Found {
    names: Vec<String>,
    manifest: Option<Digest>,
    /// Where the config is, and every layer with the digest of its file, if that is known.
    config: (String, Digest),
    layers: Vec<Layer>,
}

struct Layer {
    path: String,
    blob: Option<Descriptor>,
}

/// Imports every image of an archive or layout. `name` is for an archive with one image, and wins over its own names.
pub fn import(store: &Store, path: &Path, name: Option<&Reference>) -> Result<Vec<Record>, Error> {
    let lease = Lease::new(store, &[])?;
    if path.is_dir() && !path.join("oci-layout").exists() && !path.join("manifest.json").exists() {
        let name = name.ok_or_else(|| no_name(path))?;
        return from_directory(store, path, name, &Recipe::default()).map(|record| vec![record]);
    }
    let files = Files::open(path, &lease, &store.budget()?)?;
    let images = if files.has("index.json") {
        oci::images(&files, &store.limits)?
    } else if files.has("manifest.json") {
        docker::images(&files, &store.limits)?
    } else {
        let problem = "it has neither an index.json (OCI) nor a manifest.json (docker save)";
        return Err(malformed(path.display().to_string(), problem));
    };
    match (images.as_slice(), name) {
        ([], _) => return Err(malformed(path.display().to_string(), "it holds no image")),
        ([_], _) | (_, None) => {}
        (many, Some(_)) => {
            let problem = format!("it holds {} images; import them without giving a name", many.len());
            return Err(malformed(path.display().to_string(), problem));
        }
    }
    let mut records = Vec::new();
    for image in images {
        let names = match name {
            Some(name) => vec![name.clone()],
            None => image.names.iter().map(|name| Reference::parse(name)).collect::<Result<_, _>>()?,
        };
        if names.is_empty() {
            return Err(no_name(path));
        }
        records.extend(add(store, &lease, &files, image, &names)?);
    }
    Ok(records)
}

fn add(
    store: &Store,
    lease: &Lease,
    files: &Files,
    image: Found,
    names: &[Reference],
) -> Result<Vec<Record>, Error> {
    let (path, id) = image.config;
    let config = files.read(&path, &store.limits)?;
    check("the config", &id, &config)?;
    let described = Manifest {
        config: descriptor(id.clone(), config.len() as u64),
        // Only what kind of layers there are is looked at; those of docker save do not say.
        layers: image
            .layers
            .iter()
            .map(|layer| layer.blob.clone().unwrap_or(descriptor(id.clone(), 0)))
            .collect(),
    };
    let (config, layers) = described.describe(&config, &store.limits)?;
    let ids: Vec<_> = layers.into_iter().map(|(_, id)| id).collect();
    lease.add(store, &ids)?;
    let budget = store.budget()?;
    for (layer, id) in image.layers.iter().zip(&ids) {
        if store.has_layer(id) {
            continue;
        }
        let blob = layer.blob.as_ref().map(|blob| Blob { digest: &blob.digest, size: blob.size });
        store.add_layer(lease, files.open_file(&layer.path)?, blob.as_ref(), Some(id), &budget)?;
    }
    let assembled = || Assembled {
        manifest: image.manifest.clone(),
        id: id.clone(),
        layers: ids.clone(),
        config: config.clone(),
    };
    names.iter().map(|name| assemble::name(store, lease, name, assembled())).collect()
}

fn descriptor(digest: Digest, size: u64) -> Descriptor {
    Descriptor { media_type: String::new(), digest, size, platform: None, annotations: Default::default() }
}

fn check(what: &str, expected: &Digest, bytes: &[u8]) -> Result<(), Error> {
    let found = Digest::of(bytes);
    if found == *expected { Ok(()) } else { Err(wrong_digest(what, expected, found)) }
}

fn no_name(path: &Path) -> Error {
    malformed(path.display().to_string(), "it does not say what the image is called; give it a name")
}

/// Where a layout keeps a blob.
fn blob_path(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}
