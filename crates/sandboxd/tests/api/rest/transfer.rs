//! Moving, copying and making directories.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::refusal;
use crate::support::Daemon;

#[test]
fn a_file_is_moved_into_directories_that_did_not_exist() {
    let daemon = Daemon::start();
    fs::write(daemon.path("a"), "x").unwrap();
    assert_eq!(daemon.relocate("move", "a", "new/b", false).status, 204);
    assert!(!daemon.path("a").exists() && daemon.path("new/b").exists());
    assert_eq!(daemon.relocate("move", "a", "c", false).refusal(), refusal(404, "NOT_FOUND"));
}

#[test]
fn a_directory_is_copied_with_everything_in_it() {
    let daemon = Daemon::start();
    fs::create_dir_all(daemon.path("d/sub")).unwrap();
    fs::write(daemon.path("d/sub/run.sh"), "text").unwrap();
    fs::set_permissions(daemon.path("d/sub/run.sh"), fs::Permissions::from_mode(0o750)).unwrap();
    symlink("sub/run.sh", daemon.path("d/link")).unwrap();
    assert_eq!(daemon.run("mkfifo d/pipe")["exit_code"], 0);
    assert_eq!(daemon.relocate("copy", "d", "e", false).status, 204);
    assert_eq!(fs::read_to_string(daemon.path("e/sub/run.sh")).unwrap(), "text");
    let mode = fs::metadata(daemon.path("e/sub/run.sh")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o750);
    assert_eq!(fs::read_link(daemon.path("e/link")).unwrap().to_str(), Some("sub/run.sh"));
    assert!(!daemon.path("e/pipe").exists());
    assert_eq!(
        daemon.relocate("copy", "d", "d/sub/inside", false).refusal(),
        refusal(400, "INVALID_ARGUMENT")
    );
    assert_eq!(
        daemon.relocate("move", "d", "d/sub/inside", false).refusal(),
        refusal(400, "INVALID_ARGUMENT")
    );
    let names: Vec<_> =
        fs::read_dir(daemon.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "no temporary file stays: {names:?}");
    assert_eq!(fs::read_dir(daemon.path("d/sub")).unwrap().count(), 1);
}

#[test]
fn a_target_is_replaced_only_when_that_is_asked_for() {
    let daemon = Daemon::start();
    for call in ["move", "copy"] {
        fs::write(daemon.path("a"), "new").unwrap();
        fs::write(daemon.path("b"), "old").unwrap();
        assert_eq!(daemon.relocate(call, "a", "b", false).refusal(), refusal(409, "CONFLICT"), "{call}");
        assert_eq!(fs::read_to_string(daemon.path("b")).unwrap(), "old");
        assert_eq!(daemon.relocate(call, "a", "b", true).status, 204, "{call}");
        assert_eq!(fs::read_to_string(daemon.path("b")).unwrap(), "new");
    }
}

#[test]
fn a_target_of_another_kind_is_named_as_the_problem() {
    let daemon = Daemon::start();
    fs::create_dir_all(daemon.path("dir/sub")).unwrap();
    fs::write(daemon.path("file"), "x").unwrap();
    for call in ["move", "copy"] {
        for (from, to) in [("dir", "file"), ("file", "dir")] {
            let answer = daemon.relocate(call, from, to, true);
            assert_eq!(answer.refusal(), refusal(400, "INVALID_ARGUMENT"), "{call} {from} {to}");
        }
    }
    assert!(daemon.path("dir/sub").is_dir() && daemon.path("file").is_file());
}

#[test]
fn directories_are_made_with_their_parents_as_often_as_one_likes() {
    let daemon = Daemon::start();
    let make = |path: &str| daemon.send("POST", &format!("/v1/directories/{path}"), "", b"");
    assert_eq!((make("a/b/c").status, make("a%2Fb%2Fc").status, make("").status), (204, 204, 204));
    assert!(daemon.path("a/b/c").is_dir());
    fs::write(daemon.path("f"), "x").unwrap();
    assert_eq!(make("f").refusal(), refusal(409, "CONFLICT"));
    assert_eq!(make("f/x").refusal(), refusal(404, "NOT_FOUND"));
}

#[test]
fn a_wrong_body_is_refused_with_what_is_missing() {
    let daemon = Daemon::start();
    let answer = daemon.post("/v1/move", &serde_json::json!({"from": "a"}));
    assert_eq!(answer.refusal(), refusal(400, "INVALID_ARGUMENT"));
    assert!(answer.json()["message"].as_str().unwrap().contains("`to`"), "{}", answer.text());
    assert_eq!(daemon.relocate("move", "", "x", false).refusal(), refusal(400, "INVALID_ARGUMENT"));
    assert_eq!(daemon.relocate("copy", &"x".repeat(70_000), "x", false).status, 413);
}
