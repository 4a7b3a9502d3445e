//! `asb cp`: both ways, files and directories, with whatever the sandbox puts into them.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use crate::engine::{Engine, stdout, text};

fn cp(engine: &Engine, from: impl AsRef<str>, to: impl AsRef<str>) -> String {
    let done = engine.asb(&["cp", from.as_ref(), to.as_ref()]);
    assert!(done.status.success(), "{}", text(&done));
    text(&done)
}

fn inside(engine: &Engine, name: &str, script: &str) -> String {
    stdout(&engine.asb(&["exec", name, "--", "sh", "-c", script]))
}

#[test]
fn files_and_directories_go_both_ways() {
    let engine = Engine::start();
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let path = |name: &str| at(name).to_str().unwrap().to_owned();
    stdout(&engine.asb(&["run", "--detach", "--name", "box"]));
    let large: Vec<u8> = (0..5_000_000_u32).map(|byte| (byte % 251) as u8).collect();
    fs::create_dir_all(at("tree/sub/empty")).unwrap();
    fs::write(at("tree/large"), &large).unwrap();
    fs::write(at("tree/sub/run.sh"), "#!/bin/sh\necho ran\n").unwrap();
    fs::set_permissions(at("tree/sub/run.sh"), PermissionsExt::from_mode(0o750)).unwrap();
    std::os::unix::fs::symlink("sub/run.sh", at("tree/link")).unwrap();

    cp(&engine, path("tree"), "box:/tmp/new");
    assert_eq!(inside(&engine, "box", "/tmp/new/link; stat -c %a /tmp/new/sub/run.sh"), "ran\n750\n");
    cp(&engine, path("tree"), "box:/tmp/new");
    assert_eq!(inside(&engine, "box", "ls /tmp/new/tree"), "large\nlink\nsub\n", "into one that is there");
    cp(&engine, path("tree/."), "box:/tmp/contents/");
    assert_eq!(inside(&engine, "box", "ls /tmp/contents"), "large\nlink\nsub\n");
    cp(&engine, path("tree/large"), "box:/tmp/");
    assert_eq!(inside(&engine, "box", "stat -c %s /tmp/large"), "5000000\n");

    cp(&engine, "box:/tmp/new", path("back"));
    assert!(fs::read(at("back/large")).unwrap() == large);
    assert_eq!(fs::read_link(at("back/link")).unwrap(), Path::new("sub/run.sh"));
    assert!(at("back/sub/empty").is_dir() && at("back/tree/sub/empty").is_dir());
    cp(&engine, "box:/tmp/large", path("back"));
    cp(&engine, "box:/tmp/large", path("other"));
    assert!(fs::read(at("back/large")).unwrap() == large && fs::read(at("other")).unwrap() == large);

    let streamed = engine.asb_with_input(&["cp", "-", "box:/tmp/streamed"], "from a pipe\n");
    assert!(streamed.status.success(), "{}", text(&streamed));
    assert_eq!(stdout(&engine.asb(&["cp", "box:/tmp/streamed", "-"])), "from a pipe\n");
    let archive = engine.asb(&["cp", "--tar", "box:/tmp/contents", "-"]);
    assert!(
        archive.status.success()
            && archive.stdout.len() > 5_000_000
            && archive.stdout.len().is_multiple_of(512)
    );
    engine.stop();
}

