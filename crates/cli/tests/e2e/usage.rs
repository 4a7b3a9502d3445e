//! What sandboxes use, as `kubectl top` and `asb top` show it.

use serde_json::Value;

use crate::engine::{Engine, eventually, stdout, text};
use crate::terminal::Terminal;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn kubectl_top_shows_who_is_busy_and_who_is_large() {
    let engine = Engine::start();
    let names = ["busy", "large", "idle"];
    names.iter().for_each(|name| drop(stdout(&engine.asb(&["run", "--detach", "--name", name]))));
    let background = |name: &str, script: &str| {
        let script = format!("{script} > /dev/null 2>&1 &");
        stdout(&engine.asb(&["exec", name, "--", "sh", "-c", &script]));
    };
    background("busy", "while :; do :; done");
    background("large", "perl -e '$x = \"x\" x 100000000; sleep 1000'");
    // NAME CPU(cores) MEMORY(bytes), as in `busy 980m 3Mi`.
    let amount = |table: &str, name: &str, column: usize| -> u64 {
        let row = table.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        let cell = row.split_whitespace().nth(column).unwrap_or("0");
        cell.trim_end_matches(|c: char| c.is_alphabetic()).parse().unwrap()
    };
    let mut table = String::new();
    eventually("the busy one has half a processor and the large one its memory", || {
        table = stdout(&engine.kubectl(&["top", "pod"]));
        amount(&table, "busy", 1) >= 300 && amount(&table, "large", 2) >= 95
    });
    assert!(amount(&table, "idle", 1) < 50 && amount(&table, "idle", 2) < 50, "{table}");
    let by_container = stdout(&engine.kubectl(&["top", "pod", "-A", "--containers"]));
    assert!(by_container.lines().filter(|line| line.contains(" main ")).count() == 3, "{by_container}");
    let one = stdout(&engine.kubectl(&["top", "pod", "large", "--no-headers"]));
    assert_eq!(one.lines().count(), 1, "{one}");
    let node = stdout(&engine.kubectl(&["top", "node", "--no-headers"]));
    assert!(node.contains('%') && node.split_whitespace().nth(1).unwrap() != "0m", "{node}");

    let summary = stdout(&engine.kubectl(&[
        "get",
        "--raw",
        &format!("/api/v1/nodes/{}/proxy/stats/summary", node.split_whitespace().next().unwrap()),
    ]));
    assert_eq!(json(&summary)["pods"].as_array().unwrap().len(), 3);
    assert!(json(&summary)["pods"][0]["containers"][0]["memory"]["workingSetBytes"].as_u64().unwrap() > 0);

    let rows = json(&stdout(&engine.asb(&["top", "--json"])));
    assert_eq!(rows[0]["name"], "busy", "the busiest comes first: {rows}");
    assert!(rows[0]["cpuNanocores"].as_u64().unwrap() > 100_000_000, "on a busy machine: {rows}");
    let table = stdout(&engine.asb(&["top"]));
    assert!(table.starts_with("NAMESPACE") && table.contains("idle"), "once, for it is no terminal: {table}");
    let mut live = Terminal::start(&engine.command(&["top", "--interval", "1"]), 120, 40);
    eventually("it shows more than once", || live.seen().matches("NAMESPACE").count() > 1);
    live.enter("\u{3}");
    assert_eq!(live.ends().code(), Some(0));
    stdout(&engine.asb(&["rm", "--all"]));
    let nothing = engine.asb(&["top"]);
    assert!(nothing.status.success() && text(&nothing).contains("nothing runs"), "{}", text(&nothing));
    engine.stop();
}
