//! Unchanged Helm: charts with hooks and tests, installed, upgraded, rolled back and removed.

use std::path::PathBuf;
use std::process::Output;

use serde_json::Value;

use crate::engine::{Engine, eventually, stdout, text};

/// Helm, with a home of its own and the charts of these tests.
struct Helm<'a> {
    engine: &'a Engine,
    home: tempfile::TempDir,
    program: PathBuf,
}

impl<'a> Helm<'a> {
    fn new(engine: &'a Engine) -> Self {
        let home = tempfile::tempdir().unwrap();
        let charts = asb_testing::root().join("crates/cli/tests/e2e/charts");
        let copied = engine.program("cp", &["-r"]).arg(charts).arg(home.path()).output().unwrap();
        assert!(copied.status.success(), "{}", text(&copied));
        Self { engine, home, program: asb_testing::tool("tools/helm/build") }
    }

    fn try_run(&self, arguments: &[&str]) -> Output {
        let mut command = self.engine.program(self.program.to_str().unwrap(), arguments);
        command.env("HOME", self.home.path()).current_dir(self.home.path().join("charts")).output().unwrap()
    }

    fn run(&self, arguments: &[&str]) -> String {
        stdout(&self.try_run(arguments))
    }

    /// The numbers of the revisions and what became of them.
    fn history(&self, release: &str) -> Vec<(i64, String)> {
        let history: Value = serde_json::from_str(&self.run(&["history", release, "-o", "json"])).unwrap();
        let revision = |it: &Value| {
            (it["revision"].as_i64().unwrap(), it["status"].as_str().unwrap_or_default().to_owned())
        };
        history.as_array().unwrap().iter().map(revision).collect()
    }
}

fn of(engine: &Engine, object: &str, path: &str) -> String {
    text(&engine.kubectl(&["get", object, "-o", &format!("jsonpath={{{path}}}")]))
}

/// What the web server of a release answers, asked from inside.
fn page(engine: &Engine, release: &str) -> String {
    let fetch =
        "import urllib.request as u; print(u.urlopen('http://localhost:8080/').read().decode(), end='')";
    text(&engine.kubectl(&["exec", release, "--", "python3", "-c", fetch]))
}

#[test]
fn release_is_installed_tested_upgraded_rolled_back_and_removed() {
    let engine = Engine::start();
    let helm = Helm::new(&engine);
    let chart = ["site", "web", "--wait", "--timeout=60s"];
    helm.run(&[&["install"], &chart[..]].concat());
    assert_eq!(
        of(&engine, "pod/site", ".status.conditions[?(@.type==\"Ready\")].status"),
        "True",
        "it waited"
    );
    assert_eq!(of(&engine, "pvc/site-data", ".status.phase"), "Bound");
    assert_eq!(page(&engine, "site"), "hello from revision 1\n");
    let before = text(&engine.kubectl(&["logs", "site-before"]));
    assert_eq!(before, "before revision 1\n", "the hook came before");
    let tested = helm.run(&["test", "site", "--logs"]);
    assert!(tested.contains("Succeeded") && tested.contains("the token is right"), "{tested}");

    helm.run(&[&["upgrade"], &chart[..], &["--set", "greeting=bye"]].concat());
    let pages = || of(&engine, "configmap/site-pages", ".data.index\\.html");
    assert_eq!(pages(), "bye from revision 2\n");
    assert!(helm.run(&["test", "site"]).contains("Succeeded"));
    assert!(helm.run(&["get", "values", "site"]).contains("greeting: bye"));

    // An upgrade whose last hook fails is undone.
    let broken = ["--rollback-on-failure", "--set", "greeting=never,after=false"];
    let broken = helm.try_run(&[&["upgrade"], &chart[..], &broken].concat());
    assert!(!broken.status.success(), "{}", text(&broken));
    assert_eq!(pages(), "bye from revision 2\n", "as it was before");

    helm.run(&["rollback", "site", "1", "--wait", "--timeout=60s"]);
    assert_eq!(pages(), "hello from revision 1\n");
    let history = helm.history("site");
    assert_eq!(history.last(), Some(&(5, "deployed".to_owned())), "{history:?}");

    helm.run(&["uninstall", "site", "--wait", "--timeout=60s"]);
    let left = text(&engine.kubectl(&["get", "pvc,svc,cm,secrets,pods", "-o", "name"]));
    let hooks = ["pod/site-before", "pod/site-test"];
    assert_eq!(left.lines().filter(|name| name.contains("site")).collect::<Vec<_>>(), hooks, "{left}");
    stdout(&engine.kubectl(&["delete", "pod", "site-before", "site-test"]));
    engine.stop();
}

