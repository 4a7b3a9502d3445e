//! What a Pod with a published client needs of this machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

/// Directories of this machine that the client's Pod has at the same place.
pub struct Mounts(Vec<PathBuf>);

impl Mounts {
    /// The clients, the interpreter that they were made with, and what the test hands over.
    pub fn new(handed: &Path) -> Self {
        let ask = ["-c", "import sys; print(sys.base_prefix)"];
        let output = Command::new(super::interpreter(super::NEWEST)).args(ask).output();
        let output = output.expect("Python can be started");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let prefix = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        // Images have a Python of the system themselves.
        let interpreter = (!prefix.starts_with("/usr")).then_some(prefix);
        Self(interpreter.into_iter().chain([super::directory(), handed.to_owned()]).collect())
    }

    pub fn paths(&self) -> &[PathBuf] {
        &self.0
    }

    pub fn volumes(&self) -> Vec<Value> {
        let volume = |(n, path)| json!({"name": format!("v{n}"), "hostPath": {"path": path}});
        self.0.iter().enumerate().map(volume).collect()
    }

    pub fn mounts(&self) -> Vec<Value> {
        let mount = |(n, path)| json!({"name": format!("v{n}"), "mountPath": path, "readOnly": true});
        self.0.iter().enumerate().map(mount).collect()
    }
}
