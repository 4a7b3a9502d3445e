//! Slots made ahead: starts take them, nothing of them is seen inside, and they go without a trace.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use asb_runtime::{Exit, Native};

use crate::common::{World, log, network_namespace, run, shell, wait};

/// The directories of slots that are not sandboxes yet.
fn slots(state: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(state.join("slot")).expect("there");
    entries.map(|entry| entry.expect("readable").path()).collect()
}

/// Process 1 of a parked slot, once it has been recorded.
async fn process_one(slot: &Path) -> rustix::process::Pid {
    let file = slot.join("starting.json");
    loop {
        let text = std::fs::read(&file).unwrap_or_default();
        if let Ok(identity) = serde_json::from_slice::<serde_json::Value>(&text) {
            let pid = identity["pid"].as_i64().expect("a number") as i32;
            return rustix::process::Pid::from_raw(pid).expect("positive");
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn start_takes_a_parked_slot_and_is_a_start_like_any_other() {
    let world = World::new();
    let state = world.directory.path().join("state");
    world.native.park().await;
    let parked = slots(&state).len();
    assert!(parked > 0);
    let before = SystemTime::now();
    let sandbox = world.start(&["sh", "-c", "echo hello; exit 3"]).await;
    assert_eq!(slots(&state).len(), parked - 1);
    assert!(sandbox.started_at() >= before, "it started when it was filled, not when it was parked");
    assert_eq!(wait(&sandbox).await.exit, Exit::Code(3));
    assert_eq!(log(&sandbox), "stdout F hello\n");
    let found = Native::open(&state).expect("opens").list().await.expect("lists");
    assert_eq!(found[0].started_at(), sandbox.started_at());
    world.native.unpark().await;
    assert!(slots(&state).is_empty());
    world.finish().await;
}

/// A sandbox's spec with an image whose top layer has a file that says `words`.
fn spec_of_image(world: &World, layer: &Path, words: &str) -> asb_runtime::Spec {
    std::fs::create_dir(layer).expect("made");
    std::fs::write(layer.join("words"), words).expect("written");
    let mut spec = world.spec(&["cat", "/words"]);
    spec.root.layers.insert(0, layer.to_owned());
    spec
}

async fn says(world: &World, spec: &asb_runtime::Spec) -> String {
    let sandbox = world.native.start(spec).await.expect("starts");
    assert_eq!(wait(&sandbox).await.exit, Exit::Code(0));
    let said = log(&sandbox);
    sandbox.delete().await.expect("deleted");
    said
}

#[tokio::test]
async fn slot_parked_for_an_image_runs_that_image_and_no_other() {
    let world = World::new();
    let directory = world.directory.path();
    let one = spec_of_image(&world, &directory.join("one"), "one\n");
    let other = spec_of_image(&world, &directory.join("other"), "other\n");
    world.native.expect(&one.root);
    world.native.park().await;
    for _ in 0..2 {
        assert_eq!(says(&world, &one).await, "stdout F one\n");
        assert_eq!(says(&world, &other).await, "stdout F other\n");
        assert_eq!(says(&world, &other).await, "stdout F other\n");
        world.native.park().await;
    }
    world.native.unpark().await;
    world.finish().await;
}

#[tokio::test]
async fn image_that_was_removed_and_came_back_is_not_taken_for_the_one_of_a_parked_slot() {
    let world = World::new();
    let layer = world.directory.path().join("layer");
    let spec = spec_of_image(&world, &layer, "old\n");
    world.native.expect(&spec.root);
    world.native.park().await;
    for slot in slots(&world.directory.path().join("state")) {
        process_one(&slot).await;
    }
    std::fs::remove_dir_all(&layer).expect("removed");
    let spec = spec_of_image(&world, &layer, "new\n");
    for _ in 0..5 {
        assert_eq!(says(&world, &spec).await, "stdout F new\n");
    }
    world.native.unpark().await;
    world.finish().await;
}

#[tokio::test]
async fn read_only_root_has_names_that_cannot_be_written_in_a_parked_slot() {
    let world = World::new();
    let script = "for name in hostname hosts resolv.conf; do echo x >/etc/$name || echo refused; done 2>/dev/null; hostname; cat /etc/hostname";
    let mut spec = world.spec(&["sh", "-c", script]);
    spec.read_only_root = true;
    world.native.expect(&spec.root);
    world.native.park().await;
    let name = &spec.hostname;
    let expected = ["refused", "refused", "refused", name, name].map(|line| format!("stdout F {line}\n"));
    assert_eq!(says(&world, &spec).await, expected.concat());
    world.native.unpark().await;
    world.finish().await;
}

#[tokio::test]
async fn limits_hold_in_a_sandbox_that_was_a_parked_slot() {
    let world = World::new();
    world.native.park().await;
    let mut spec = world.spec(&[]);
    spec.limits.pids = 10;
    let sandbox = world.native.start(&spec).await.expect("starts");
    let script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 100 >/dev/null 2>&1 & done; echo all of them";
    let many = run(&sandbox, &shell(script)).await;
    assert!(!many.stdout.contains("all of them"), "{many:?}");
    world.native.unpark().await;
    world.finish().await;
}

#[tokio::test]
async fn slot_whose_process_was_killed_is_passed_over() {
    let world = World::new();
    let state = world.directory.path().join("state");
    world.native.park().await;
    for slot in slots(&state) {
        let pid = process_one(&slot).await;
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
    }
    // The launchers of killed slots end by themselves; starts work whether they have or not.
    loop {
        match world.native.start(&world.spec(&["true"])).await {
            Ok(sandbox) => break assert_eq!(wait(&sandbox).await.exit, Exit::Code(0)),
            Err(error) => assert!(matches!(error, asb_runtime::Error::Start { .. }), "{error:?}"),
        }
    }
    world.native.unpark().await;
    world.finish().await;
}

#[tokio::test]
async fn slots_of_a_program_that_is_gone_are_cleared_away_by_the_next() {
    let world = World::new();
    let state = world.directory.path().join("state");
    let earlier = Native::open(&state).expect("opens");
    earlier.park().await;
    for slot in slots(&state) {
        process_one(&slot).await;
    }
    // Not a word of farewell, as when it is killed.
    drop(earlier);
    assert!(!slots(&state).is_empty());
    assert!(world.native.list().await.expect("lists").is_empty());
    assert_eq!(asb_runtime::leak::check(&state), Vec::<String>::new());
    world.finish().await;
}

/// What a process has open.
fn open_files(pid: &str) -> Vec<String> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("listed").flatten();
    let read = |entry: std::fs::DirEntry| std::fs::read_link(entry.path()).ok();
    entries.filter_map(read).map(|path| path.display().to_string()).collect()
}

#[tokio::test]
async fn nothing_of_the_slot_reaches_what_runs_in_it() {
    let world = World::new();
    let state = world.directory.path().join("state");
    world.native.park().await;
    let parked = slots(&state);
    let (network, spec) = (network_namespace().await, world.spec(&["sleep", "1000"]));
    let sandbox = world.native.start_in(network.into(), &spec).await.expect("starts");
    let taken = parked.iter().find(|slot| !slot.exists()).expect("one was taken");
    let name = taken.file_name().expect("has a name").to_string_lossy().into_owned();

    let started = state.join("sandbox").join(sandbox.id().as_str()).join("started.json");
    let identity: serde_json::Value =
        serde_json::from_slice(&std::fs::read(started).expect("there")).expect("parses");
    let supervisor = identity["pid"].to_string();
    let children = std::fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children"));
    let main = children.expect("readable").trim().to_owned();

    let held = open_files(&supervisor);
    let kinds = ["net:[", "mnt:[", "memfd:", "sandbox.json", "launch", &name];
    assert!(!held.iter().any(|file| kinds.iter().any(|kind| file.contains(kind))), "{held:#?}");
    let sockets = held.iter().filter(|file| file.starts_with("socket:")).count();
    assert_eq!(sockets, 1, "the one it listens on: {held:#?}");
    let held = open_files(&main);
    let standard = |file: &String| file == "/dev/null" || file.starts_with("pipe:");
    assert!(held.len() == 3 && held.iter().all(standard), "input, output and errors: {held:#?}");

    let mounts = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).expect("readable");
    assert_eq!(mounts(&supervisor), mounts(&main), "both see the same");
    let state = state.display().to_string();
    for line in mounts(&main).lines().filter(|line| line.contains(&state) || line.contains(&name)) {
        // Cgroups are called so only from outside: `cgroups_are_out_of_reach` looks at them from inside.
        let place = line.split(' ').nth(4).unwrap_or_default();
        assert!(place.starts_with("/sys/fs/cgroup/"), "a path of the state is seen: {line}");
    }
    world.native.unpark().await;
    world.finish().await;
}
