//! Published, unchanged clients against a real engine: every version in every mode that it has.
//!
//! `published_client.py` plays the scenes and prints a line for each; `table` compares what passed with COMPATIBILITY.md.
//! `tools/test` installs the clients, each version in an environment of its own, and names their directory in
//! ASB_TEST_CLIENTS.

mod gateway;
mod inside;
mod others;
mod table;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::engine::{Engine, eventually, stdout, text};

const NEWEST: &str = "1.0.8";
/// The namespace of the router, where clients before 0.5 must have their sandboxes for a tunnel.
const SYSTEM: &str = "agent-sandbox-system";

/// How many scenes passed with each client; none where the version has no such client in this mode.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Passed {
    synchronous: usize,
    asynchronous: usize,
}

/// What is played with one client.
struct Play<'a> {
    version: &'a str,
    mode: &'a str,
    namespace: &'a str,
    /// Only the scenes that are quick and do not change the sandbox's address.
    cheap: bool,
    /// What the mode needs.
    more: Value,
}

impl<'a> Play<'a> {
    fn new(version: &'a str, mode: &'a str) -> Self {
        Self { version, mode, namespace: "default", cheap: version != NEWEST, more: json!({}) }
    }

    fn all_scenes(self) -> Self {
        Self { cheap: false, ..self }
    }

    fn with(self, more: Value) -> Self {
        Self { more, ..self }
    }

    /// The argument of `published_client.py`.
    fn settings(&self) -> String {
        let mut settings = json!({
            "mode": self.mode, "namespace": self.namespace, "cheap": self.cheap, "pool": "warm", "template": "plain",
        });
        let more = self.more.as_object().cloned().unwrap_or_default();
        settings.as_object_mut().expect("an object").extend(more);
        settings.to_string()
    }

    /// Plays all scenes on this machine.
    fn run(&self, engine: &Engine) {
        let mut python = client_command(engine, self.version);
        let said = python.arg(script()).arg(self.settings()).output().expect("Python can be started");
        self.judge(&said);
    }

    /// Every scene must have passed; the table must say so.
    fn judge(&self, said: &std::process::Output) {
        let passed = passed(&String::from_utf8_lossy(&said.stdout));
        let passed = passed.unwrap_or_else(|failed| {
            panic!(
                "{} in mode {}: {failed}\n{}",
                self.version,
                self.mode,
                String::from_utf8_lossy(&said.stderr)
            )
        });
        assert!(
            said.status.success() && passed.synchronous > 0,
            "{} {}: {}",
            self.version,
            self.mode,
            text(said)
        );
        table::record(self.version, self.mode, passed);
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
                failed += &format!(
                    "\n{} {}: {}",
                    scene["client"],
                    scene["scene"],
                    scene["detail"].as_str().unwrap_or("")
                )
            }
        }
    }
    if failed.is_empty() { Ok(passed) } else { Err(failed) }
}

fn script() -> PathBuf {
    asb_testing::root().join("crates/cli/tests/e2e/published_client.py")
}

/// The directory with an environment for each version.
fn clients() -> PathBuf {
    let clients = std::env::var_os("ASB_TEST_CLIENTS").expect(
        "these tests need the published clients, each in an environment of its own, in ASB_TEST_CLIENTS; \
         tools/test installs them and sets it",
    );
    PathBuf::from(clients)
}

/// The interpreter of a version, with the engine as its cluster and kubectl on PATH.
fn client_command(engine: &Engine, version: &str) -> Command {
    let mut python = Command::new(clients().join(version).join("bin/python"));
    python.env("KUBECONFIG", engine.kubeconfig()).env("PATH", path_with_kubectl()).env("NO_PROXY", "*");
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

/// A template, and a pool of two sandboxes that are ready.
fn pool(engine: &Engine, namespace: &str, container: &Value, template: &Value) {
    let mut spec = json!({
        "envVarsInjectionPolicy": "Allowed", "volumeClaimTemplatesPolicy": "Allowed",
        "podTemplate": {"spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}},
    });
    spec.as_object_mut().expect("an object").extend(template.as_object().cloned().unwrap_or_default());
    let extensions = "extensions.agents.x-k8s.io/v1beta1";
    let objects = [
        json!({"apiVersion": extensions, "kind": "SandboxTemplate", "metadata": {"name": "plain"}, "spec": spec}),
        json!({
            "apiVersion": extensions, "kind": "SandboxWarmPool", "metadata": {"name": "warm"},
            "spec": {"replicas": 2, "sandboxTemplateRef": {"name": "plain"}},
        }),
    ];
    for mut object in objects {
        object["metadata"]["namespace"] = namespace.into();
        stdout(&engine.kubectl_apply(&object.to_string()));
    }
    eventually("the pool is full", || {
        let path = "jsonpath={.status.readyReplicas}";
        text(&engine.kubectl(&["get", "swp", "warm", "--namespace", namespace, "-o", path])) == "2"
    });
}

fn plain_pool(engine: &Engine, namespace: &str) {
    pool(engine, namespace, &json!({"name": "main", "image": "host"}), &json!({}));
}

fn delete_pool(engine: &Engine, namespace: &str) {
    let delete = ["delete", "swp/warm", "sandboxtemplate/plain", "--namespace", namespace, "--timeout=30s"];
    stdout(&engine.kubectl(&delete));
}

/// Where the router is, and what opens it.
fn router(engine: &Engine) -> Value {
    let token = std::fs::read_to_string(engine.data_dir.path().join("router.token")).unwrap();
    json!({"url": engine.info["router"], "token": token.trim()})
}

fn tunnel_and_direct(version: &str, namespace: &str, sandboxd: bool) {
    let engine = Engine::start();
    plain_pool(&engine, namespace);
    Play { namespace, ..Play::new(version, "tunnel").all_scenes() }.run(&engine);
    Play { namespace, ..Play::new(version, "direct").all_scenes().with(router(&engine)) }.run(&engine);
    if sandboxd {
        Play { namespace, ..Play::new(version, "sandboxd-tunnel") }.run(&engine);
    }
    delete_pool(&engine, namespace);
    engine.stop();
}

#[test]
fn version_1_0_8_works_through_tunnels_and_directly() {
    tunnel_and_direct(NEWEST, "default", true);
}

#[test]
fn version_1_0_5_works_through_tunnels_and_directly() {
    tunnel_and_direct("1.0.5.post1", "default", true);
}

#[test]
fn version_0_5_6_works_through_tunnels_and_directly() {
    tunnel_and_direct("0.5.6", "default", false);
}

#[test]
fn version_0_4_6_works_through_tunnels_and_directly() {
    tunnel_and_direct("0.4.6", SYSTEM, false);
}

#[test]
fn scenes_are_counted_and_failures_reported() {
    let lines = "{\"client\":\"sync\",\"scene\":\"a\",\"ok\":true}\nnoise\n{\"client\":\"async\",\"scene\":\"a\",\"ok\":true}\n";
    assert_eq!(passed(lines), Ok(Passed { synchronous: 1, asynchronous: 1 }));
    let failed = passed("{\"client\":\"sync\",\"scene\":\"b\",\"ok\":false,\"detail\":\"why\"}").unwrap_err();
    assert!(failed.contains('b') && failed.contains("why"), "{failed}");
}
