//! What others wrote with the published clients: the end-to-end script of the package itself, and google-adk.

use asb_testing::clients::{NEWEST, POOL, client, directory, run_code_executor};
use serde_json::json;

use super::{SYSTEM, delete_pool, plain_pool, pool};
use crate::engine::{Engine, stdout, text};

/// What the script prints when a part of it has passed. It catches its own errors, so that its exit code says little.
const PASSED: [&str; 13] = [
    "SandboxClient cleanup flag Test Passed",
    "get_sandbox Test Passed",
    "Wrong Warmpool Name Test Passed!",
    "Volume Claim Templates Test Passed!",
    "SandboxClaim Annotation Test Passed!",
    "Sandbox Status Test Passed!",
    "Command Execution Test Passed!",
    "File Operations Test Passed!",
    "List and Exists Test Passed!",
    "Explicit Close Connection Test Passed",
    "Termination and Get Test Passed",
    "delete_all Test Passed",
    "Sandbox 2 Retrieval Failure Verified",
];

#[test]
fn end_to_end_script_of_the_package_passes_unchanged() {
    let engine = Engine::start();
    // Of its own sample template, all but the image.
    let workspace = json!({
        "metadata": {"name": "workspace"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    let template = json!({"volumeClaimTemplatesPolicy": "Overrides", "volumeClaimTemplates": [workspace]});
    pool(&engine, "default", &json!({"name": "python-runtime", "image": "host"}), &template);
    let said = client(NEWEST, &engine.kubeconfig())
        .arg(directory().join("sdist").join("test_client.py"))
        .args(["--warmpool-name", POOL, "--router-namespace", SYSTEM])
        .env("PYTHONUNBUFFERED", "1")
        .output()
        .expect("Python can be started");
    let printed = stdout(&said);
    for part in PASSED {
        assert!(printed.contains(part), "{part:?} is missing in:\n{}", text(&said));
    }
    assert!(!printed.contains("An error occurred"), "{}", text(&said));
    delete_pool(&engine, "default");
    engine.stop();
}

/// It uses the first generation of the client: a template, a Sandbox named like the claim, and the router in the
/// sandbox's own namespace.
#[test]
fn code_executor_of_google_adk_runs_code() {
    let engine = Engine::start();
    plain_pool(&engine, SYSTEM);
    run_code_executor(&engine.kubeconfig(), SYSTEM);
    delete_pool(&engine, SYSTEM);
    engine.stop();
}
