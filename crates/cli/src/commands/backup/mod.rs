//! `asb backup` and `asb restore`: the objects of an engine at one moment and, on request, its volumes and images.
//!
//! ```text
//! DIR/backup.json      what is in the backup, with a digest of every file; written last, so a backup without it is cut off
//!     objects.jsonl    the objects of the API, Secrets included
//!     volumes/NAME.tar the files of a volume
//!     images.json      the names of images, and what they are made of
//!     layers/HEX.tar   a layer of an image
//! ```

mod adapt;
mod check;
mod create;
mod manifest;
mod restore;
mod view;

use std::path::PathBuf;
use std::process::ExitCode;

use crate::data_dir::DataDir;

const OBJECTS: &str = "objects.jsonl";
const VOLUMES: &str = "volumes";
const IMAGES: &str = "images.json";
const LAYERS: &str = "layers";

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  asb backup /var/backups/asb-1                    the objects of the API, while the engine runs
  asb backup --volumes --images /var/backups/asb-2  and everything that sandboxes have stored
  asb restore /var/backups/asb-2 --data-dir /srv/asb && asb up --data-dir /srv/asb")]
pub struct Backup {
    /// The directory for the backup, new or empty. It holds Secrets: only its owner can read it
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Also copy the files of volumes. Files that a sandbox writes meanwhile may be halfway: `asb stop` it before, if that matters
    #[arg(long)]
    pub volumes: bool,
    /// Also copy the images that were imported or pulled
    #[arg(long)]
    pub images: bool,
    /// Print what is in the backup as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The data directory must be new or empty: nothing is ever overwritten. Sandboxes start again with the
next `asb up`, with the volumes that the backup has.

Example:
  asb restore /var/backups/asb-2 --data-dir /srv/asb && asb up --data-dir /srv/asb"
)]
pub struct Restore {
    /// The directory of the backup
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

pub async fn create(data_dir: &DataDir, backup: Backup) -> anyhow::Result<ExitCode> {
    create::run(data_dir, backup).await
}

pub fn restore(data_dir: &DataDir, restore: &Restore) -> anyhow::Result<ExitCode> {
    restore::run(data_dir, &restore.directory)
}
