//! Makes a backup while the engine runs.

use std::fs::{DirBuilder, File};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use asb_apiserver::backup::{Head, PATH, Stored};
use asb_runtime::{Images, tree};
use futures::TryStreamExt;
use http::Request;
use kube::Client;
use kube::client::Body;
use tokio_util::io::{StreamReader, SyncIoBridge};

use super::manifest::{self, Hashing, Manifest};
use super::view::View;
use super::{Backup, IMAGES, LAYERS, OBJECTS, VOLUMES};
use crate::commands::cp::bar;
use crate::commands::volume::{CutFiles, tell_cut};
use crate::connect;
use crate::data_dir::DataDir;
use crate::failure::hinted;

pub async fn run(data_dir: &DataDir, backup: Backup) -> anyhow::Result<ExitCode> {
    let client = connect::running_client(data_dir).await?;
    make_directory(&backup.directory)?;
    let copy = Copy { directory: &backup.directory, manifest: Manifest::new(), cut: Vec::new() };
    let (manifest, cut) = copy.run(data_dir, client, &backup).await?;
    for volume in &manifest.in_use {
        eprintln!("warning: volume {volume} was in use while it was copied; files may be halfway");
    }
    tell_cut(&cut);
    if backup.json {
        println!("{}", serde_json::to_string_pretty(&manifest)?);
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "{}: {} objects, {} volumes, {} images",
        backup.directory.display(),
        manifest.objects,
        manifest.volumes.len(),
        manifest.images.len()
    );
    Ok(ExitCode::SUCCESS)
}

/// A new directory that only we may look into.
fn make_directory(path: &Path) -> anyhow::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let is_empty = std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
            if !is_empty {
                let message = format!("{} exists and is not an empty directory", path.display());
                return Err(hinted(message, "choose a new directory: a backup never overwrites anything"));
            }
            use std::os::unix::fs::PermissionsExt;
            Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))?)
        }
        Err(error) => Err(error).with_context(|| format!("failed to make {}", path.display())),
    }
}

/// A backup that is being made.
struct Copy<'a> {
    directory: &'a Path,
    manifest: Manifest,
    /// Files of volumes that became shorter while they were copied.
    cut: CutFiles,
}

