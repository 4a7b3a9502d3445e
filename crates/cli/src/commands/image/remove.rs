//! `asb image rm` and `asb image prune`.

use asb_node::LABEL_POD;
use asb_runtime::image::{Error, User};

use super::{explain, human, open, reference};
use crate::data_dir::DataDir;

pub fn run(data_dir: &DataDir, names: &[String]) -> anyhow::Result<()> {
    let images = open(data_dir, Default::default())?;
    for name in names {
        let (record, removed) = images.remove(&reference(name)?, || users(data_dir)).map_err(explain)?;
        println!("{}", record.name);
        eprintln!("removed {} layers, {}", removed.layers, human(removed.bytes));
    }
    Ok(())
}

pub fn prune(data_dir: &DataDir) -> anyhow::Result<()> {
    let removed = open(data_dir, Default::default())?.prune(|| users(data_dir)).map_err(explain)?;
    eprintln!("removed {} layers, {}", removed.layers, human(removed.bytes));
    Ok(())
}

/// Sandboxes that are there, running or not, with the engine or without.
fn users(data_dir: &DataDir) -> Result<Vec<User>, Error> {
    let path = data_dir.path().join("sandboxes");
    let specs = asb_runtime::native::stored(&path).map_err(|source| Error::Storage {
        step: "read the sandboxes in",
        path,
        source,
    })?;
    let user = |spec: asb_runtime::Spec| {
        let name = spec.labels.get(LABEL_POD).map_or_else(
            || spec.id.to_string(),
            |pod| pod.strip_prefix("default/").unwrap_or(pod).to_owned(),
        );
        User { name, layers: spec.root.layers }
    };
    Ok(specs.into_iter().map(user).collect())
}