#[test]
fn what_a_sandbox_sends_stays_where_it_was_asked_for() {
    let engine = Engine::start();
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    stdout(&engine.asb(&["run", "--detach", "--name", "evil"]));
    fs::write(at("precious"), "precious").unwrap();
    let script = "mkdir -p /tmp/bait/d && cd /tmp/bait && ln -s /etc/passwd absolute && ln -s ../precious up \
        && ln -s d/../../precious hidden && echo x > suid && chmod 4755 suid && mkfifo pipe && ln -s suid fine \
        && chown 1234 suid && printf 'x' > \"$(printf 'esc\\033[2Jape')\"";
    inside(&engine, "evil", script);
    let said = cp(&engine, "evil:/tmp/bait", at("got").to_str().unwrap());
    assert!(!said.contains('\u{1b}'), "nothing that a terminal obeys: {said:?}");
    for name in ["absolute", "up", "hidden", "pipe"] {
        assert!(at("got").join(name).symlink_metadata().is_err(), "{name}");
    }
    assert!(said.contains("absolute") && said.contains("hidden"), "it tells what it left out: {said}");
    let suid = at("got/suid").metadata().unwrap();
    assert_eq!((suid.mode() & 0o7777, suid.uid()), (0o755, 0), "it is ours, with plain rights");
    assert_eq!(fs::read_link(at("got/fine")).unwrap(), Path::new("suid"));
    // A file where the receiver has a directory, and the other way round.
    fs::create_dir_all(at("again/suid")).unwrap();
    fs::write(at("again/suid/mine"), "precious").unwrap();
    let refused = engine.asb(&["cp", "evil:/tmp/bait/.", at("again").to_str().unwrap()]);
    assert!(!refused.status.success() && text(&refused).contains("suid"), "{}", text(&refused));
    assert_eq!(fs::read_to_string(at("again/suid/mine")).unwrap(), "precious");
    assert_eq!(fs::read_to_string(at("precious")).unwrap(), "precious");
    engine.stop();
}

#[test]
fn image_without_any_program_can_be_copied_to_and_from() {
    let engine = Engine::start();
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("only"), "a file").unwrap();
    stdout(&engine.asb(&["image", "build-from-dir", root.path().to_str().unwrap(), "bare:1"]));
    let manifest = r#"
apiVersion: agents.x-k8s.io/v1beta1
kind: Sandbox
metadata: {name: bare}
spec: {podTemplate: {spec: {containers: [{name: main, image: "bare:1", imagePullPolicy: Never, command: [/.asb/sandboxd]}]}}}
"#;
    stdout(&engine.kubectl_apply(manifest));
    stdout(&engine.kubectl(&["wait", "--for=condition=Ready", "sandbox/bare", "--timeout=30s"]));
    assert_eq!(stdout(&engine.asb(&["cp", "bare:/only", "-"])), "a file");
    let sent = engine.asb_with_input(&["cp", "-", "bare:/new"], "another");
    assert!(sent.status.success(), "{}", text(&sent));
    assert_eq!(stdout(&engine.asb(&["cp", "bare:/new", "-"])), "another");
    engine.stop();
}

/// Whoever still sends is not hung up on before it has read what was said last.
#[test]
fn copy_that_is_refused_while_it_is_sent_says_why() {
    let (engine, dir) = (Engine::start(), tempfile::tempdir().unwrap());
    stdout(&engine.asb(&["run", "--detach", "--name", "box"]));
    let file = dir.path().join("large");
    std::fs::write(&file, vec![b'x'; 8 << 20]).unwrap();
    for _ in 0..5 {
        let refused = engine.asb(&["cp", file.to_str().unwrap(), "box:/no/where/file"]);
        assert!(!refused.status.success() && text(&refused).contains("/no/where/file"), "{}", text(&refused));
    }
    engine.stop();
}

#[test]
fn wrong_copies_say_what_is_wrong() {
    let engine = Engine::start();
    stdout(&engine.asb(&["run", "--detach", "--name", "box"]));
    let cases: [(&[&str], &str); 7] = [
        (&["cp", "box:/no/such", "-"], "/no/such"),
        (&["cp", "/no/such/file", "box:/tmp"], "/no/such/file"),
        (&["cp", "/etc/hostname", "box:/no/where/file"], "/no/where/file"),
        (&["cp", "box:/etc", "-"], "--tar"),
        (&["cp", "a", "b"], "one side is a sandbox"),
        (&["cp", "box:/etc", "box:/tmp"], "one side is a sandbox"),
        (&["cp", "nobody:/etc/hosts", "-"], "asb ps"),
    ];
    for (args, words) in cases {
        let wrong = engine.asb(args);
        assert!(!wrong.status.success() && text(&wrong).contains(words), "{args:?}: {}", text(&wrong));
    }
    let piped = engine.asb_with_input(&["cp", "-", "box:/tmp"], "x");
    assert!(!piped.status.success() && text(&piped).contains("name a file"), "{}", text(&piped));
    engine.stop();
}
