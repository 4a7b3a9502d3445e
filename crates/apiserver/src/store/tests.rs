//! What is seen before the disk has it, and what happens when the disk refuses.

use serde_json::json;

use super::*;

/// A store whose disk does nothing by itself.
fn without_disk() -> (Store, mpsc::Receiver<Command>) {
    let progress = watch::Sender::new(Progress::default());
    let shared = Arc::new(Shared { state: RwLock::default(), tap: Box::new(|_| {}), progress });
    let (queue, commands) = mpsc::channel();
    (Store { shared, queue }, commands)
}

fn put(store: &Store, name: &str) -> Result<Arc<Entry>, WriteError> {
    put_sized(store, name, 0)
}

fn put_sized(store: &Store, name: &str, bytes: usize) -> Result<Arc<Entry>, WriteError> {
    let object = json!({ "apiVersion": "v1", "kind": "Thing", "metadata": { "name": name, "uid": name },
        "data": "x".repeat(bytes) });
    let key = Key::new(&"things".into(), "ns", name);
    store.write(Write { key, expect: Expect::Absent, op: Op::Put(Draft::of(&object, &[])) })
}

fn delete(store: &Store, entry: &Entry) {
    let key = Key::new(&"things".into(), "ns", &entry.meta.name);
    let write = Write { key, expect: Expect::Revision(entry.revision), op: Op::Delete(None) };
    store.write(write).expect("it is there");
}

fn open(path: &Path) -> Store {
    Store::open(path, |_| &[], Box::new(|_| {})).expect("readable")
}

#[tokio::test]
async fn only_who_looks_ahead_sees_what_is_not_on_disk() {
    let (store, _commands) = without_disk();
    let things: Arc<str> = "things".into();
    let (mut ahead, mut behind) = (store.watch(&things, 0, true), store.watch(&things, 0, false));
    let entry = put(&store, "a").expect("nothing is there");
    ahead.changed().await;
    assert_eq!(ahead.poll().expect("not compacted").len(), 1);
    assert!(behind.poll().expect("not compacted").is_empty(), "it could still be lost");
    assert!(futures::poll!(std::pin::pin!(store.settled(entry.revision))).is_pending());

    store.shared.settle(entry.revision, std::iter::once(&things));
    behind.changed().await;
    assert_eq!(behind.poll().expect("not compacted").len(), 1);
    store.settled(entry.revision).await.expect("it is on disk");
}

#[tokio::test]
async fn refusing_disk_is_asked_again_and_nothing_is_lost_or_taken_in_meanwhile() {
    let dir = tempfile::tempdir().expect("a directory");
    let home = dir.path().join("not-there-yet");
    let (store, commands) = without_disk();
    let path = home.join("store.redb");
    let (journal, _) = Journal::open(&dir.path().join("journal"), 0, 0).expect("made");
    let shared = store.shared.clone();
    let (mark, _) = Mark::open(&dir.path().join("mark"), 0, 0).expect("made");
    let disk = Disk { path: path.clone(), db: None, shared, journal, mark, pending: Vec::new() };
    let thread = std::thread::spawn(move || disk.run(commands));
    // Too large for the journal.
    let entry = put_sized(&store, "a", 2 << 20).expect("the disk has not been asked");
    let refused = store.settled(entry.revision).await;
    assert!(matches!(refused, Err(WriteError::Storage(_))), "{refused:?}");
    assert!(matches!(put(&store, "b"), Err(WriteError::Storage(_))), "no more until this is on disk");

    std::fs::create_dir(&home).expect("made");
    let mut progress = store.shared.progress.subscribe();
    progress.wait_for(|now| now.settled >= entry.revision).await.expect("tried again");
    put(&store, "b").expect("all is well again");
    store.stop().await;
    thread.join().expect("ended");
    assert_eq!(open(&path).list("things", "").entries.len(), 2);
}

/// The store as it would be found if the machine stopped now.
fn copy(path: &Path, to: &Path) -> std::path::PathBuf {
    let files = [path.to_owned(), path.with_extension("journal")];
    let changed =
        || files.each_ref().map(|file| file.metadata().and_then(|it| it.modified()).expect("there"));
    loop {
        let before = changed();
        for from in &files {
            std::fs::copy(from, to.join(from.file_name().expect("a file"))).expect("copied");
        }
        if changed() == before {
            return to.join(path.file_name().expect("a file"));
        }
    }
}

