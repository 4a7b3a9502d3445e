//! `asb volume export` and `import`: a volume as a tar archive, owners and modes kept.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;
use asb_runtime::tree::{self, Purpose};
use kube::Client;

use super::{Export, Import, free_directory, tell_cut};
use crate::commands::cp::{bar, tell_skipped};
use crate::data_dir::DataDir;
use crate::failure::hinted;

pub async fn export(data_dir: &DataDir, client: Client, export: Export) -> anyhow::Result<()> {
    let from = free_directory(data_dir, &client, &export.target, &export.name, export.force).await?;
    let out: Box<dyn Write + Send> = if export.output == Path::new("-") {
        if io::IsTerminal::is_terminal(&io::stdout()) {
            return Err(hinted("an archive would garble the terminal", "use -o FILE, or a pipe"));
        }
        Box::new(io::stdout())
    } else {
        // What sandboxes write is nobody else's business.
        let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&export.output);
        Box::new(file.with_context(|| format!("failed to create {}", export.output.display()))?)
    };
    let bar = bar("exported");
    let counted = bar.wrap_write(out);
    let packed = tokio::task::spawn_blocking(move || tree::pack_volume(&from, counted)).await?;
    bar.finish_and_clear();
    let cut = packed.with_context(|| format!("failed to export `{}`", export.name))?;
    tell_cut(&cut.into_iter().map(|path| (export.name.clone(), path)).collect());
    Ok(())
}

pub async fn import(data_dir: &DataDir, client: Client, import: Import) -> anyhow::Result<()> {
    let into = free_directory(data_dir, &client, &import.target, &import.name, import.force).await?;
    let source: Box<dyn Read + Send> = if import.input == Path::new("-") {
        Box::new(io::stdin())
    } else {
        let file = File::open(&import.input);
        Box::new(file.with_context(|| format!("failed to open {}", import.input.display()))?)
    };
    let bar = bar("imported");
    let counted = bar.wrap_read(io::BufReader::with_capacity(128 << 10, source));
    let unpacked = tokio::task::spawn_blocking(move || tree::unpack(counted, &into, Purpose::Volume)).await?;
    bar.finish_and_clear();
    let contents = unpacked.with_context(|| format!("failed to import into `{}`", import.name))?;
    tell_skipped(&contents);
    Ok(())
}
