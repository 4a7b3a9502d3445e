//! Reading, writing, listing and deleting files; health and metadata.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};

use serde_json::json;

use super::refusal;
use crate::support::{Answer, Daemon, eventually, multipart};

fn mode(daemon: &Daemon, name: &str) -> u32 {
    fs::metadata(daemon.path(name)).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_file_makes_the_round_trip_with_its_mode_and_leaves_no_temporary_file() {
    let daemon = Daemon::start();
    let content: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let put = daemon.put("new%2Fdeep/x.bin", &content);
    assert_eq!((put.status, put.body.len()), (204, 0));
    assert_eq!(mode(&daemon, "new/deep/x.bin"), 0o644);
    let got = daemon.get("/v1/files/new/deep%2Fx.bin");
    assert_eq!((got.status, got.body == content), (200, true));
    for header in [
        "content-type: application/octet-stream",
        "content-length: 300000",
        "accept-ranges: bytes",
        "last-modified: ",
    ] {
        assert!(got.head.contains(header), "{header} in {}", got.head);
    }
    assert!(!got.head.contains("etag"), "{}", got.head);
    // Overwriting sets the mode, too.
    assert_eq!(daemon.put("new/deep/x.bin?mode=0755", b"short").status, 204);
    assert_eq!(
        (mode(&daemon, "new/deep/x.bin"), daemon.get("/v1/files/new/deep/x.bin").text()),
        (0o755, "short")
    );
    assert_eq!(fs::read_dir(daemon.path("new/deep")).unwrap().count(), 1);
}

#[test]
fn head_is_get_without_a_body() {
    let daemon = Daemon::start();
    fs::write(daemon.path("a.txt"), "12345").unwrap();
    let head = daemon.send("HEAD", "/v1/files/a.txt", "", b"");
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert!(head.head.contains("content-length: 5"), "{}", head.head);
    assert_eq!(daemon.send("HEAD", "/v1/files/", "", b"").status, 200);
    assert_eq!(daemon.send("HEAD", "/v1/files/nothing", "", b"").status, 404);
    assert_eq!(daemon.send("HEAD", "/v1/files/..%2Fx", "", b"").status, 403);
}

#[test]
fn ranges_and_conditions_are_honoured() {
    let daemon = Daemon::start();
    fs::write(daemon.path("a.txt"), "0123456789").unwrap();
    let part = daemon.send("GET", "/v1/files/a.txt", "Range: bytes=2-4\r\n", b"");
    assert_eq!((part.status, part.text()), (206, "234"));
    assert!(part.head.contains("content-range: bytes 2-4/10"), "{}", part.head);
    assert_eq!(daemon.send("GET", "/v1/files/a.txt", "Range: bytes=20-\r\n", b"").status, 416);
    let fresh = "If-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT\r\n";
    let unchanged = daemon.send("GET", "/v1/files/a.txt", fresh, b"");
    assert_eq!((unchanged.status, unchanged.body.len()), (304, 0));
    let stale = "If-Modified-Since: Thu, 01 Jan 1970 00:00:00 GMT\r\n";
    assert_eq!(daemon.send("GET", "/v1/files/a.txt", stale, b"").status, 200);
}

#[test]
fn a_listing_is_sorted_follows_links_inside_and_hides_the_others() {
    let daemon = Daemon::start();
    assert_eq!(daemon.get("/v1/files/").json(), json!({"path": "/", "entries": []}), "never null");
    fs::write(daemon.path("b.txt"), "12345").unwrap();
    fs::create_dir(daemon.path("a")).unwrap();
    symlink("b.txt", daemon.path("c")).unwrap();
    symlink("/etc", daemon.path("escaping")).unwrap();
    symlink("nowhere", daemon.path("dangling")).unwrap();
    let listing = daemon.get("/v1/files/").json();
    let entries: Vec<_> = listing["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (entry["name"].as_str().unwrap(), entry["type"].as_str().unwrap()))
        .collect();
    assert_eq!(entries, [("a", "directory"), ("b.txt", "file"), ("c", "file")]);
    let link = &listing["entries"][2];
    assert_eq!((&link["size"], &link["mode"]), (&json!(5), &json!("0644")), "as its target");
    let time = link["modified_at"].as_str().unwrap();
    assert!(time.len() == 20 && time.ends_with('Z') && time.starts_with("20"), "{time}");
    assert_eq!(daemon.get("/v1/files/a").json()["path"], "/a");
}

#[test]
fn every_spelling_of_the_root_lists_it_without_a_redirect() {
    let daemon = Daemon::start();
    for path in ["/v1/files", "/v1/files/", "/v1/files/.", "/v1/files/%2E", "/v1/files/%2F", "/v1/files//"] {
        let answer = daemon.get(path);
        assert_eq!((answer.status, &answer.json()["entries"]), (200, &json!([])), "{path}");
    }
}

#[test]
fn an_absolute_path_may_name_the_root() {
    let daemon = Daemon::start();
    fs::write(daemon.path("f.txt"), "x").unwrap();
    let absolute = daemon.path("f.txt").display().to_string().replace('/', "%2F");
    assert_eq!(daemon.get(&format!("/v1/files/{absolute}")).text(), "x");
    assert_eq!(daemon.get("/v1/files/%2Ff.txt").text(), "x");
}

#[test]
fn put_checks_mode_then_path_then_target_then_body() {
    let daemon = Daemon::start();
    fs::create_dir(daemon.path("dir")).unwrap();
    for wrong in ["0999", "777", "abcd", "01777"] {
        let answer = daemon.put(&format!("..%2Fx?mode={wrong}"), b"x");
        assert_eq!(answer.refusal(), refusal(400, "INVALID_ARGUMENT"));
        assert_eq!(answer.json()["message"], format!("mode \"{wrong}\" must match ^0[0-7]{{3}}$"));
    }
    assert_eq!(daemon.put("..%2Fx", b"x").refusal(), refusal(403, "PERMISSION_DENIED"));
    assert_eq!(daemon.put("dir", b"x").json()["message"], "target path is a directory");
    assert_eq!(daemon.put("", b"x").refusal(), refusal(400, "INVALID_ARGUMENT"));
    let form = "Content-Type: multipart/form-data; boundary=XX\r\n";
    let answer = daemon.send("PUT", "/v1/files/new/x", form, &multipart("name=\"other\"", b"x"));
    assert_eq!(answer.json()["message"], "multipart body is missing the required \"file\" part");
    assert!(!daemon.path("new").exists(), "a refused request creates no directories");
    let answer = daemon.send(
        "PUT",
        "/v1/files/new/x",
        form,
        &multipart("name=\"file\"; filename=\"y\"", b"in a form"),
    );
    assert_eq!((answer.status, daemon.get("/v1/files/new/x").text()), (204, "in a form"));
}

#[test]
fn a_chunked_put_is_accepted_and_a_broken_one_leaves_nothing() {
    let daemon = Daemon::start();
    fs::write(daemon.path("a.txt"), "old").unwrap();
    let head =
        "PUT /v1/files/a.txt HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut stream = daemon.connect();
    stream.write_all(format!("{head}5\r\nhello\r\n").as_bytes()).unwrap();
    eventually("the upload has begun", || fs::read_dir(daemon.path("")).unwrap().count() == 2);
    drop(stream);
    eventually("the temporary file is gone", || fs::read_dir(daemon.path("")).unwrap().count() == 1);
    assert_eq!(fs::read_to_string(daemon.path("a.txt")).unwrap(), "old");
    let mut stream = daemon.connect();
    stream.write_all(format!("{head}5\r\nhello\r\n0\r\n\r\n").as_bytes()).unwrap();
    assert_eq!(Answer::read(&mut stream).status, 204);
    assert_eq!(fs::read_to_string(daemon.path("a.txt")).unwrap(), "hello");
}

#[test]
fn a_file_that_cannot_be_written_whole_is_an_error_and_changes_nothing() {
    // As on a full disk: the last write fails.
    let daemon = Daemon::start_after("trap '' XFSZ; ulimit -f 1", &[], &[]);
    fs::write(daemon.path("a.txt"), "old").unwrap();
    let put = daemon.put("a.txt", &[b'x'; 5000]);
    assert_eq!(put.refusal(), refusal(500, "INTERNAL"));
    assert_eq!(daemon.upload("a.txt", &[b'x'; 5000]).status, 500);
    assert_eq!(fs::read_to_string(daemon.path("a.txt")).unwrap(), "old");
    assert_eq!(fs::read_dir(daemon.path("")).unwrap().count(), 1, "no temporary file stays");
}

#[test]
fn a_file_of_any_age_can_be_read() {
    let daemon = Daemon::start();
    for time in [-1_000_000_000, 0, 253_402_300_800, 300_000_000_000_i64] {
        let file = fs::File::create(daemon.path("a.txt")).unwrap();
        let stamp = rustix::fs::Timespec { tv_sec: time, tv_nsec: 1 };
        rustix::fs::futimens(&file, &rustix::fs::Timestamps { last_access: stamp, last_modification: stamp })
            .unwrap();
        for path in ["/v1/files/a.txt", "/download/a.txt", "/v1/files/", "/list/"] {
            let answer = daemon.get(path);
            assert_eq!(answer.status, 200, "{path} of {time}");
        }
        let head = daemon.send("HEAD", "/v1/files/a.txt", "", b"");
        assert!(head.head.contains("last-modified: "), "{}", head.head);
    }
}

#[test]
fn delete_has_a_code_for_every_case() {
    let daemon = Daemon::start();
    fs::create_dir_all(daemon.path("d/sub")).unwrap();
    fs::create_dir(daemon.path("empty")).unwrap();
    fs::write(daemon.path("f"), "x").unwrap();
    assert_eq!(daemon.delete("..%2Fx?recursive=maybe").refusal(), refusal(403, "PERMISSION_DENIED"));
    assert_eq!(daemon.delete("nothing?recursive=maybe").refusal(), refusal(404, "NOT_FOUND"));
    let answer = daemon.delete("f?recursive=maybe");
    assert_eq!(answer.json()["message"], "recursive \"maybe\" must be a boolean");
    assert_eq!(daemon.delete("f").status, 204);
    assert_eq!(daemon.delete("empty").status, 204);
    let answer = daemon.delete("d");
    assert_eq!(answer.refusal(), refusal(409, "CONFLICT"));
    assert_eq!(answer.json()["message"], "directory is not empty; pass recursive=true to remove it");
    assert_eq!(daemon.delete("").refusal(), refusal(409, "CONFLICT"));
    assert_eq!(daemon.delete("d?recursive=1").status, 204);
    fs::create_dir_all(daemon.path("again/deep")).unwrap();
    assert_eq!(daemon.delete("again%2F..?recursive=true").status, 204);
    assert_eq!(fs::read_dir(daemon.path("")).unwrap().count(), 0, "the root itself stays");
}

#[test]
fn a_deleted_link_leaves_its_target_alone() {
    let daemon = Daemon::start();
    fs::create_dir(daemon.path("kept")).unwrap();
    fs::write(daemon.path("kept/f"), "x").unwrap();
    for (name, target) in [("to-root", "."), ("to-dir", "kept"), ("outside", "/etc"), ("dangling", "nowhere")]
    {
        symlink(target, daemon.path(name)).unwrap();
        assert_eq!(daemon.delete(&format!("{name}/?recursive=true")).status, 204, "{name}");
        assert!(fs::symlink_metadata(daemon.path(name)).is_err(), "{name}");
    }
    assert!(daemon.path("kept/f").exists());
}

#[test]
fn paths_that_are_wrong_in_odd_ways_are_never_an_internal_error() {
    let daemon = Daemon::start();
    fs::write(daemon.path("file"), "x").unwrap();
    symlink("loop", daemon.path("loop")).unwrap();
    let long = "x".repeat(300);
    for (path, status) in [("file/below", 404), ("loop", 403), ("loop/x", 403), (&long, 400), ("a%00b", 400)]
    {
        assert_eq!(daemon.get(&format!("/v1/files/{path}")).status, status, "GET {path}");
        assert_eq!(daemon.put(path, b"x").status, status, "PUT {path}");
    }
    assert_eq!(daemon.delete("file/below").status, 404);
    assert_eq!(daemon.delete(&long).status, 400);
    assert_eq!(daemon.delete("a%00b").status, 400);
}

#[test]
fn a_refused_pipe_is_not_even_opened() {
    let daemon = Daemon::start();
    // The writer waits for a reader; one that comes and goes would end it.
    daemon.run("sh -c 'mkfifo pipe; echo text > pipe 2>/dev/null & echo $! > writer'");
    let writer = fs::read_to_string(daemon.path("writer")).unwrap();
    let status = format!("/proc/{}/status", writer.trim());
    eventually("the writer waits", || fs::read_to_string(&status).unwrap().contains("State:\tS"));
    for path in ["/v1/files/pipe", "/download/pipe"] {
        assert!(daemon.get(path).status >= 400, "{path}");
    }
    let read = daemon.execute(&json!({"command": "cat pipe", "timeout_seconds": 10}));
    assert_eq!(read["stdout"], "text\n");
}

#[test]
fn health_and_metadata_have_the_known_shape() {
    let daemon = Daemon::start_with(&[("SANDBOX_ID", "sbx-123"), ("SANDBOX_API_TOKEN", "secret")]);
    let health = daemon.get("/v1/health");
    assert_eq!((health.status, &health.json()["status"]), (200, &json!("ok")));
    assert!(health.json()["uptime_seconds"].is_u64());
    let env = daemon.get("/v1/metadata").json()["env"].clone();
    assert_eq!((&env["SANDBOX_ID"], env.get("SANDBOX_API_TOKEN")), (&json!("sbx-123"), None));
}

#[test]
fn unknown_routes_and_methods_are_refused_in_the_shape_of_this_api() {
    let daemon = Daemon::start();
    assert_eq!(daemon.get("/v1/nothing").refusal(), refusal(404, "NOT_FOUND"));
    assert_eq!(daemon.get("/v1").refusal(), refusal(404, "NOT_FOUND"));
    let answer = daemon.send("POST", "/v1/files/x", "", b"");
    assert_eq!(answer.refusal(), refusal(405, "METHOD_NOT_ALLOWED"));
    assert!(answer.head.contains("allow: delete, get, head, put"), "{}", answer.head);
}
