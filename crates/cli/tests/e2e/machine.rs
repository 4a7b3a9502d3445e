//! What needs a machine of its own, which `tools/test vm` makes: sizes of volumes that hold, a reset.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

use crate::engine::{Engine, asb_in, eventually, kubectl, stdout, text, up};
use crate::volume::{KEEPER, claim, clone_of};

/// A directory that a reset leaves as it is. Only where it is set may the machine be reset.
const KEPT: &str = "ASB_TEST_KEPT_DIRECTORY";

#[test]
#[ignore = "needs a filesystem with project quotas: tools/test vm"]
fn claim_holds_no_more_than_it_was_given_until_it_asks_for_more() {
    let mut engine = Engine::start();
    assert_eq!(stdout(&engine.asb(&["run", "--", "echo", "works"])), "works\n");
    let write = |engine: &Engine, pod: &str, file: &str, megabytes: u32| -> Output {
        stdout(&engine.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{pod}"), "--timeout=120s"]));
        let script = format!(
            "cd /data; dd if=/dev/zero of={file} bs=1M count={megabytes} || {{ rm {file}; exit 1; }}"
        );
        engine.kubectl(&["exec", pod, "--", "sh", "-c", &script])
    };
    let refused = |output: Output| {
        let full = ["No space left on device", "Disk quota exceeded"];
        assert!(full.iter().any(|it| text(&output).contains(it)), "{}", text(&output));
    };
    stdout(&engine.kubectl_apply(&claim("small", "8Mi", "")));
    refused(write(&engine, "small", "file", 20));
    let rows: Value = serde_json::from_str(&stdout(&engine.asb(&["volume", "du", "--json"]))).unwrap();
    assert!(rows[0]["enforced"] == true, "{rows}");

    let more = r#"{"spec":{"resources":{"requests":{"storage":"32Mi"}}}}"#;
    stdout(&engine.kubectl(&["patch", "pvc", "small", "-p", more]));
    let get = |engine: &Engine, what: &[&str]| stdout(&engine.kubectl(&[&["get"], what].concat()));
    eventually("it was given more", || {
        get(&engine, &["pvc", "small", "-o", "jsonpath={.status.capacity.storage}"]) == "32Mi"
    });
    assert_eq!(get(&engine, &["pv", "-o", "jsonpath={.items[0].spec.capacity.storage}"]), "32Mi");
    stdout(&write(&engine, "small", "file", 20));
    engine.kill();
    engine.restart();
    refused(write(&engine, "small", "other", 20));

    stdout(&engine.kubectl_apply(&claim("second", "32Mi", &clone_of("small"))));
    refused(write(&engine, "second", "other", 20));
    stdout(&engine.kubectl(&["delete", "pods,pvc", "--all", "--timeout=120s"]));
    eventually("nothing is left of them", || {
        fs::read_dir(engine.data_dir.path().join("volumes")).unwrap().count() == 0
    });
    engine.stop();
}

/// Is run twice: it resets the machine, and looks at what became of everything.
#[test]
#[ignore = "resets the machine: tools/test vm"]
fn sandbox_and_its_volume_outlive_a_reset_of_the_machine() {
    let kept = std::env::var_os(KEPT)
        .expect("this test resets the machine; tools/test vm runs it on one of its own");
    let kept = PathBuf::from(kept);
    let seen_before = kept.join("pod.json");
    let data_dir = kept.join("asb");
    if !seen_before.exists() {
        before(&data_dir, &seen_before);
    }
    after(&data_dir, &serde_json::from_slice(&fs::read(&seen_before).unwrap()).unwrap());
}

fn ready(data_dir: &Path) -> Value {
    let kubeconfig = data_dir.join("kubeconfig");
    let wait = ["wait", "--for=condition=Ready", "sandbox/keeper", "pod/keeper", "--timeout=120s"];
    stdout(&kubectl(&kubeconfig, &wait, ""));
    serde_json::from_str(&stdout(&kubectl(&kubeconfig, &["get", "pod", "keeper", "-o", "json"], ""))).unwrap()
}

fn inside(data_dir: &Path, script: &str) -> String {
    stdout(&asb_in(data_dir, &["exec", "keeper", "--", "sh", "-c", script]).output().unwrap())
}

fn before(data_dir: &Path, seen: &Path) {
    let _engine = up(data_dir);
    stdout(&kubectl(&data_dir.join("kubeconfig"), &["apply", "-f", "-"], KEEPER));
    let pod = ready(data_dir);
    // Other files may be written by the kernel when it likes: that is part of the test.
    fs::write(seen, pod.to_string()).unwrap();
    fs::File::open(seen).unwrap().sync_all().unwrap();
    inside(data_dir, "echo kept > /data/file && sync /data/file; echo lost > /tmp/file");
    println!("resetting the machine");
    fs::write("/proc/sysrq-trigger", "b").unwrap();
    unreachable!("the machine was reset");
}

fn after(data_dir: &Path, was: &Value) {
    let (mut engine, _) = up(data_dir);
    eventually("its container runs again", || {
        let is = ready(data_dir);
        is["status"]["containerStatuses"][0]["restartCount"] == 1
    });
    let is = ready(data_dir);
    assert_eq!(is["metadata"]["uid"], was["metadata"]["uid"], "the same Pod");
    assert_eq!(is["status"]["startTime"], was["status"]["startTime"]);
    let of = |pod: &Value| pod["status"]["containerStatuses"][0].clone();
    let (is, was) = (of(&is), of(was));
    assert_eq!(was["restartCount"], 0);
    assert_ne!(is["containerID"], was["containerID"]);
    assert_eq!(is["lastState"]["terminated"]["containerID"], was["containerID"], "{is:#}");
    assert_eq!(is["lastState"]["terminated"]["startedAt"], was["state"]["running"]["startedAt"], "{is:#}");
    // Whether its record was on the disk or not.
    assert_eq!(is["lastState"]["terminated"]["exitCode"], 137, "{is:#}");
    assert_eq!(inside(data_dir, "cat /data/file; cat /tmp/file 2>/dev/null || echo gone"), "kept\ngone\n");
    stdout(&asb_in(data_dir, &["rm", "--all"]).output().unwrap());
    stdout(&asb_in(data_dir, &["down"]).output().unwrap());
    engine.wait().unwrap();
    crate::engine::assert_nothing_left(data_dir);
}
