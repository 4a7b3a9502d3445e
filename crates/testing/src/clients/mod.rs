//! Published clients, unchanged. `clients/scenes.py` plays what their users do and prints a line for each scene; `table`
//! compares what passed with COMPATIBILITY.md.
//!
//! `tools/test` installs the clients, each version in an environment of its own, and names their directory in
//! `ASB_TEST_CLIENTS`.

mod gateway;
mod mounts;
mod table;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

pub use gateway::{GATEWAYS, gateway};
pub use mounts::Mounts;
pub use table::Place;

pub const NEWEST: &str = "1.0.8";
pub const VERSIONS: [&str; 4] = [NEWEST, "1.0.5.post1", "0.5.6", "0.4.6"];
/// Template and pool that the scenes use.
pub const TEMPLATE: &str = "plain";
pub const POOL: &str = "warm";
/// Members of the pool; the first scene waits for exactly these.
pub const MEMBERS: usize = 2;

/// How many scenes passed with each client; none where the version has no such client in this mode.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Passed {
    pub synchronous: usize,
    pub asynchronous: usize,
}

/// What is played with one client.
pub struct Play<'a> {
    pub version: &'a str,
    mode: &'a str,
    namespace: &'a str,
    /// Only the scenes that are quick and do not change the sandbox's address.
    cheap: bool,
    more: Value,
}

impl<'a> Play<'a> {
    /// All scenes of the newest version, the cheap ones of others.
    pub fn new(version: &'a str, mode: &'a str) -> Self {
        Self { version, mode, namespace: "default", cheap: version != NEWEST, more: json!({}) }
    }

    pub fn all_scenes(self) -> Self {
        Self { cheap: false, ..self }
    }

    pub fn cheap_scenes(self) -> Self {
        Self { cheap: true, ..self }
    }

    pub fn in_namespace(self, namespace: &'a str) -> Self {
        Self { namespace, ..self }
    }

    /// What the mode needs: `url` and `token`, or `gateway`.
    pub fn with(self, more: Value) -> Self {
        Self { more, ..self }
    }

    /// The argument of the script.
    pub fn settings(&self) -> String {
        let mut settings = json!({
            "mode": self.mode, "namespace": self.namespace, "cheap": self.cheap,
            "pool": POOL, "template": TEMPLATE, "members": MEMBERS,
        });
        let more = self.more.as_object().cloned().unwrap_or_default();
        settings.as_object_mut().expect("an object").extend(more);
        settings.to_string()
    }

    /// Plays the scenes on this machine, against the cluster of a kubeconfig.
    pub fn run(&self, kubeconfig: &Path, place: Place) {
        let mut python = client(self.version, kubeconfig);
        let output = python.arg(script()).arg(self.settings()).output().expect("Python can be started");
        self.judge(&output, place);
    }

    /// Every scene must have passed; the table must say so.
    pub fn judge(&self, output: &Output, place: Place) {
        let (version, mode) = (self.version, self.mode);
        let [printed, complaints] =
            [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        let passed = passed(&printed)
            .unwrap_or_else(|failed| panic!("{version} in mode {mode}: {failed}\n{complaints}"));
        assert!(
            output.status.success() && passed.synchronous > 0,
            "{version} in mode {mode}:\n{printed}\n{complaints}"
        );
        table::record(place, version, mode, passed);
    }
}

/// Counts the scenes that passed; the error has those that failed.
fn passed(lines: &str) -> Result<Passed, String> {
    let mut passed = Passed::default();
    let mut failed = String::new();
    for line in lines.lines() {
        let Ok(scene) = serde_json::from_str::<Value>(line) else { continue };
        match (scene["ok"].as_bool(), scene["client"].as_str()) {
            (Some(true), Some("sync")) => passed.synchronous += 1,
            (Some(true), Some("async")) => passed.asynchronous += 1,
            _ => {
                let detail = scene["detail"].as_str().unwrap_or_default();
                failed += &format!("\n{} {}: {detail}", scene["client"], scene["scene"]);
            }
        }
    }
    if failed.is_empty() { Ok(passed) } else { Err(failed) }
}

/// The script that plays the scenes.
pub fn script() -> PathBuf {
    crate::root().join("crates/testing/clients/scenes.py")
}

/// Runs code with the executor of google-adk, against the pool in this namespace. It looks for the router there as well.
pub fn run_code_executor(kubeconfig: &Path, namespace: &str) {
    let script = crate::root().join("crates/testing/clients/adk_executor.py");
    let output =
        client("adk", kubeconfig).arg(script).arg(namespace).output().expect("Python can be started");
    let [printed, complaints] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(printed.ends_with("all good\n"), "google-adk:\n{printed}\n{complaints}");
}

/// The directory with an environment for each version.
pub fn directory() -> PathBuf {
    let clients = std::env::var_os("ASB_TEST_CLIENTS").expect(
        "these tests need the published clients, each in an environment of its own, in ASB_TEST_CLIENTS; \
         tools/test installs them and sets it",
    );
    PathBuf::from(clients)
}

pub fn interpreter(version: &str) -> PathBuf {
    directory().join(version).join("bin/python")
}

/// The interpreter of a version, with kubectl on PATH, for the cluster of a kubeconfig.
pub fn client(version: &str, kubeconfig: &Path) -> Command {
    let mut python = Command::new(interpreter(version));
    python.env("KUBECONFIG", kubeconfig).env("PATH", path_with_kubectl()).env("NO_PROXY", "*");
    python.env("PYTHONDONTWRITEBYTECODE", "1");
    python
}

fn path_with_kubectl() -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let kubectl = std::env::var_os("KUBECTL").map(PathBuf::from);
    let own = kubectl.as_deref().and_then(Path::parent).map(Path::to_owned);
    std::env::join_paths(own.into_iter().chain(std::env::split_paths(&path)))
        .expect("PATH has no separator inside")
}

/// A template of this container, and a pool of it. `template` is what else the template says.
pub fn pool(container: &Value, template: &Value) -> [Value; 2] {
    let mut spec = json!({
        "envVarsInjectionPolicy": "Allowed", "volumeClaimTemplatesPolicy": "Allowed",
        "podTemplate": {"spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}},
    });
    spec.as_object_mut().expect("an object").extend(template.as_object().cloned().unwrap_or_default());
    let extensions = "extensions.agents.x-k8s.io/v1beta1";
    [
        json!({"apiVersion": extensions, "kind": "SandboxTemplate", "metadata": {"name": TEMPLATE}, "spec": spec}),
        json!({
            "apiVersion": extensions, "kind": "SandboxWarmPool", "metadata": {"name": POOL},
            "spec": {"replicas": MEMBERS, "sandboxTemplateRef": {"name": TEMPLATE}},
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenes_are_counted_and_failures_reported() {
        let lines = "{\"client\":\"sync\",\"scene\":\"a\",\"ok\":true}\nnoise\n\
                     {\"client\":\"async\",\"scene\":\"a\",\"ok\":true}\n";
        assert_eq!(passed(lines), Ok(Passed { synchronous: 1, asynchronous: 1 }));
        let failed =
            passed("{\"client\":\"sync\",\"scene\":\"b\",\"ok\":false,\"detail\":\"why\"}").unwrap_err();
        assert!(failed.contains('b') && failed.contains("why"), "{failed}");
    }
}