#[tokio::test]
async fn what_only_the_journal_has_is_there_after_a_crash() {
    let [dir, crashed, again] = std::array::from_fn(|_| tempfile::tempdir().expect("a directory"));
    let path = dir.path().join("store.redb");
    let store = open(&path);
    let old = put(&store, "old").expect("written");
    store.stop().await;
    let store = open(&path);
    let [kept, gone] = ["kept", "gone"].map(|name| put(&store, name).expect("written"));
    delete(&store, &gone);
    delete(&store, &old);
    let last = store.revision();
    store.settled(last).await.expect("on disk");

    let found = copy(&path, crashed.path());
    let names = |store: &Store| -> Vec<_> {
        store.list("things", "").entries.iter().map(|entry| entry.meta.name.to_string()).collect()
    };
    let after = open(&found);
    assert_eq!((names(&after), after.revision()), (vec!["kept".to_owned()], last));
    assert!(after.find("kept").is_some() && after.find("old").is_none(), "indexes are right");
    assert_eq!(after.get(&Key::new(&"things".into(), "ns", "kept")).expect("there").bytes, kept.bytes);
    // And once more, with what was in the journal before and what has come since.
    let more = put(&after, "more").expect("written");
    after.settled(more.revision).await.expect("on disk");
    let after = open(&copy(&found, again.path()));
    assert_eq!((names(&after), after.revision()), (vec!["kept".to_owned(), "more".to_owned()], last + 1));
    after.stop().await;
    let database = again.path().join("store.redb");
    std::fs::remove_file(database.with_extension("journal")).expect("it is not needed");
    assert_eq!(names(&open(&database)), ["kept", "more"], "a clean stop leaves all in the database");
}

#[tokio::test]
async fn database_that_is_another_one_does_not_get_what_the_journal_has() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("store.redb");
    let store = open(&path);
    let entry = put(&store, "a").expect("written");
    store.settled(entry.revision).await.expect("on disk");
    store.stop().await;
    std::fs::remove_file(&path).expect("removed");
    assert!(open(&path).list("things", "").entries.is_empty());
}

#[tokio::test]
async fn more_than_the_journal_holds_is_all_there_after_a_crash() {
    let [dir, crashed] = std::array::from_fn(|_| tempfile::tempdir().expect("a directory"));
    let path = dir.path().join("store.redb");
    let store = open(&path);
    for number in 0..40 {
        let entry = put_sized(&store, &format!("n{number:02}"), 60_000).expect("written");
        store.settled(entry.revision).await.expect("on disk");
        if number % 3 == 0 {
            delete(&store, &entry);
        }
    }
    store.settled(store.revision()).await.expect("on disk");
    let after = open(&copy(&path, crashed.path()));
    assert_eq!(after.revision(), store.revision());
    let bytes = |store: &Store| -> Vec<_> {
        store.list("things", "").entries.iter().map(|entry| entry.bytes.clone()).collect()
    };
    assert_eq!(bytes(&after), bytes(&store));
    assert_eq!(bytes(&after).len(), 26);
}

#[tokio::test]
async fn an_older_copy_of_the_database_is_refused_with_and_without_the_journal_of_the_newer_one() {
    let [dir, aside] = std::array::from_fn(|_| tempfile::tempdir().expect("a directory"));
    let path = dir.path().join("store.redb");
    let (number, _) = identify(&path).expect("made");
    let write = async |name: &str| {
        let store = open(&path);
        let entry = put(&store, name).expect("written");
        store.stop().await;
        entry.revision
    };
    let old = write("old").await;
    std::fs::copy(&path, aside.path().join("store.redb")).expect("copied");
    assert_eq!(identify(&path).expect("readable"), (number, Ok(old)));
    write("new").await;
    let new = write("newer").await;
    assert_eq!(identify(&path).expect("readable"), (number, Ok(new)));

    std::fs::copy(aside.path().join("store.redb"), &path).expect("copied back");
    let refused = || Store::open(&path, |_| &[], Box::new(|_| {})).err().expect("refused").to_string();
    assert_eq!(identify(&path).expect("readable"), (number, Err(Unfit::Gap { has: old, next: new })));
    assert!(refused().contains("its journal goes on at"), "{}", refused());
    std::fs::remove_file(path.with_extension("journal")).expect("removed");
    assert_eq!(identify(&path).expect("readable"), (number, Err(Unfit::Behind { has: old, reached: new })));
    assert!(refused().contains("was at revision"), "{}", refused());
    // Where nothing is known of a newer one, it is what there is.
    std::fs::remove_file(path.with_extension("mark")).expect("removed");
    assert_eq!(identify(&path).expect("readable"), (number, Ok(old)));
    assert_eq!(open(&path).list("things", "").entries.len(), 1);
}

#[tokio::test]
async fn a_database_is_never_seen_half_made() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("store.redb");
    // Of a start that was killed, or met a full disk, in the middle of it.
    std::fs::write(dir.path().join(".store.redb.new"), vec![0; 4096]).expect("written");
    std::fs::write(&path, "").expect("written");
    let (number, _) = identify(&path).expect("made");
    assert_eq!(identify(&path).expect("readable"), (number, Ok(0)));
    let names: Vec<_> = std::fs::read_dir(dir.path())
        .expect("readable")
        .map(|it| it.expect("an entry").file_name())
        .collect();
    assert_eq!(names, ["store.redb"]);
    open(&path).stop().await;
}
