//! `asb backup` and `asb restore`: what users stored comes back elsewhere, and nothing is ever overwritten.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Output;

use asb_testing::assert_nothing_left;
use serde_json::{Value, json};
use sha2::Digest;

use crate::engine::{Engine, asb_in, stdout, text, up};
use crate::image::root_directory;
use crate::volume::KEEPER;

fn asb(data_dir: &Path, args: &[&str]) -> Output {
    asb_in(data_dir, args).output().expect("asb can be started")
}

fn ready(engine: &Engine) {
    stdout(&engine.kubectl(&["wait", "--for=condition=Ready", "sandbox/keeper", "--timeout=60s"]));
}

fn uid(engine: &Engine, what: &str) -> String {
    stdout(&engine.kubectl(&["get", what, "-o", "jsonpath={.metadata.uid}"]))
}

#[test]
fn objects_volumes_and_images_of_a_running_engine_come_back_elsewhere() {
    let engine = Engine::start();
    let aside = tempfile::tempdir().unwrap();
    let root = aside.path().join("root");
    root_directory(&root);
    stdout(&engine.asb(&["image", "build-from-dir", root.to_str().unwrap(), "tools:1"]));
    stdout(
        &engine.kubectl_apply(&KEEPER.replace("image: host", "image: tools:1, command: [sleep, '100000']")),
    );
    ready(&engine);
    let script =
        "echo kept > /data/file && chown 12:34 /data/file && chmod 640 /data/file && ln -s file /data/link";
    stdout(&engine.asb(&["exec", "keeper", "--", "sh", "-c", script]));
    stdout(&engine.kubectl(&["create", "secret", "generic", "word", "--from-literal=word=hidden"]));
    stdout(&engine.kubectl(&["label", "node", "--all", "disk=fast"]));
    let pv = stdout(&engine.kubectl(&["get", "pvc/data-keeper", "-o", "jsonpath={.spec.volumeName}"]));
    // As a sandbox has it that runs as such a user.
    let openshift = engine.data_dir.path().join("volumes").join(&pv).join("openshift");
    fs::File::create(&openshift).unwrap().set_len(1 << 30).unwrap();
    std::os::unix::fs::chown(&openshift, Some(1_000_650_000), Some(1_000_650_000)).unwrap();
    let (claim, sandbox) = (uid(&engine, "pvc/data-keeper"), uid(&engine, "sandbox/keeper"));

    let backup = aside.path().join("backup");
    let directory = backup.to_str().unwrap();
    let made = engine.asb(&["backup", "--volumes", "--images", "--json", directory]);
    let manifest: Value = serde_json::from_str(&stdout(&made)).unwrap();
    assert_eq!(manifest["images"], json!(["tools:1"]), "{manifest}");
    assert_eq!(manifest["inUse"], manifest["volumes"], "{manifest}");
    let archive = backup.join("volumes").join(format!("{pv}.tar"));
    assert!(archive.metadata().unwrap().len() < 1 << 20, "holes are not written out");
    let again = engine.asb(&["backup", directory]);
    assert!(!again.status.success() && text(&again).contains("not an empty directory"), "{}", text(&again));
    // What comes after the backup is not in it.
    stdout(&engine.asb(&["exec", "keeper", "--", "sh", "-c", "echo later > /data/file"]));
    let used = asb(engine.data_dir.path(), &["restore", directory]);
    assert!(!used.status.success() && text(&used).contains("an engine runs in"), "{}", text(&used));
    engine.stop();

    let data_dir = tempfile::tempdir().unwrap();
    let restored = stdout(&asb(data_dir.path(), &["restore", directory]));
    assert!(restored.contains("1 volumes, 1 images"), "{restored}");
    let (child, info) = up(data_dir.path());
    let engine = Engine::of(data_dir, child, info);
    ready(&engine);
    let seen = stdout(&engine.asb(&[
        "exec",
        "keeper",
        "--",
        "sh",
        "-c",
        "cat /data/link; stat -c '%u %g %a' /data/file",
    ]));
    assert_eq!(seen, "kept\n12 34 640\n");
    let openshift = engine.data_dir.path().join("volumes").join(&pv).join("openshift").metadata().unwrap();
    assert_eq!((openshift.uid(), openshift.gid(), openshift.len()), (1_000_650_000, 1_000_650_000, 1 << 30));
    let nodes = stdout(&engine.kubectl(&["get", "nodes", "-l", "disk=fast", "-o", "name"]));
    assert_eq!(nodes.lines().count(), 1, "{nodes}");
    assert_eq!((uid(&engine, "pvc/data-keeper"), uid(&engine, "sandbox/keeper")), (claim, sandbox));
    let word = stdout(&engine.kubectl(&["get", "secret/word", "-o", "jsonpath={.data.word}"]));
    assert_eq!(word, "aGlkZGVu");
    engine.stop();
}

