//! `asb image pull`, and what `asb run` pulls.

use asb_runtime::image::{HOST, Images, Keyring, Record, Reference};

use super::progress::Bar;
use super::{explain, human, open, reference};
use crate::args::Registries;
use crate::data_dir::DataDir;
use crate::failure::hinted;

pub async fn run(data_dir: &DataDir, names: &[String], registries: &Registries) -> anyhow::Result<()> {
    let (images, keyring) = (open(data_dir, registries.read()?)?, registries.keyring()?);
    for name in names {
        if name == HOST {
            return Err(hinted("`host` is made on this machine", "use it: `asb run -- CMD`"));
        }
        let record = pull(&images, &reference(name)?, &keyring).await?;
        super::add::say(&images, &record)?;
    }
    Ok(())
}

/// Makes sure that an image is here before a sandbox is made from it, and shows how that goes.
pub async fn ensure(data_dir: &DataDir, name: &str, registries: &Registries) -> anyhow::Result<()> {
    if name == HOST {
        return Ok(());
    }
    let images = open(data_dir, registries.read()?)?;
    let reference = reference(name)?;
    if images.find(name).map_err(explain)?.is_some() {
        return Ok(());
    }
    if !images.can_pull(&reference) {
        let message = format!("no image `{name}` on this machine, and its name has no registry");
        let known = images.names().join(", ");
        return Err(hinted(message, format!("use one of: {known}; or name its registry: HOST/{name}")));
    }
    let record = pull(&images, &reference, &registries.keyring()?).await?;
    eprintln!("pulled {} ({})", record.name, human(record.size));
    Ok(())
}

async fn pull(images: &Images, reference: &Reference, keyring: &Keyring) -> anyhow::Result<Record> {
    let bar = Bar::new(&reference.to_string());
    let shown = bar.clone();
    let pulled = images.pull(reference, keyring, move |progress| shown.show(&progress)).await;
    bar.finish();
    pulled.map_err(explain)
}
