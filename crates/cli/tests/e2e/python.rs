//! Python against a real engine: our SDK, which starts it itself, and the unchanged Kubernetes client.

use std::ffi::OsString;
use std::process::Command;

use crate::engine::{ASB, Engine, asb_in, assert_nothing_left, stdout, text};

pub fn python() -> OsString {
    std::env::var_os("ASB_TEST_PYTHON").expect(
        "this test needs a Python with the SDK, pytest, kubernetes, websockets and grpcio-tools in ASB_TEST_PYTHON; \
         tools/test makes one and sets it",
    )
}

#[test]
fn unchanged_kubernetes_client_creates_watches_executes_and_reads_logs() {
    let engine = Engine::start();
    let script = asb_testing::root().join("crates/cli/tests/e2e/kubernetes_client.py");
    let told = Command::new(python()).arg(script).env("KUBECONFIG", engine.kubeconfig()).output();
    assert_eq!(stdout(&told.expect("Python can be started")), "all good\n");
    engine.stop();
}

#[test]
fn python_sdk_creates_runs_and_deletes() {
    let sdk = asb_testing::root().join("sdk/python");
    let dir = tempfile::tempdir().unwrap();
    let tests = Command::new(python())
        .args(["-m", "pytest", "-q", "-m", "engine", "-p", "no:cacheprovider"])
        .current_dir(sdk)
        .env("ASB_BIN", ASB)
        .env("ASB_DATA_DIR", dir.path())
        .output()
        .expect("Python can be started");
    let down = asb_in(dir.path(), &["down"]).output().unwrap();
    assert!(tests.status.success(), "{}", text(&tests));
    assert!(down.status.success(), "{}", text(&down));
    assert_nothing_left(dir.path());
}
