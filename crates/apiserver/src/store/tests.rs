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
    let object = json!({ "apiVersion": "v1", "kind": "Thing", "metadata": { "name": name, "uid": name } });
    let key = Key::new(&"things".into(), "ns", name);
    store.write(Write { key, expect: Expect::Absent, op: Op::Put(Draft::of(&object, &[])) })
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
    let disk = Disk { path: path.clone(), db: None, shared: store.shared.clone(), ceiling: 0 };
    let thread = std::thread::spawn(move || disk.run(commands));
    let entry = put(&store, "a").expect("the disk has not been asked");
    let refused = store.settled(entry.revision).await;
    assert!(matches!(refused, Err(WriteError::Storage(_))), "{refused:?}");
    assert!(matches!(put(&store, "b"), Err(WriteError::Storage(_))), "no more until this is on disk");

    std::fs::create_dir(&home).expect("made");
    let mut progress = store.shared.progress.subscribe();
    progress.wait_for(|now| now.settled >= entry.revision).await.expect("tried again");
    put(&store, "b").expect("all is well again");
    store.stop().await;
    thread.join().expect("ended");
    let reopened = Store::open(&path, |_| &[], Box::new(|_| {})).expect("readable");
    assert_eq!(reopened.list("things", "").entries.len(), 2);
}
