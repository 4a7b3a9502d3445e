//! Makes a new data directory from a backup.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, File};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use asb_apiserver::backup::Stored;
use asb_runtime::Images;
use asb_runtime::image::Record;
use asb_runtime::tree::{self, Purpose};

use super::adapt::{Here, adapt, has_files};
use super::check::check;
use super::manifest::Manifest;
use super::{IMAGES, LAYERS, OBJECTS, VOLUMES};
use crate::commands::cp::tell_skipped;
use crate::data_dir::DataDir;
use crate::failure::hinted;

pub fn run(data_dir: &DataDir, backup: &Path) -> anyhow::Result<ExitCode> {
    let manifest = Manifest::read(backup)?;
    manifest.verify(backup)?;
    let of_machine = check_objects(backup, &manifest)?;
    data_dir.create()?;
    let Some(_lock) = data_dir.lock()? else {
        let message = format!("an engine runs in {}", data_dir.path().display());
        return Err(hinted(message, "choose a new directory with --data-dir"));
    };
    data_dir.begin_restore()?;
    let missing = restore_objects(data_dir.path(), backup, &manifest, of_machine.as_deref())
        .context("failed to restore the objects")?;
    for volume in &manifest.volumes {
        restore_volume(data_dir.path(), backup, &manifest, volume)
            .with_context(|| format!("failed to restore volume {volume}"))?;
    }
    restore_images(data_dir.path(), backup, &manifest).context("failed to restore the images")?;
    rustix::fs::syncfs(File::open(data_dir.path())?)?;
    data_dir.restored()?;
    println!(
        "{}: {} objects, {} volumes, {} images",
        data_dir.path().display(),
        manifest.objects,
        manifest.volumes.len(),
        manifest.images.len()
    );
    for volume in missing {
        eprintln!(
            "warning: the files of volume {volume} are not in the backup; Pods that use it wait for them"
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks every object before anything is made of them. Returns the name of the machine that they are of: the Node that was
/// written last, for a directory may have been on several.
fn check_objects(backup: &Path, manifest: &Manifest) -> anyhow::Result<Option<String>> {
    let mut machine: Option<(u64, String)> = None;
    for stored in objects(backup, manifest)? {
        let stored = stored?;
        check(&stored).map_err(|problem| {
            let message = format!("{}: {}: {problem}", backup.join(OBJECTS).display(), stored.key);
            hinted(message, "no engine stores such an object: `asb backup` has not made this backup")
        })?;
        if let Some(name) = stored.key.strip_prefix("nodes//") {
            let written = stored.object["metadata"]["resourceVersion"].as_str();
            let written = written.and_then(|text| text.parse().ok()).unwrap_or_default();
            machine = machine.max(Some((written, name.to_owned())));
        }
    }
    Ok(machine.map(|(_, name)| name))
}

/// The objects of a backup, one after the other.
fn objects(
    backup: &Path,
    manifest: &Manifest,
) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Stored>>> {
    let lines = BufReader::new(manifest.open(backup, OBJECTS)?).lines();
    Ok(lines.map(|line| Ok(serde_json::from_str(&line?)?)))
}

/// Returns the volumes of the engine whose files the backup does not have.
fn restore_objects(
    data_dir: &Path,
    backup: &Path,
    manifest: &Manifest,
    instead_of: Option<&str>,
) -> anyhow::Result<BTreeSet<String>> {
    // Stored in the new directory: its Pods are bound to this name.
    let node = asb_node::node_name(data_dir).context("failed to store the name of the Node")?;
    let volumes = data_dir.join(VOLUMES);
    let here = Here { node: &node, volumes: &volumes, instead_of };
    let (mut missing, mut failed) = (BTreeSet::new(), None);
    let lines =
        objects(backup, manifest)?.map_while(|stored| stored.map_err(|error| failed = Some(error)).ok());
    let objects = lines.filter_map(|stored| {
        if stored.key.starts_with("persistentvolumes/") && has_files(&stored.object) {
            let name = stored.object["metadata"]["name"].as_str().unwrap_or_default();
            if !manifest.volumes.iter().any(|known| known == name) {
                missing.insert(name.to_owned());
            }
        }
        adapt(stored, &here)
    });
    asb_apiserver::backup::restore(data_dir, manifest.revision, objects)?;
    failed.map_or(Ok(missing), Err)
}

fn restore_volume(data_dir: &Path, backup: &Path, manifest: &Manifest, name: &str) -> anyhow::Result<()> {
    let volumes = data_dir.join(VOLUMES);
    let into = volumes.join(name);
    DirBuilder::new().recursive(true).mode(0o700).create(&volumes)?;
    DirBuilder::new().mode(0o700).create(&into)?;
    let archive = manifest.open(backup, &format!("{VOLUMES}/{name}.tar"))?;
    let contents = tree::unpack(BufReader::with_capacity(128 << 10, archive), &into, Purpose::Volume)?;
    if !contents.skipped.is_empty() {
        eprintln!("warning: volume {name} did not come back as it was:");
        tell_skipped(&contents);
    }
    Ok(())
}

fn restore_images(data_dir: &Path, backup: &Path, manifest: &Manifest) -> anyhow::Result<()> {
    if !manifest.files.contains_key(IMAGES) {
        return Ok(());
    }
    let records: Vec<Record> = serde_json::from_reader(BufReader::new(manifest.open(backup, IMAGES)?))?;
    let images = Images::open(&data_dir.join("images"))?;
    images.restore(&records, |hex| {
        manifest.open(backup, &format!("{LAYERS}/{hex}.tar")).map_err(io::Error::other)
    })?;
    Ok(())
}
