//! Every object at one moment, and a store that begins with such objects.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::Store;
use super::disk::{self, NUMBERS, OBJECTS, REVISION};
use super::entry::{Draft, Entry, Key};

impl Store {
    /// All objects as they are now, and the revision at which that is.
    pub fn everything(&self) -> (u64, Vec<(String, Arc<Entry>)>) {
        let state = self.shared.read();
        let mut all = Vec::new();
        for collection in state.names() {
            let objects = state.range(&collection, "");
            all.extend(objects.map(|(path, entry)| (format!("{collection}/{path}"), entry.clone())));
        }
        (state.revision, all)
    }
}

/// Makes a store of these objects, each under the revision that it names. Returns how many there are.
///
/// `path` must not exist; what is made of it when this fails is not a store.
pub(crate) fn make(
    path: &Path,
    revision: u64,
    objects: impl Iterator<Item = (String, Value)>,
) -> Result<u64, redb::Error> {
    let wrong = |message: String| redb::Error::Corrupted(message);
    if path.exists() {
        return Err(wrong(format!("{} exists already", path.display())));
    }
    let database = disk::open(path)?;
    let transaction = database.begin_write()?;
    let mut count = 0;
    {
        let mut table = transaction.open_table(OBJECTS)?;
        for (name, object) in objects {
            let (collection, rest) =
                name.split_once('/').ok_or_else(|| wrong(format!("the key {name:?} has no collection")))?;
            let at = object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse::<u64>().ok());
            let at = at.filter(|at| *at <= revision);
            let at = at.ok_or_else(|| wrong(format!("{name} has no resourceVersion up to {revision}")))?;
            let key = Key { collection: collection.into(), path: rest.into() };
            let row = Draft::of(&object, &[]).seal(at).to_disk(&key);
            if table.insert(at, row.as_slice())?.is_some() {
                return Err(wrong(format!("{name} has the resourceVersion of another object")));
            }
            count += 1;
        }
        transaction.open_table(NUMBERS)?.insert(REVISION, revision)?;
    }
    transaction.commit()?;
    Ok(count)
}
