//! `asb image`: the images on this machine. Works on the data directory itself, so no engine is needed.

mod add;
mod list;
mod progress;
mod pull;
mod remove;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use asb_runtime::image::{Error, Images, Reference, Registries as Settings};

pub use self::pull::ensure;
use crate::args::Registries;
use crate::data_dir::DataDir;
use crate::failure::hinted;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Get an image from its registry
    #[command(after_help = "Examples:\n  asb image pull registry.example/team/app:1.2\n  \
        asb image pull registry.example/app@sha256:…\n  asb image pull --default-registry registry.example app:1.2")]
    Pull {
        /// HOST/NAME:TAG or HOST/NAME@DIGEST
        #[arg(required = true)]
        names: Vec<String>,
        #[command(flatten)]
        registries: Registries,
    },
    /// Take an image from an OCI or `docker save` archive (also compressed), an OCI layout or a root directory
    #[command(
        after_help = "Examples:\n  asb image import app.tar\n  docker save app | asb image import -\n  \
        asb image import ./rootfs app:1"
    )]
    Import {
        /// The archive or directory; `-` is standard input
        path: PathBuf,
        /// What to call it [default: as the archive says]
        name: Option<String>,
    },
    /// Make an image from a root directory
    #[command(after_help = "Examples:\n  asb image build-from-dir ./rootfs app:1\n  \
        asb image build-from-dir ./rootfs web --entrypoint /bin/server --env PORT=80 --user 1000\n  \
        asb run app:1 -- ls /")]
    BuildFromDir(add::BuildFromDir),
    /// List images
    #[command(
        visible_alias = "list",
        after_help = "Examples:\n  asb image ls\n  asb image ls --json | jq -r '.[].name'"
    )]
    Ls {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove images; refused while a sandbox uses them
    #[command(after_help = "Examples:\n  asb image rm app:1")]
    Rm {
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Remove layers and cut-off downloads that no image has any more
    #[command(after_help = "Examples:\n  asb image prune")]
    Prune,
}

pub async fn run(data_dir: &DataDir, command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Pull { names, registries } => pull::run(data_dir, &names, &registries).await?,
        Command::Import { path, name } => add::import(data_dir, &path, name.as_deref())?,
        Command::BuildFromDir(build) => add::build(data_dir, build)?,
        Command::Ls { json } => list::run(data_dir, json)?,
        Command::Rm { names } => remove::run(data_dir, &names)?,
        Command::Prune => remove::prune(data_dir)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn open(data_dir: &DataDir, registries: Settings) -> anyhow::Result<Images> {
    data_dir.check()?;
    data_dir.create()?;
    Images::with(&data_dir.path().join("images"), registries).context("failed to open the images")
}

fn reference(name: &str) -> anyhow::Result<Reference> {
    Reference::parse(name).map_err(explain)
}

/// An error of an image with what to do about it.
fn explain(error: Error) -> anyhow::Error {
    match error.hint() {
        Some(hint) => {
            let causes = std::iter::successors(std::error::Error::source(&error), |cause| cause.source());
            let message = causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"));
            hinted(message, hint)
        }
        None => error.into(),
    }
}

/// 1,500,000 as `1.5 MB`.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && value < 99.95);
    format!("{value:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::human;

    #[test]
    fn sizes_are_for_people() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (1_550_000, "1.6 MB"),
            (123_456_789, "123 MB"),
            (999_999_999, "1.0 GB"),
            (5_000_000_000_000_000, "5000 TB"),
        ] {
            assert_eq!(human(bytes), text);
        }
    }
}
