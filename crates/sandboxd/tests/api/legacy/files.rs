//! Files, as a client sees them.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{Answer, Daemon, eventually, multipart};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Value, json};

fn names(listing: &Answer) -> Vec<String> {
    listing
        .json()
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["name"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_file_makes_the_round_trip_into_directories_that_did_not_exist() {
    let daemon = Daemon::start();
    let content: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let answer = daemon.upload("new/deep/x.bin", &content);
    assert_eq!(
        (answer.status, answer.text()),
        (200, r#"{"message":"File 'new/deep/x.bin' uploaded successfully."}"#)
    );
    assert_eq!(
        daemon.get("/exists/new%2Fdeep%2Fx.bin").json(),
        json!({"path": "new/deep/x.bin", "exists": true})
    );
    let download = daemon.get("/download/new/deep/x.bin");
    assert_eq!((download.status, download.body == content), (200, true));
    for header in [
        "content-type: application/octet-stream",
        "content-length: 300000",
        "accept-ranges: bytes",
        "content-disposition: attachment; filename=\"x.bin\"",
        "last-modified: ",
        "etag: \"",
    ] {
        assert!(download.head.contains(header), "{header} in {}", download.head);
    }
}

#[test]
fn a_range_of_a_file_is_206() {
    let daemon = Daemon::start();
    fs::write(daemon.path("a.txt"), "0123456789").unwrap();
    let part = daemon.send("GET", "/download/a.txt", "Range: bytes=2-4\r\n", b"");
    assert_eq!((part.status, part.text()), (206, "234"));
    assert!(part.head.contains("content-range: bytes 2-4/10"), "{}", part.head);
    let beyond = daemon.send("GET", "/download/a.txt", "Range: bytes=20-\r\n", b"");
    assert_eq!(beyond.status, 416);
    assert!(beyond.head.contains("content-range: bytes */10"), "{}", beyond.head);
}

#[test]
fn names_are_stored_exactly_as_sent_and_decoded_once() {
    let daemon = Daemon::start();
    for (name, encoded) in
        [("a%20b", "a%2520b"), ("q%22x", "q%2522x"), ("ü x", "%C3%BC%20x"), ("100%", "100%25")]
    {
        assert_eq!(daemon.upload(name, name.as_bytes()).status, 200);
        assert_eq!(fs::read_to_string(daemon.path(name)).unwrap(), name);
        assert_eq!(daemon.get(&format!("/download/{encoded}")).text(), name);
    }
}

#[test]
fn an_upload_replaces_the_content_and_keeps_the_rights() {
    let daemon = Daemon::start();
    fs::write(daemon.path("run.sh"), "old").unwrap();
    fs::set_permissions(daemon.path("run.sh"), fs::Permissions::from_mode(0o750)).unwrap();
    assert_eq!(daemon.upload("run.sh", b"new").status, 200);
    assert_eq!(fs::read_to_string(daemon.path("run.sh")).unwrap(), "new");
    assert_eq!(fs::metadata(daemon.path("run.sh")).unwrap().permissions().mode() & 0o777, 0o750);
    assert_eq!(names(&daemon.get("/list")), ["run.sh"], "no temporary file stays");
}

#[test]
fn a_broken_upload_leaves_the_old_file_and_nothing_else() {
    let daemon = Daemon::start();
    fs::write(daemon.path("a.txt"), "old").unwrap();
    let head = "POST /upload HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=XX\r\nContent-Length: 100000\r\n\r\n";
    let mut stream = daemon.connect();
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&multipart("name=\"file\"; filename=\"a.txt\"", &[b'n'; 5000])[..4000]).unwrap();
    eventually("the upload has begun", || fs::read_dir(daemon.path("")).unwrap().count() == 2);
    drop(stream);
    eventually("the temporary file is gone", || fs::read_dir(daemon.path("")).unwrap().count() == 1);
    assert_eq!(fs::read_to_string(daemon.path("a.txt")).unwrap(), "old");

    let whole = multipart("name=\"file\"; filename=\"a.txt\"", b"new");
    for (what, missing) in [("the last dashes", 4), ("the last boundary", 10)] {
        let body = &whole[..whole.len() - missing];
        let answer =
            daemon.send("POST", "/upload", "Content-Type: multipart/form-data; boundary=XX\r\n", body);
        assert_eq!(answer.status, 400, "without {what}");
        assert_eq!(fs::read_to_string(daemon.path("a.txt")).unwrap(), "old", "without {what}");
    }
    assert_eq!(names(&daemon.get("/list")), ["a.txt"]);
}

#[test]
fn a_chunked_upload_is_accepted() {
    let daemon = Daemon::start();
    let mut stream = daemon.connect();
    stream
        .write_all(b"POST /upload HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nContent-Type: multipart/form-data; boundary=XX\r\n\r\n")
        .unwrap();
    for chunk in multipart("name=\"file\"; filename=\"c.txt\"", b"chunked content").chunks(9) {
        write!(stream, "{:x}\r\n", chunk.len()).unwrap();
        stream.write_all(chunk).unwrap();
        stream.write_all(b"\r\n").unwrap();
    }
    stream.write_all(b"0\r\n\r\n").unwrap();
    assert_eq!(Answer::read(&mut stream).status, 200);
    assert_eq!(fs::read_to_string(daemon.path("c.txt")).unwrap(), "chunked content");
}

#[test]
fn an_upload_without_a_file_is_422() {
    let daemon = Daemon::start();
    let form = "Content-Type: multipart/form-data; boundary=XX\r\n";
    let missing = json!({"type": "missing", "loc": ["body", "file"], "msg": "Field required", "input": null});
    let answer = daemon.send("POST", "/upload", form, &multipart("name=\"other\"; filename=\"x\"", b"y"));
    assert_eq!((answer.status, answer.json()), (422, json!({"detail": [missing]})));
    let answer = daemon.send("POST", "/upload", form, &multipart("name=\"file\"", b"plain"));
    assert_eq!((answer.status, &answer.json()["detail"][0]["input"]), (422, &json!("plain")));
    assert_eq!(daemon.send("POST", "/upload", "Content-Type: application/json\r\n", b"{}").status, 422);
}

#[test]
fn an_upload_onto_a_directory_fails_with_the_reason() {
    let daemon = Daemon::start();
    fs::create_dir(daemon.path("dir")).unwrap();
    let answer = daemon.upload("dir", b"x");
    assert_eq!(
        (answer.status, answer.text()),
        (500, r#"{"message":"File upload failed: [Errno 21] Is a directory"}"#)
    );
}

#[test]
fn every_way_out_of_the_base_directory_is_403() {
    let daemon = Daemon::start();
    symlink("/etc", daemon.path("out")).unwrap();
    symlink("../..", daemon.path("up")).unwrap();
    for path in [
        "..%2F..%2Fetc%2Fpasswd",
        "%2F..%2Fetc%2Fpasswd",
        "%2E%2E",
        "foo%2F..%2F..%2Fbar",
        "out/passwd",
        "up/x",
        "../x",
        "a%00b",
    ] {
        for call in ["exists", "download", "list"] {
            let answer = daemon.get(&format!("/{call}/{path}"));
            assert_eq!(
                (answer.status, answer.text()),
                (403, r#"{"message":"Access denied"}"#),
                "/{call}/{path}"
            );
        }
    }
    for filename in ["../../x", "/../x", "out/x", "up/x", "new/../../x"] {
        assert_eq!(daemon.upload(filename, b"x").status, 403, "{filename}");
    }
}

#[test]
fn a_link_swapped_in_during_a_call_does_not_lead_out() {
    let daemon = Daemon::start();
    let outside = daemon.path("../outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("f"), "secret").unwrap();
    fs::create_dir(daemon.path("dir")).unwrap();
    fs::write(daemon.path("dir/f"), "inside").unwrap();
    symlink("../outside", daemon.path("link")).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let [dir, link] = ["dir", "link"].map(|name| daemon.path(name));
            while !over.load(Ordering::Relaxed) {
                renameat_with(CWD, &dir, CWD, &link, RenameFlags::EXCHANGE).unwrap();
            }
        });
        let (mut inside, mut refused) = (0, 0);
        for _ in 0..1000 {
            let answer = daemon.get("/download/dir/f");
            assert_ne!(answer.text(), "secret");
            inside += usize::from(answer.text() == "inside");
            refused += usize::from(answer.status == 403);
            let written = daemon.upload("dir/f", b"inside");
            assert!([200, 403].contains(&written.status), "{}", written.text());
        }
        over.store(true, Ordering::Relaxed);
        assert!(inside > 0 && refused > 0, "the race was run: {inside} inside, {refused} refused");
    });
    assert_eq!(
        fs::read_to_string(outside.join("f")).unwrap(),
        "secret",
        "nothing was written outside either"
    );
}

#[test]
fn an_absolute_path_begins_at_the_base_directory() {
    let daemon = Daemon::start();
    assert_eq!(daemon.upload("/abs.txt", b"x").status, 200);
    assert_eq!(daemon.get("/exists/%2Fabs.txt").json(), json!({"path": "/abs.txt", "exists": true}));
    assert_eq!(daemon.get("/download/%2Fabs.txt").text(), "x");
}

#[test]
fn every_spelling_of_the_root_lists_it() {
    let daemon = Daemon::start();
    fs::write(daemon.path("a.txt"), "12345").unwrap();
    fs::create_dir(daemon.path("dir")).unwrap();
    for path in ["/list", "/list/", "/list/.", "/list/%2E", "/list/%2F"] {
        assert_eq!(names(&daemon.get(path)), ["a.txt", "dir"], "{path}");
    }
    let listing = daemon.get("/list").json();
    assert_eq!((&listing[0]["type"], &listing[0]["size"]), (&json!("file"), &json!(5)));
    assert_eq!(listing[1]["type"], "directory");
    assert!(listing[0]["mod_time"].as_f64().unwrap() > 1.6e9);
    for (path, shown) in [("/exists", ""), ("/exists/", ""), ("/exists/.", ".")] {
        assert_eq!(daemon.get(path).json(), json!({"path": shown, "exists": true}));
    }
}

#[test]
fn links_do_not_break_a_listing() {
    let daemon = Daemon::start();
    fs::create_dir(daemon.path("dir")).unwrap();
    symlink("nowhere", daemon.path("dangling")).unwrap();
    symlink("/etc", daemon.path("outside")).unwrap();
    symlink("dir", daemon.path("inside")).unwrap();
    let listing = daemon.get("/list").json();
    let kind = |name: &str| -> Value {
        listing.as_array().unwrap().iter().find(|entry| entry["name"] == name).unwrap()["type"].clone()
    };
    assert_eq!(kind("inside"), "directory");
    assert_eq!(kind("dangling"), "file");
    assert_eq!(kind("outside"), "file", "what is outside is not looked at");
}

#[test]
fn what_is_not_there_is_404_in_the_words_of_each_call() {
    let daemon = Daemon::start();
    fs::create_dir(daemon.path("dir")).unwrap();
    fs::write(daemon.path("a.txt"), "x").unwrap();
    for path in ["/download/nothing", "/download/dir", "/download/", "/download", "/download/a.txt/b"] {
        let answer = daemon.get(path);
        assert_eq!((answer.status, answer.text()), (404, r#"{"message":"File not found"}"#), "{path}");
    }
    for path in ["/list/nothing", "/list/a.txt"] {
        let answer = daemon.get(path);
        assert_eq!(
            (answer.status, answer.text()),
            (404, r#"{"message":"Path is not a directory"}"#),
            "{path}"
        );
    }
    assert_eq!(daemon.get("/exists/nothing").json(), json!({"path": "nothing", "exists": false}));
}

#[test]
fn a_pipe_is_not_a_file_to_read() {
    let daemon = Daemon::start();
    assert_eq!(daemon.run("mkfifo pipe")["exit_code"], 0);
    assert_eq!(daemon.get("/download/pipe").status, 404);
}

#[test]
fn a_wrong_route_is_404_and_a_wrong_method_405_with_allow() {
    let daemon = Daemon::start();
    for path in ["/nothing", "/execute/", "/v2/health"] {
        let answer = daemon.get(path);
        assert_eq!((answer.status, answer.text()), (404, r#"{"detail":"Not Found"}"#), "{path}");
    }
    for (method, path, allow) in [
        ("POST", "/", "get"),
        ("GET", "/execute", "post"),
        ("PUT", "/upload", "post"),
        ("DELETE", "/list/x", "get"),
    ] {
        let answer = daemon.send(method, path, "", b"");
        assert_eq!(
            (answer.status, answer.text()),
            (405, r#"{"detail":"Method Not Allowed"}"#),
            "{method} {path}"
        );
        assert!(answer.head.contains(&format!("allow: {allow}")), "{}", answer.head);
    }
    assert_eq!(daemon.send("HEAD", "/download/x", "", b"").status, 405);
}
