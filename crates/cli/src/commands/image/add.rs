//! `asb image import` and `asb image build-from-dir`.

use std::path::{Path, PathBuf};

use anyhow::Context;
use asb_runtime::image::{Config, HOST, Images, Recipe, Record, Reference};

use super::{explain, human, open, reference};
use crate::data_dir::DataDir;
use crate::failure::hinted;

#[derive(Debug, clap::Args)]
pub struct BuildFromDir {
    /// What becomes the root; only what is on the same filesystem
    directory: PathBuf,
    name: String,
    /// The program that runs, one word each time
    #[arg(long, value_name = "WORD", allow_hyphen_values = true)]
    entrypoint: Vec<String>,
    /// Its default arguments, one word each time
    #[arg(long, value_name = "WORD", allow_hyphen_values = true)]
    cmd: Vec<String>,
    #[arg(long, short, value_name = "NAME=VALUE")]
    env: Vec<String>,
    #[arg(long, value_name = "DIR")]
    workdir: Option<String>,
    /// Who it runs as: USER[:GROUP], names or numbers
    #[arg(long)]
    user: Option<String>,
}

pub fn import(data_dir: &DataDir, path: &Path, name: Option<&str>) -> anyhow::Result<()> {
    let name = name.map(new_name).transpose()?;
    let images = open(data_dir, Default::default())?;
    // Read through its descriptor: it may be a pipe.
    let path = if path == Path::new("-") { Path::new("/dev/stdin") } else { path };
    let records = images.import(path, name.as_ref()).map_err(explain);
    let records = records.with_context(|| format!("failed to import {}", path.display()))?;
    records.iter().try_for_each(|record| say(&images, record))
}

pub fn build(data_dir: &DataDir, build: BuildFromDir) -> anyhow::Result<()> {
    let name = new_name(&build.name)?;
    let images = open(data_dir, Default::default())?;
    let config = Config {
        entrypoint: build.entrypoint,
        cmd: build.cmd,
        env: build.env,
        working_dir: build.workdir.unwrap_or_default(),
        user: build.user.unwrap_or_default(),
        ..Config::default()
    };
    let record = images.from_directory(&build.directory, &name, &Recipe { config }).map_err(explain);
    let record =
        record.with_context(|| format!("failed to make an image of {}", build.directory.display()))?;
    say(&images, &record)
}

/// A name that an image of this machine may have.
fn new_name(name: &str) -> anyhow::Result<Reference> {
    let reference = reference(name)?;
    match reference.registry.is_none() && reference.repository == HOST {
        true => Err(hinted(format!("`{name}` is the image of the machine itself"), "choose another name")),
        false => Ok(reference),
    }
}

/// The name is data; the rest is for people.
pub fn say(images: &Images, record: &Record) -> anyhow::Result<()> {
    for skipped in images.skipped(record)? {
        eprintln!("skipped {skipped}");
    }
    eprintln!("{} in {} layers", human(record.size), record.layers.len());
    println!("{}", record.name);
    Ok(())
}
