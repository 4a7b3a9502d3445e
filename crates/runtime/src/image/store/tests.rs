//! What opening a store removes, and what it leaves.

use std::fs::{self, File, FileTimes};

use super::*;

fn open(dir: &tempfile::TempDir) -> Store {
    Store::open(dir.path(), Limits::default()).expect("opened")
}

/// A layer that was being written in another boot.
fn unsynced(store: &Store, name: &str) -> Digest {
    let id = Digest::of(name.as_bytes());
    let layer = store.directory.join("layers").join(id.hex());
    fs::create_dir_all(layer.join("fs")).expect("made");
    fs::write(layer.join(UNSYNCED), "an earlier boot").expect("written");
    id
}

#[test]
fn layers_of_another_boot_are_removed_unless_a_lease_or_a_name_has_them() {
    let dir = tempfile::tempdir().expect("made");
    let store = open(&dir);
    let [lost, leased, named] = ["lost", "leased", "named"].map(|name| unsynced(&store, name));
    let lease = Lease::new(&store, std::slice::from_ref(&leased)).expect("made");
    let record = Record {
        name: "app:1".to_owned(),
        manifest: None,
        id: Digest::of(b"config"),
        layers: vec![named.clone()],
        size: 0,
        at: 0,
        config: Default::default(),
        volumes: Vec::new(),
    };
    record.write(&store.names(), &lease.file("record").expect("made")).expect("written");
    let store = open(&dir);
    let there = store.stored_layers().expect("readable");
    assert!(!there.contains(&lost) && there.contains(&leased) && there.contains(&named), "{there:?}");
    drop(lease);
    let there = open(&dir).stored_layers().expect("readable");
    assert_eq!(there, [named].into(), "what is given back goes with the next");
}

#[test]
fn layers_of_this_boot_stay_until_somebody_prunes() {
    let dir = tempfile::tempdir().expect("made");
    let store = open(&dir);
    let id = unsynced(&store, "new");
    let layer = store.directory.join("layers").join(id.hex());
    fs::write(layer.join(UNSYNCED), boot_id().expect("readable")).expect("written");
    assert!(open(&dir).stored_layers().expect("readable").contains(&id));
    let removed = open(&dir).prune(|| Ok(Vec::new())).expect("pruned");
    assert_eq!((removed.layers, layer.exists()), (1, false));
}

#[test]
fn downloads_that_nobody_went_on_with_are_forgotten_and_one_that_is_written_to_stays() {
    let dir = tempfile::tempdir().expect("made");
    let store = open(&dir);
    let file = |name: &str, age: Duration| {
        let path = store.download(&Digest::of(name.as_bytes()));
        let file = File::create(&path).expect("made");
        file.set_times(FileTimes::new().set_modified(SystemTime::now() - age)).expect("set");
        (path, file)
    };
    let (old, _unlocked) = file("old", STALE_DOWNLOAD * 2);
    let (recent, _unlocked) = file("recent", STALE_DOWNLOAD / 2);
    let (stalled, held) = file("stalled", STALE_DOWNLOAD * 2);
    held.lock().expect("locked");
    open(&dir);
    assert!(!old.exists() && recent.exists() && stalled.exists());
    drop(held);
    open(&dir);
    assert!(!stalled.exists());
}