impl Copy<'_> {
    async fn run(
        mut self,
        data_dir: &DataDir,
        client: Client,
        backup: &Backup,
    ) -> anyhow::Result<(Manifest, CutFiles)> {
        let objects = self.objects(client.clone()).await.context("failed to copy the objects of the API")?;
        if backup.volumes {
            self.make(VOLUMES)?;
            let before = View::of(&objects);
            for volume in before.kept_here() {
                self.volume(data_dir, volume).await?;
            }
            let after = View::now(client).await.context("failed to ask what became of the volumes")?;
            self.drop_lost(&before, &after)?;
            let in_use = |volume: &&String| before.uses(volume) || after.uses(volume);
            self.manifest.in_use = self.manifest.volumes.iter().filter(in_use).cloned().collect();
        }
        if backup.images {
            self.make(LAYERS)?;
            self.images(&data_dir.path().join("images")).await?;
        }
        let cut = std::mem::take(&mut self.cut);
        Ok((self.finish()?, cut))
    }

    /// Writes the objects down as they come, and returns those that say what else there is to copy.
    async fn objects(&mut self, client: Client) -> anyhow::Result<Vec<Stored>> {
        let request = Request::get(PATH).body(Body::empty())?;
        let response = client.send(request).await?;
        let status = response.status();
        if status == http::StatusCode::NOT_FOUND {
            return Err(hinted(
                "the engine that runs cannot do it",
                "restart it with this version: `asb down`, `asb up`",
            ));
        }
        anyhow::ensure!(status.is_success(), "the engine answers {status}");
        let body = http_body_util::BodyDataStream::new(response.into_body()).map_err(io::Error::other);
        let reader = SyncIoBridge::new(StreamReader::new(body));
        let (out, directory) = (self.create(OBJECTS)?, self.directory.to_owned());
        let (head, kept, digest) = tokio::task::spawn_blocking(move || write_objects(reader, out))
            .await?
            .with_context(|| format!("failed to write {}", directory.join(OBJECTS).display()))?;
        self.manifest.revision = head.revision;
        self.manifest.objects = head.objects as u64;
        self.manifest.files.insert(OBJECTS.to_owned(), digest);
        Ok(kept)
    }

    async fn volume(&mut self, data_dir: &DataDir, name: &str) -> anyhow::Result<()> {
        let from = data_dir.path().join(VOLUMES).join(name);
        if !from.is_dir() {
            eprintln!("warning: volume {name} has no files here");
            return Ok(());
        }
        let file = format!("{VOLUMES}/{name}.tar");
        let out = self.create(&file)?;
        let packed = tokio::task::spawn_blocking(move || archive(out, |out| tree::pack_volume(&from, out)));
        let (cut, digest) = packed.await?.with_context(|| format!("failed to copy volume {name}"))?;
        self.cut.extend(cut.into_iter().map(|path| (name.to_owned(), path)));
        self.manifest.files.insert(file, digest);
        self.manifest.volumes.push(name.to_owned());
        Ok(())
    }

    /// Takes out volumes that the engine may have been removing while they were copied: their archives are not whole.
    fn drop_lost(&mut self, before: &View, after: &View) -> anyhow::Result<()> {
        let (lost, whole) = std::mem::take(&mut self.manifest.volumes)
            .into_iter()
            .partition::<Vec<_>, _>(|volume| before.has_lost(volume, after));
        self.manifest.volumes = whole;
        for volume in lost {
            let file = format!("{VOLUMES}/{volume}.tar");
            let path = self.directory.join(&file);
            std::fs::remove_file(&path).with_context(|| format!("failed to remove {}", path.display()))?;
            self.manifest.files.remove(&file);
            eprintln!(
                "warning: volume {volume} was deleted while it was copied; the backup does not have it"
            );
        }
        Ok(())
    }

    async fn images(&mut self, store: &Path) -> anyhow::Result<()> {
        let images = Images::open(store)?;
        let records = images.list()?;
        for record in &records {
            let _lease = images.lease(record)?;
            for layer in &record.layers {
                let file = format!("{LAYERS}/{}.tar", layer.hex());
                if self.manifest.files.contains_key(&file) {
                    continue;
                }
                let out = self.create(&file)?;
                let (images, layer) = (images.clone(), layer.clone());
                let packed =
                    tokio::task::spawn_blocking(move || archive(out, |out| images.export_layer(&layer, out)));
                let ((), digest) =
                    packed.await?.with_context(|| format!("failed to copy image {}", record.name))?;
                self.manifest.files.insert(file, digest);
            }
            self.manifest.images.push(record.name.clone());
        }
        let text = serde_json::to_vec_pretty(&records)?;
        let mut out = Hashing::new(self.create(IMAGES)?);
        out.write_all(&text)?;
        self.manifest.files.insert(IMAGES.to_owned(), out.finish());
        Ok(())
    }

    /// Says that everything is there, once it is on disk.
    fn finish(self) -> anyhow::Result<Manifest> {
        let (fresh, named) = (self.directory.join(".backup.json.new"), self.directory.join(manifest::FILE));
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(&serde_json::to_vec_pretty(&self.manifest)?)?;
        rustix::fs::syncfs(&file)?;
        std::fs::rename(&fresh, &named)?;
        File::open(self.directory)?.sync_all()?;
        Ok(self.manifest)
    }

    fn make(&self, name: &str) -> anyhow::Result<()> {
        let path = self.directory.join(name);
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("failed to make {}", path.display()))
    }

    fn create(&self, name: &str) -> anyhow::Result<File> {
        let path = self.directory.join(name);
        let file = File::options().write(true).create_new(true).mode(0o600).open(&path);
        file.with_context(|| format!("failed to create {}", path.display()))
    }
}

/// Writes an archive with its progress shown; returns its digest as well.
fn archive<T>(out: File, pack: impl FnOnce(&mut dyn Write) -> io::Result<T>) -> io::Result<(T, String)> {
    let bar = bar("copied");
    let mut hashing = Hashing::new(out);
    let packed = pack(&mut bar.wrap_write(&mut hashing));
    bar.finish_and_clear();
    packed.map(|packed| (packed, hashing.finish()))
}

/// Copies line by line. Keeps what tells of volumes; the rest may be large.
fn write_objects(source: impl Read, out: File) -> anyhow::Result<(Head, Vec<Stored>, String)> {
    let mut lines = io::BufRead::lines(io::BufReader::new(source));
    let mut out = BufWriter::new(Hashing::new(out));
    let head: Head = serde_json::from_str(&lines.next().context("the engine sent nothing")??)?;
    let (mut kept, mut count) = (Vec::new(), 0);
    for line in lines {
        let line = line?;
        let stored: Stored = serde_json::from_str(&line)?;
        out.write_all(line.as_bytes())?;
        out.write_all(b"\n")?;
        count += 1;
        if ["pods/", "persistentvolumes/", "persistentvolumeclaims/"]
            .iter()
            .any(|it| stored.key.starts_with(it))
        {
            kept.push(stored);
        }
    }
    anyhow::ensure!(count == head.objects, "the engine sent {count} of {} objects", head.objects);
    let hashing = out.into_inner().map_err(|error| error.into_error())?;
    Ok((head, kept, hashing.finish()))
}
