//! `asb link`: a signed URL opens a sandbox's page in a real browser, and nothing else.

use std::process::Command;

use serde_json::{Value, json};

use crate::engine::{Engine, stdout, text};
use crate::python::python;
use crate::router::{Router, serve};

/// Opens pages in one Chromium, one after the other; the value of an expression in each.
fn browse(pages: &[(&str, &str)]) -> Vec<Value> {
    let script = asb_testing::root().join("crates/cli/tests/e2e/browser.py");
    let mut python = Command::new(python());
    python.arg(script);
    for (url, expression) in pages {
        python.args([url, expression]);
    }
    let printed = stdout(&python.output().expect("Python can be started"));
    printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn link(engine: &Engine, more: &[&str]) -> String {
    stdout(&engine.asb(&[&["link"], more].concat())).trim_end().to_owned()
}

/// `(status, body)` without any header but those given.
fn fetch(url: &str, more: &[&str]) -> (u16, String) {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--max-time", "60", "--write-out", "\n%{http_code}"]);
    let said = stdout(&curl.args(more).arg(url).output().expect("curl can be started"));
    let (body, status) = said.rsplit_once('\n').expect("curl writes the status last");
    (status.parse().unwrap(), body.to_owned())
}

#[test]
fn link_opens_a_page_in_chromium_and_the_page_of_another_sandbox_cannot_use_it() {
    let engine = Engine::start();
    serve(&engine, "web");
    serve(&engine, "evil");
    let (web, evil) = (link(&engine, &["web", "8000"]), link(&engine, &["evil", "8000"]));
    let origin = |link: &str| link.split_once("/?").unwrap().0.to_owned();
    let attack = evil.replace("/?", &format!("/attack?{}&", origin(&web)));
    let seen = browse(&[
        (&web, "window.result"),
        // The cookie is enough now.
        (&origin(&web), "fetch('/own').then((answer) => answer.status)"),
        (&attack, "window.result"),
        (&origin(&web), "document.getElementById('text').textContent"),
    ]);
    let works = json!({
        "style": "rgb(1, 2, 3)", "script": "loaded", "fetch": {"from": "sandbox"}, "post": "4", "ws": "hello by chat",
        "cookie": "", "search": "",
    });
    assert_eq!(seen[0], works);
    assert_eq!(seen[1], 200);
    let attacked = &seen[2];
    for way in ["fetch", "post", "image", "script", "ws"] {
        assert_eq!(attacked[way], "refused", "{way}: {attacked}");
    }
    assert_eq!(seen[3], "text", "the page's own cookie still works");
    let log = stdout(&Router::of(&engine).get("web", "/log"));
    assert!(log.contains("/own\n"), "{log}");
    assert!(!log.contains("victim"), "a request of another page reached the sandbox: {log}");
    assert!(!log.contains("sandbox_token"), "{log}");
    engine.stop();
}

#[test]
fn link_is_for_one_port_of_one_sandbox_object_and_ends_with_it() {
    let engine = Engine::start_with(&["--router-path-prefix", "/s"]);
    serve(&engine, "web");
    serve(&engine, "other");
    let said: Value =
        serde_json::from_str(&link(&engine, &["web", "8000", "--json", "--ttl", "5m"])).unwrap();
    let url = said["url"].as_str().unwrap().to_owned();
    let left = said["expires"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap().as_second()
        - jiff::Timestamp::now().as_second();
    assert!((200..=300).contains(&left), "{said}");
    assert_eq!(fetch(&link(&engine, &["web", "8000", "--path", "/data.json?x=1"]), &[]).0, 200);
    assert_eq!(fetch(&url, &[]).0, 200);
    let token = url.split_once("sandbox_token=").unwrap().1;
    let address = Router::of(&engine).address;
    let port = address.rsplit_once(':').unwrap().1;
    for (elsewhere, status) in [
        (format!("http://8000-web.default.localhost:{port}/log"), 200),
        (format!("http://{address}/s/default/web/8000/log"), 200),
        (format!("http://8888-web.default.localhost:{port}/"), 403),
        (format!("http://8000-other.default.localhost:{port}/"), 403),
        (format!("http://8000-web.kube-system.localhost:{port}/"), 403),
        (format!("http://{address}/s/default/other/8000/"), 403),
        (format!("http://{address}/s/default/web/8888/"), 403),
    ] {
        let seen = fetch(&format!("{elsewhere}?sandbox_token={token}"), &[]);
        assert_eq!(seen.0, status, "{elsewhere}: {}", seen.1);
        assert_eq!(fetch(&elsewhere, &["--cookie", &format!("sandbox_token={token}")]).0, status);
        assert_eq!(fetch(&elsewhere, &[]).0, 401, "{elsewhere}");
    }
    // The same name again is another sandbox.
    stdout(&engine.asb(&["rm", "web"]));
    serve(&engine, "web");
    let (status, body) = fetch(&url, &[]);
    assert_eq!(status, 404, "{body}");
    assert_eq!(fetch(&link(&engine, &["web", "8000"]), &[]).0, 200);
    engine.stop();
}

#[test]
fn links_outlive_the_engine_and_mistakes_are_named() {
    let mut engine = Engine::start();
    serve(&engine, "web");
    let url = link(&engine, &["web", "8000"]);
    engine.kill();
    engine.restart();
    assert_eq!(fetch(&url, &[]).0, 200);
    let wrong = |more: &[&str]| text(&engine.asb(&[&["link"], more].concat()));
    assert!(wrong(&["nothing"]).contains("no sandbox `nothing`"), "{}", wrong(&["nothing"]));
    assert!(wrong(&[&"w".repeat(60)]).contains("--router-path-prefix"));
    assert!(wrong(&["web", "--ttl", "721h"]).contains("30 days"), "{}", wrong(&["web", "--ttl", "721h"]));
    assert!(!wrong(&["--help"]).contains("sandbox_token"));
    engine.stop();
}
