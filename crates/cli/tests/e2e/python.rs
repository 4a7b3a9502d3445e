//! The Python SDK against a real engine, which it starts itself.

use std::path::Path;
use std::process::Command;

use crate::engine::{ASB, asb_in, assert_nothing_left, text};

#[test]
fn python_sdk_creates_runs_and_deletes() {
    let python = std::env::var_os("ASB_TEST_PYTHON").expect(
        "this test needs a Python with the SDK and pytest in ASB_TEST_PYTHON; tools/test makes one and sets it",
    );
    let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdk/python");
    let dir = tempfile::tempdir().unwrap();
    let tests = Command::new(python)
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
