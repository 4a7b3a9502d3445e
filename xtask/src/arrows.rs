//! Which crate may use which: the table of ARCHITECTURE.md as a test.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

/// Every crate with those of ours that it may depend on.
const ARROWS: &[(&str, &[&str])] = &[
    ("asb-types", &[]),
    ("asb-controllers", &["asb-types"]),
    ("asb-goflags", &[]),
    ("asb-operator", &["asb-controllers", "asb-goflags", "asb-types", "asb-webhook"]),
    ("asb-scheduler", &["asb-types"]),
    ("asb-apiserver", &["asb-scheduler", "asb-types"]),
    ("asb-supervisor", &[]),
    ("asb-sandboxd", &[]),
    ("asb-embedded", &[]),
    ("asb-runtime", &["asb-embedded", "asb-supervisor"]),
    ("asb-network", &[]),
    ("asb-node", &["asb-network", "asb-runtime", "asb-types"]),
    ("asb-router", &["asb-types"]),
    ("asb-sandbox-router", &["asb-goflags", "asb-router"]),
    ("asb-webhook", &["asb-types"]),
    (
        "asb",
        &[
            "asb-apiserver",
            "asb-controllers",
            "asb-network",
            "asb-node",
            "asb-operator",
            "asb-router",
            "asb-runtime",
            "asb-sandbox-router",
            "asb-types",
        ],
    ),
    ("asb-testing", &["asb-apiserver", "asb-controllers", "asb-network", "asb-runtime", "asb-types"]),
    (
        "asb-bench",
        &["asb-apiserver", "asb-controllers", "asb-router", "asb-runtime", "asb-testing", "asb-types"],
    ),
    ("xtask", &["asb-types"]),
];

#[test]
fn crates_depend_only_on_what_the_architecture_allows() {
    let output =
        Command::new(env!("CARGO")).args(["metadata", "--no-deps", "--format-version", "1"]).output();
    let metadata: Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
    let allowed: BTreeMap<_, _> = ARROWS.iter().copied().collect();
    for package in metadata["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        let allowed = allowed.get(name).unwrap_or_else(|| panic!("{name} is not in the table of arrows"));
        for dependency in package["dependencies"].as_array().unwrap() {
            let used = dependency["name"].as_str().unwrap();
            let ours = dependency["path"].is_string() && dependency["kind"] != "dev";
            assert!(!ours || allowed.contains(&used), "{name} may not depend on {used}");
        }
    }
}
