//! The examples of docs/clients.md, run as they stand.

use std::io::Write;
use std::process::Stdio;

use asb_testing::clients::{NEWEST, POOL, client};

use super::{delete_pool, router};
use crate::engine::{Engine, eventually, stdout, text};

/// The fenced blocks of a language, in their order.
fn blocks(document: &str, language: &str) -> Vec<String> {
    let begin = format!("\n```{language}\n");
    let rest = document.split(&begin).skip(1);
    rest.filter_map(|text| text.split_once("\n```")).map(|(block, _)| format!("{block}\n")).collect()
}

#[test]
fn examples_of_the_document_run_as_they_stand() {
    let engine = Engine::start();
    let document = std::fs::read_to_string(asb_testing::root().join("docs/clients.md")).unwrap();
    // The client is installed and the engine runs; what is left of the first block makes the pool.
    let shell = &blocks(&document, "sh")[0];
    let (_, apply) = shell.split_once("kubectl apply -f - <<'YAML'\n").expect("the first block makes a pool");
    let (manifest, _) = apply.split_once("YAML").expect("and its manifest ends");
    stdout(&engine.kubectl_apply(manifest));
    eventually("the pool is full", || {
        text(&engine.kubectl(&["get", "swp", POOL, "-o", "jsonpath={.status.readyReplicas}"])) == "2"
    });

    let settings = router(&engine);
    let mut python = client(NEWEST, &engine.kubeconfig())
        .arg("-")
        .env("ROUTER", settings["url"].as_str().unwrap())
        .env("TOKEN", settings["token"].as_str().unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let program = blocks(&document, "python").concat();
    python.stdin.take().unwrap().write_all(program.as_bytes()).unwrap();
    let output = python.wait_with_output().unwrap();
    let printed = stdout(&output);
    let lines: Vec<_> = printed.lines().filter(|line| !line.is_empty()).collect();
    // Local tunnel, direct, asynchronous, sandboxd.
    let [kernel, hosts @ .., name] = &lines[..] else { panic!("{}", text(&output)) };
    assert!(kernel.starts_with("Linux ") && hosts.len() == 2 && *name == "agent", "{}", text(&output));
    stdout(&engine.kubectl(&["delete", "sandboxclaims", "--all", "--timeout=30s"]));
    delete_pool(&engine, "default");
    engine.stop();
}