#[test]
fn charts_of_our_own_kinds_wait_until_sandboxes_are_ready() {
    let engine = Engine::start();
    let helm = Helm::new(&engine);
    helm.run(&["install", "team", "agents", "--wait", "--timeout=60s"]);
    let ready = ".status.conditions[?(@.type==\"Ready\")].status";
    assert_eq!(of(&engine, "sandbox/team-box", ready), "True", "it waited");
    helm.run(&["upgrade", "team", "agents", "--set", "members=2"]);
    let pool = ["wait", "--for=jsonpath={.status.readyReplicas}=2", "swp/team-pool", "--timeout=30s"];
    stdout(&engine.kubectl(&pool));
    helm.run(&["uninstall", "team", "--wait", "--timeout=60s"]);
    eventually("members of its pool are gone too", || of(&engine, "sandboxes", ".items") == "[]");

    // A chart for a cluster is refused for a kind that is not served here, and leaves nothing.
    let cluster = asb_testing::root().join("deploy/helm/agent-sandbox");
    let refused = helm.try_run(&["install", "cluster", cluster.to_str().unwrap(), "--skip-crds"]);
    assert!(!refused.status.success(), "there are no ClusterRoles");
    assert!(text(&refused).contains("no matches for kind \"ClusterRole\""), "{}", text(&refused));
    assert!(!helm.run(&["list", "--all-namespaces"]).contains("cluster"));
    // Deployments are served, so that the refusal can say what to use instead.
    let refused = helm.try_run(&["install", "fleet", "fleet"]);
    assert!(!refused.status.success(), "there are no Deployments");
    assert!(
        text(&refused).contains("this machine has no Deployments: use a SandboxWarmPool"),
        "{}",
        text(&refused)
    );
    assert!(text(&engine.kubectl(&["get", "deployments", "-o", "name"])).is_empty());
    engine.stop();
}

#[test]
fn parts_of_a_chart_come_and_go_with_its_values() {
    let engine = Engine::start();
    let helm = Helm::new(&engine);
    helm.run(&["dependency", "build", "family"]);
    helm.run(&["upgrade", "--install", "all", "family", "--wait", "--timeout=60s"]);
    assert_eq!(page(&engine, "all"), "together from revision 1\n");
    let uid = of(&engine, "namespace/default", ".metadata.uid");
    assert_eq!(of(&engine, "configmap/all-found", ".data.uid"), uid, "templates see what is there");
    helm.run(&["upgrade", "all", "family", "--set", "agents.enabled=false", "--wait", "--timeout=60s"]);
    eventually("that part is gone", || of(&engine, "sandboxes", ".items") == "[]");
    assert_eq!(of(&engine, "pod/all", ".status.phase"), "Running", "the other is not");
    helm.run(&["rollback", "all", "--wait", "--timeout=60s"]);
    assert_eq!(of(&engine, "sandbox/all-box", ".status.conditions[?(@.type==\"Ready\")].status"), "True");
    let listed = helm.run(&["list"]);
    assert!(listed.contains("family-0.1.0") && listed.contains("deployed"), "{listed}");
    helm.run(&["uninstall", "all", "--wait", "--timeout=60s"]);
    stdout(&engine.kubectl(&["delete", "pod", "all-before", "--ignore-not-found"]));
    engine.stop();
}
