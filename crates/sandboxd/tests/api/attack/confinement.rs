//! No call of the REST API leaves the root, however the path is written and whatever changes meanwhile.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::json;

use crate::rest::refusal;
use crate::support::{Answer, Daemon};

const ESCAPES: [&str; 10] = [
    "..",
    "../etc/passwd",
    "%2E%2E/%2E%2E/etc/passwd",
    "..%2F..%2Fetc%2Fpasswd",
    "a/../../etc/passwd",
    "%2F..%2Fetc%2Fpasswd",
    "../base-evil/f.txt",
    "link/secret",
    "link/newfile",
    "link/sub/new",
];

/// A root with a neighbour that must not be reachable, and a link to it.
fn world() -> Daemon {
    let daemon = Daemon::start();
    fs::create_dir(daemon.path("../base-evil")).unwrap();
    fs::write(daemon.path("../base-evil/f.txt"), "secret").unwrap();
    fs::write(daemon.path("../base-evil/secret"), "secret").unwrap();
    symlink("../base-evil", daemon.path("link")).unwrap();
    fs::write(daemon.path("inside"), "inside").unwrap();
    daemon
}

fn evil_is_untouched(daemon: &Daemon) -> bool {
    fs::read_dir(daemon.path("../base-evil")).unwrap().count() == 2
        && fs::read_to_string(daemon.path("../base-evil/f.txt")).unwrap() == "secret"
        && fs::read_to_string(daemon.path("../base-evil/secret")).unwrap() == "secret"
}

#[test]
fn every_way_out_is_refused_by_every_call() {
    let daemon = world();
    let wanted = refusal(403, "PERMISSION_DENIED");
    for path in ESCAPES {
        let decoded = path.replace("%2F", "/").replace("%2E", ".");
        let answers: [(&str, Answer); 9] = [
            ("get", daemon.get(&format!("/v1/files/{path}"))),
            ("put", daemon.put(path, b"x")),
            ("delete", daemon.delete(&format!("{path}?recursive=true"))),
            ("mkdir", daemon.send("POST", &format!("/v1/directories/{path}"), "", b"")),
            ("watch", daemon.get(&format!("/v1/watch/{path}"))),
            ("move out", daemon.relocate("move", "inside", &decoded, true)),
            ("move in", daemon.relocate("move", &decoded, "stolen", true)),
            ("copy out", daemon.relocate("copy", "inside", &decoded, true)),
            ("copy in", daemon.relocate("copy", &decoded, "stolen", true)),
        ];
        for (call, answer) in answers {
            assert_eq!(answer.refusal(), wanted, "{call} {path}");
        }
        assert!(evil_is_untouched(&daemon) && !daemon.path("stolen").exists(), "{path}");
    }
    assert_eq!(daemon.get("/v1/files/link").refusal(), wanted, "reading follows a link");
    let answer = daemon.put("..%2Fx", b"");
    assert_eq!(answer.json()["message"], "path traversal outside sandbox root is forbidden");
}

#[test]
fn a_link_swapped_in_during_a_call_does_not_lead_out() {
    let daemon = world();
    fs::create_dir(daemon.path("dir")).unwrap();
    fs::write(daemon.path("dir/f.txt"), "inside").unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let [dir, link] = ["dir", "link"].map(|name| daemon.path(name));
            while !over.load(Ordering::Relaxed) {
                renameat_with(CWD, &dir, CWD, &link, RenameFlags::EXCHANGE).unwrap();
            }
        });
        let (mut inside, mut refused) = (0, 0);
        for _ in 0..500 {
            let answer = daemon.get("/v1/files/dir/f.txt");
            assert_ne!(answer.text(), "secret");
            inside += usize::from(answer.text() == "inside");
            refused += usize::from(answer.status == 403);
            daemon.put("dir/f.txt", b"inside");
            daemon.relocate("copy", "inside", "dir/copied", true);
            daemon.delete("dir/copied");
            daemon.delete("dir/secret");
        }
        over.store(true, Ordering::Relaxed);
        assert!(inside > 0 && refused > 0, "the race was run: {inside} inside, {refused} refused");
    });
    assert!(evil_is_untouched(&daemon));
}

#[test]
fn a_recursive_delete_does_not_follow_a_link_swapped_in() {
    let daemon = world();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let _ = fs::create_dir_all(daemon.path("tree/sub"));
                let _ = renameat_with(
                    CWD,
                    daemon.path("tree/sub"),
                    CWD,
                    daemon.path("link"),
                    RenameFlags::EXCHANGE,
                );
            }
        });
        for _ in 0..300 {
            daemon.delete("tree?recursive=true");
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(evil_is_untouched(&daemon));
}

#[test]
fn pipes_and_devices_are_neither_read_nor_written_and_block_nothing() {
    let daemon = Daemon::start();
    assert_eq!(daemon.run("mkfifo pipe")["exit_code"], 0);
    let begun = Instant::now();
    for answer in [
        daemon.get("/v1/files/pipe"),
        daemon.put("pipe", b"x"),
        daemon.relocate("copy", "pipe", "copied", false),
    ] {
        assert_eq!(answer.refusal(), refusal(400, "INVALID_ARGUMENT"));
    }
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(daemon.delete("pipe").status, 204);
}

#[test]
fn magic_links_of_proc_do_not_lead_out() {
    let daemon = Daemon::start();
    symlink("/proc/self/root", daemon.path("magic")).unwrap();
    symlink("/proc/self/cwd", daemon.path("cwd")).unwrap();
    for path in ["magic/etc/passwd", "cwd/Cargo.toml", "magic", "cwd"] {
        assert_eq!(daemon.get(&format!("/v1/files/{path}")).status, 403, "{path}");
    }
    assert_eq!(daemon.get("/v1/files/").json()["entries"], json!([]));
}
