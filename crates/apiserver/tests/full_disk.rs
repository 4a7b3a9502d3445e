//! A disk that is full: writes are refused with a reason, reads go on, nothing acknowledged is lost, and all is well
//! again when there is room.

mod common;
use common::*;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::json;

const DISK: &str = "ASB_TEST_SMALL_DISK";

#[test]
fn full_disk_refuses_writes_serves_reads_and_recovers_without_a_restart() {
    let place = tempfile::tempdir().expect("a directory");
    let script = format!("mount -t tmpfs -o size=6m disk {} && exec \"$@\"", place.path().display());
    let done = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", &script, "sh"])
        .arg(std::env::current_exe().expect("this test"))
        .args(["--exact", "child_on_a_small_disk", "--ignored", "--nocapture"])
        .env(DISK, place.path())
        .output()
        .expect("unshare can be started; these tests need root");
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.contains("1 passed"), "{said}");
}

/// Takes all that is left.
fn fill(path: &Path) {
    let mut file = std::fs::File::create(path).expect("made");
    while std::io::Write::write_all(&mut file, &[0; 4096]).is_ok() {}
}

fn large(name: &str) -> serde_json::Value {
    let mut map = config_map(name);
    map["data"] = json!({ "text": "x".repeat(20_000) });
    map
}

#[tokio::test]
#[ignore = "run by full_disk_refuses_writes_serves_reads_and_recovers_without_a_restart"]
async fn child_on_a_small_disk() {
    let disk = PathBuf::from(std::env::var(DISK).expect("started by the test above"));
    let dir = disk.join("data");
    std::fs::create_dir(&dir).expect("made");
    let world = World { server: open(&dir).await, dir: tempfile::tempdir().expect("unused") };
    let (mut acknowledged, mut deleted) = (Vec::new(), Vec::new());
    for round in 0..3 {
        world.create(MAPS, large(&format!("map-{round}-before"))).await;
        acknowledged.push(format!("map-{round}-before"));
        fill(&disk.join("filler"));
        let mut refused = None;
        for number in 0..500 {
            let name = format!("map-{round}-{number}");
            let answer = world.call("POST", MAPS, large(&name)).await;
            match answer.code {
                201 => acknowledged.push(name),
                _ => {
                    refused = Some((name, answer));
                    break;
                }
            }
        }
        let (name, refused) = refused.expect("the disk is full");
        assert_eq!(
            (refused.code, &refused.body["reason"]),
            (507, &json!("InsufficientStorage")),
            "{}",
            refused.body
        );
        let message = refused.body["message"].to_string();
        assert!(message.contains("no space left") && message.contains("try again"), "{message}");
        assert_eq!(world.call("POST", MAPS, large("another")).await.code, 507, "and stays so");
        for name in &acknowledged {
            assert_eq!(world.get(&format!("{MAPS}/{name}")).await.code, 200, "reads go on");
        }
        assert_eq!(world.get(&format!("{MAPS}/{name}")).await.code, 404, "only what is on disk is told of");
        let listed = world.get(MAPS).await.body["items"].as_array().expect("a list").len();
        assert_eq!(listed, acknowledged.len());
        let first = world.watch(&format!("{MAPS}?watch=true")).await.next().await;
        assert_eq!(first.expect("an event")["type"], "ADDED", "watches begin");
        std::fs::remove_file(disk.join("filler")).expect("removed");
        let after = format!("after-{round}");
        let until = tokio::time::Instant::now() + Duration::from_secs(20);
        loop {
            let answer = world.call("POST", MAPS, config_map(&after)).await;
            if answer.code == 201 {
                break;
            }
            assert!(tokio::time::Instant::now() < until, "never recovered: {}", answer.body);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        acknowledged.push(after);
        // Make room for the next round; deletions are acknowledged too.
        for name in acknowledged.extract_if(.., |name| name.starts_with("map-")) {
            assert_eq!(world.delete(&format!("{MAPS}/{name}"), json!(null)).await.code, 200);
            deleted.push(name);
        }
        // One that was refused may have been written when there was room.
        let known = world.get(&format!("{MAPS}/{name}")).await.code == 200;
        acknowledged.extend(known.then_some(name));
    }
    world.server.shutdown().await;
    let world = World { server: open(&dir).await, dir: tempfile::tempdir().expect("unused") };
    for name in &acknowledged {
        assert_eq!(world.get(&format!("{MAPS}/{name}")).await.code, 200, "{name} is lost");
    }
    for name in &deleted {
        assert_eq!(world.get(&format!("{MAPS}/{name}")).await.code, 404, "{name} came back");
    }
    assert!(!acknowledged.is_empty() && !deleted.is_empty());
}