#[test]
fn without_its_volumes_a_backup_restores_everything_else_and_no_empty_volume() {
    let engine = Engine::start();
    stdout(&engine.kubectl_apply(KEEPER));
    ready(&engine);
    let volume = stdout(&engine.kubectl(&["get", "pvc/data-keeper", "-o", "jsonpath={.spec.volumeName}"]));
    let aside = tempfile::tempdir().unwrap();
    let backup = aside.path().join("backup");
    stdout(&engine.asb(&["backup", backup.to_str().unwrap()]));
    engine.stop();
    let data_dir = tempfile::tempdir().unwrap();
    let restored = asb(data_dir.path(), &["restore", backup.to_str().unwrap()]);
    assert!(restored.status.success() && text(&restored).contains(&volume), "{}", text(&restored));
    let (child, info) = up(data_dir.path());
    let engine = Engine::of(data_dir, child, info);
    crate::engine::eventually("the sandbox waits for the files of its volume", || {
        let message = "{.status.containerStatuses[0].state.waiting.message}";
        let got = engine.kubectl(&["get", "pod/keeper", "-o", &format!("jsonpath={message}")]);
        text(&got).contains("is gone; put it back")
    });
    engine.stop();
}

#[test]
fn a_backup_or_data_directory_that_is_damaged_newer_or_foreign_is_refused_and_left_alone() {
    let engine = Engine::start();
    let aside = tempfile::tempdir().unwrap();
    let backup = aside.path().join("backup");
    let directory = backup.to_str().unwrap();
    stdout(&engine.asb(&["backup", directory]));
    let data_dir = engine.data_dir.path().to_owned();
    stdout(&engine.asb(&["down"]));
    let refused = |data_dir: &Path, args: &[&str], message: &str| {
        let done = asb(data_dir, args);
        assert!(!done.status.success() && text(&done).contains(message), "{}", text(&done));
        assert!(text(&done).contains("hint: "), "{}", text(&done));
    };
    refused(&data_dir, &["restore", directory], "is not empty");
    let objects = fs::read(backup.join("objects.jsonl")).unwrap();
    let mut damaged = objects.clone();
    damaged[objects.len() / 2] ^= 1;
    fs::write(backup.join("objects.jsonl"), &damaged).unwrap();
    let fresh = aside.path().join("fresh");
    refused(&fresh, &["restore", directory], "is not what it was when the backup was made");
    assert!(!fresh.exists());
    fs::write(backup.join("objects.jsonl"), &objects).unwrap();
    fs::remove_file(backup.join("backup.json")).unwrap();
    refused(&fresh, &["restore", directory], "was cut off");

    let format = fs::read_to_string(data_dir.join("format.json")).unwrap();
    fs::write(data_dir.join("format.json"), r#"{"format": 99, "version": "9.0.0"}"#).unwrap();
    refused(&data_dir, &["up"], "newer than this one");
    fs::write(data_dir.join("format.json"), format).unwrap();
    // A store that lost its head is refused by its own checks; one that is gone, because its files are there.
    let store = data_dir.join("store.redb");
    let whole = fs::read(&store).unwrap();
    let mut cut = whole.clone();
    cut[..64].fill(0);
    fs::write(&store, &cut).unwrap();
    let done = asb(&data_dir, &["up"]);
    assert!(!done.status.success() && text(&done).contains("store.redb"), "{}", text(&done));
    assert_eq!(fs::read(&store).unwrap(), cut, "a damaged store is left as it is");
    fs::create_dir_all(data_dir.join("pods/some-uid/work")).unwrap();
    fs::remove_file(&store).unwrap();
    refused(&data_dir, &["up"], "store.redb is missing or empty, but pods");
    assert!(data_dir.join("pods/some-uid/work").exists());
    fs::remove_dir_all(data_dir.join("pods/some-uid")).unwrap();
    fs::write(&store, &whole).unwrap();
    let mut engine = engine;
    engine.restart();
    engine.stop();

    let foreign = tempfile::tempdir().unwrap();
    fs::write(foreign.path().join("thesis.tex"), "years of work").unwrap();
    for name in ["doctor/notes", "images/tmp/x/notes", "probe/x/notes", "up.log"] {
        fs::create_dir_all(foreign.path().join(name).parent().unwrap()).unwrap();
        fs::write(foreign.path().join(name), "precious").unwrap();
    }
    let commands: [&[&str]; 7] = [
        &["up"],
        &["up", "-d"],
        &["run", "--", "true"],
        &["run", "some:1", "--", "true"],
        &["image", "ls"],
        &["image", "prune"],
        &["doctor"],
    ];
    for command in commands {
        refused(foreign.path(), command, "is no data directory of asb");
    }
    for name in ["doctor/notes", "images/tmp/x/notes", "probe/x/notes", "up.log"] {
        assert_eq!(fs::read_to_string(foreign.path().join(name)).unwrap(), "precious", "{name}");
    }
    let mut names: Vec<_> = fs::read_dir(foreign.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["doctor", "images", "probe", "thesis.tex", "up.log"]);
    assert_nothing_left(foreign.path());
}

#[test]
fn an_older_copy_of_the_store_or_that_of_another_directory_is_refused_and_no_sandbox_is_lost() {
    let mut engine = Engine::start();
    let data_dir = engine.data_dir.path().to_owned();
    let (store, aside) = (data_dir.join("store.redb"), tempfile::tempdir().unwrap());
    let keep = |name: &str| fs::copy(&store, aside.path().join(name)).unwrap();
    stdout(&engine.asb(&["down"]));
    keep("old");
    engine.restart();
    stdout(&engine.kubectl_apply(KEEPER));
    ready(&engine);
    stdout(&engine.asb(&["exec", "keeper", "--", "sh", "-c", "echo kept | tee /data/file > /root/file"]));
    stdout(&engine.asb(&["down"]));
    // The journal of one life of the engine can hold all that an older copy lacks; that of the next one cannot.
    engine.restart();
    stdout(&engine.kubectl(&["create", "configmap", "later"]));
    stdout(&engine.asb(&["down"]));
    keep("new");
    let other = Engine::start();
    stdout(&other.asb(&["down"]));
    fs::copy(other.data_dir.path().join("store.redb"), aside.path().join("other")).unwrap();
    assert_nothing_left(other.data_dir.path());

    for (name, message) in
        [("old", "is not the one that the directory had last"), ("other", "of another directory")]
    {
        fs::copy(aside.path().join(name), &store).unwrap();
        let refused = asb(&data_dir, &["up"]);
        assert!(!refused.status.success() && text(&refused).contains(message), "{name}: {}", text(&refused));
        assert!(
            text(&refused).contains("hint: ") && text(&refused).contains("asb restore"),
            "{}",
            text(&refused)
        );
        assert_eq!(
            fs::read(&store).unwrap(),
            fs::read(aside.path().join(name)).unwrap(),
            "{name} was changed"
        );
    }
    fs::copy(aside.path().join("old"), &store).unwrap();
    fs::rename(data_dir.join("store.journal"), aside.path().join("journal")).unwrap();
    let refused = asb(&data_dir, &["up"]);
    assert!(!refused.status.success() && text(&refused).contains("was at revision"), "{}", text(&refused));
    fs::rename(aside.path().join("journal"), data_dir.join("store.journal")).unwrap();
    fs::copy(aside.path().join("new"), &store).unwrap();
    engine.restart();
    ready(&engine);
    let kept = stdout(&engine.asb(&["exec", "keeper", "--", "cat", "/data/file", "/root/file"]));
    assert_eq!(kept, "kept\nkept\n", "the sandbox went on all the time");
    engine.stop();
}

#[test]
fn a_backup_that_attacks_is_refused_before_anything_is_made() {
    let engine = Engine::start();
    stdout(&engine.kubectl_apply(KEEPER));
    ready(&engine);
    let aside = tempfile::tempdir().unwrap();
    let backup = aside.path().join("backup");
    stdout(&engine.asb(&["backup", "--volumes", backup.to_str().unwrap()]));
    engine.stop();
    let victim = aside.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    let manifest: Value = serde_json::from_slice(&fs::read(backup.join("backup.json")).unwrap()).unwrap();
    let objects = fs::read_to_string(backup.join("objects.jsonl")).unwrap();
    let volume = manifest["volumes"][0].as_str().unwrap();
    let archive = format!("volumes/{volume}.tar");
    let whole = fs::read(backup.join(&archive)).unwrap();
    // A backup that says of itself that it is whole.
    let restore = |objects: &str, archive_text: &[u8], change: &dyn Fn(&mut Value)| {
        fs::write(backup.join("objects.jsonl"), objects).unwrap();
        fs::write(backup.join(&archive), archive_text).unwrap();
        let mut manifest = manifest.clone();
        for (name, text) in [("objects.jsonl", objects.as_bytes()), (&*archive, archive_text)] {
            let digest: String =
                sha2::Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
            manifest["files"][name] = digest.into();
        }
        change(&mut manifest);
        fs::write(backup.join("backup.json"), manifest.to_string()).unwrap();
        let data_dir = aside.path().join("new");
        let done = asb(&data_dir, &["restore", backup.to_str().unwrap()]);
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert!(!aside.path().join("escaped").exists());
        (done, data_dir)
    };
    let unchanged = |_: &mut Value| {};

    let object = |key: &str, object: Value| format!("{objects}{}\n", json!({"key": key, "object": object}));
    let above = json!({"metadata": {"name": "..", "uid": "1", "resourceVersion": "1"}, "spec": {}});
    let bound = json!({
        "metadata": {"name": "d", "namespace": "default", "uid": "1", "resourceVersion": "1"},
        "spec": {"volumeName": ".."}, "status": {"phase": "Bound"},
    });
    for (objects, message) in [
        (object("persistentvolumes//..", above), "metadata.name"),
        (object("persistentvolumeclaims/default/d", bound), "spec.volumeName"),
    ] {
        let (done, data_dir) = restore(&objects, &whole, &unchanged);
        assert!(!done.status.success() && text(&done).contains(message), "{}", text(&done));
        assert!(!data_dir.exists());
    }
    let named = |manifest: &mut Value| manifest["files"]["../victim"] = "0".into();
    let (done, data_dir) = restore(&objects, &whole, &named);
    assert!(!done.status.success() && text(&done).contains("is no file of a backup"), "{}", text(&done));
    assert!(!data_dir.exists());

    use tar::EntryType::{Char, Link, Regular, Symlink};
    let tar = |entries: &[(tar::EntryType, &str, &str)]| {
        let mut builder = tar::Builder::new(Vec::new());
        for (kind, name, contents) in entries {
            let mut header = tar::Header::new_gnu();
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_mode(0o644);
            let is_file = *kind == Regular;
            if !is_file {
                header.as_old_mut().linkname[..contents.len()].copy_from_slice(contents.as_bytes());
            }
            let data = if is_file { contents } else { "" };
            header.set_size(data.len() as u64);
            header.set_cksum();
            builder.append(&header, data.as_bytes()).unwrap();
        }
        builder.into_inner().unwrap()
    };
    let outside = victim.to_str().unwrap();
    for (entries, restored) in [
        (&[(Regular, "../../../escaped", "x")][..], false),
        (&[(Link, "hard", outside)], false),
        (&[(Symlink, "link", outside), (Regular, "link", "evil")], true),
        (&[(Symlink, "out", aside.path().to_str().unwrap()), (Regular, "out/victim", "evil")], false),
        (&[(Regular, "/escaped", "x")], true),
        (&[(Char, "device", "")], true),
    ] {
        let (done, data_dir) = restore(&objects, &tar(entries), &unchanged);
        assert_eq!(done.status.success(), restored, "{entries:?}: {}", text(&done));
        assert!(!data_dir.join("volumes").join(volume).join("device").exists());
        if entries[0].0 == Char {
            assert!(text(&done).contains("did not come back as it was"), "{}", text(&done));
        }
        fs::remove_dir_all(data_dir).unwrap();
    }
}
