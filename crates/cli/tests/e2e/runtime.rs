//! Pods under other runtimes than our own: they run, survive the engine, and are never given another than they asked for.

use serde_json::{Value, json};

use crate::engine::{Engine, asb_in, assert_nothing_left, eventually, stdout, text};

fn pod(name: &str, runtime: &str, script: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "runtimeClassName": runtime, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "host", "command": ["sh", "-c", script]}],
        },
    })
    .to_string()
}

fn status(engine: &Engine, name: &str) -> Value {
    let output = engine.kubectl(&["get", "pod", name, "-o", "json"]);
    serde_json::from_slice::<Value>(&output.stdout).map(|pod| pod["status"].clone()).unwrap_or_default()
}

fn is_running(engine: &Engine, name: &str) {
    eventually("the Pod runs", || status(engine, name)["phase"] == "Running");
}

fn finish(engine: Engine) {
    stdout(&engine.kubectl(&["delete", "pod", "--all", "--now"]));
    engine.stop();
}

#[test]
fn pods_run_under_the_runtime_they_name_and_classes_tell_which_there_are() {
    let engine = Engine::start();
    let runtimes = ["runc", "crun", "gvisor"];
    for runtime in runtimes {
        let script = "dmesg 2>&1 | head -1; echo started; exec sleep 1000";
        stdout(&engine.kubectl_apply(&pod(runtime, runtime, script)));
    }
    for runtime in runtimes {
        is_running(&engine, runtime);
        eventually("its output is in the log", || {
            text(&engine.kubectl(&["logs", runtime])).contains("started")
        });
        let is_gvisor = stdout(&engine.kubectl(&["logs", runtime])).contains("Starting gVisor");
        assert_eq!(is_gvisor, runtime == "gvisor");
        let inside =
            engine.kubectl(&["exec", runtime, "--", "sh", "-c", "hostname; cat /proc/1/comm; exit 3"]);
        assert_eq!(inside.status.code(), Some(3), "{}", text(&inside));
        assert_eq!(String::from_utf8_lossy(&inside.stdout), format!("{runtime}\ninit\n"));
    }
    let classes = stdout(&engine.kubectl(&["get", "runtimeclasses", "-o", "name"]));
    for runtime in ["native", "runc", "crun", "gvisor"] {
        assert!(classes.contains(&format!("/{runtime}\n")), "{classes}");
    }
    finish(engine);
}

#[test]
fn neighbours_reach_each_other_by_the_policy_whatever_runtime_they_have() {
    let engine = Engine::start();
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "open"},
        "spec": {"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}], "egress": [{}], "policyTypes": ["Ingress", "Egress"]},
    });
    stdout(&engine.kubectl_apply(&policy.to_string()));
    let server = "cd /srv && echo answer > index.html && exec python3 -m http.server 80 --bind ::";
    stdout(&engine.kubectl_apply(&pod("server", "gvisor", server)));
    stdout(&engine.kubectl_apply(&pod("client", "runc", "exec sleep 1000")));
    is_running(&engine, "server");
    is_running(&engine, "client");
    // One address, or two where this machine has IPv6.
    for address in status(&engine, "server")["podIPs"].as_array().unwrap() {
        let ip: std::net::IpAddr = address["ip"].as_str().unwrap().parse().unwrap();
        let url = format!("http://{}/", std::net::SocketAddr::from((ip, 80)));
        let script = format!("import urllib.request as r; print(r.urlopen('{url}', timeout=5).read())");
        eventually("the client reaches the server", || {
            text(&engine.kubectl(&["exec", "client", "--", "python3", "-c", &script])).contains("b'answer")
        });
    }
    finish(engine);
}

#[test]
fn runtime_that_is_not_there_is_refused_with_what_is() {
    let engine = Engine::start();
    stdout(&engine.kubectl_apply(&pod("other", "kata", "true")));
    eventually("the Pod says why", || status(&engine, "other")["phase"] == "Failed");
    let status = status(&engine, "other");
    assert_eq!(status["reason"], "RuntimeClassNotAvailable");
    let message = status["message"].as_str().unwrap();
    for words in ["spec.runtimeClassName: \"kata\"", "\"native\"", "\"gvisor\"", "`asb doctor`"] {
        assert!(message.contains(words), "{message}");
    }
    eventually("the refusal is told", || {
        stdout(&engine.kubectl(&["get", "events", "-o", "jsonpath={.items[*].message}"]))
            .contains("asb doctor")
    });
    let run = engine.asb(&["run", "--runtime", "kata", "--", "true"]);
    assert!(!run.status.success() && text(&run).contains("\"kata\" is not available"), "{}", text(&run));
    finish(engine);
}

#[test]
fn gvisor_pod_outlives_a_killed_engine() {
    let mut engine = Engine::start();
    let script = "echo before; while ! test -e /srv/go; do sleep 0.05; done; echo after; exit 4";
    stdout(&engine.kubectl_apply(&pod("box", "gvisor", script)));
    is_running(&engine, "box");
    engine.kill();
    engine.restart();
    let before = stdout(&engine.kubectl(&["exec", "box", "--", "sh", "-c", "uname -r; touch /srv/go"]));
    assert!(before.starts_with("4."), "gVisor's kernel is of another version: {before}");
    eventually("it ends as it would have", || status(&engine, "box")["phase"] == "Failed");
    let ended = status(&engine, "box")["containerStatuses"][0].clone();
    assert_eq!(ended["state"]["terminated"]["exitCode"], 4, "{ended}");
    assert_eq!(ended["restartCount"], 0);
    assert_eq!(stdout(&engine.kubectl(&["logs", "box"])), "before\nafter\n");
    finish(engine);
}

#[test]
fn container_that_fails_is_started_again_under_every_runtime() {
    let engine = Engine::start();
    let script = "test -e /data/go && exec sleep 1000; while ! test -e /data/go; do sleep 0.05; done; exit 1";
    for runtime in ["crun", "gvisor"] {
        let mut pod: Value = serde_json::from_str(&pod(runtime, runtime, script)).unwrap();
        pod["spec"]["restartPolicy"] = json!("OnFailure");
        pod["spec"]["volumes"] = json!([{"name": "data", "emptyDir": {}}]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
        stdout(&engine.kubectl_apply(&pod.to_string()));
        is_running(&engine, runtime);
        let address = status(&engine, runtime)["podIP"].as_str().unwrap().to_owned();
        engine.kubectl(&["exec", runtime, "--", "touch", "/data/go"]);
        eventually("it was started again", || {
            let container = status(&engine, runtime)["containerStatuses"][0].clone();
            container["restartCount"] == 1 && container["state"]["running"].is_object()
        });
        assert_eq!(status(&engine, runtime)["podIP"], address.as_str(), "{runtime}");
        let seen = stdout(&engine.kubectl(&["exec", runtime, "--", "hostname", "-I"]));
        assert!(seen.contains(&address), "{runtime}: {seen:?} is not {address}");
    }
    finish(engine);
}

#[test]
fn run_takes_a_runtime() {
    let engine = Engine::start();
    let run = engine.asb(&["run", "--runtime", "gvisor", "--", "dmesg"]);
    assert!(stdout(&run).contains("gVisor"), "{}", text(&run));
    let input = engine.asb_with_input(&["run", "--runtime", "crun", "-i", "--", "tr", "a-z", "A-Z"], "quiet");
    assert_eq!(stdout(&input), "QUIET");
    engine.stop();
}

#[test]
fn doctor_tries_every_runtime_without_an_engine_and_leaves_nothing() {
    let data_dir = tempfile::tempdir().expect("a temporary directory");
    let report = asb_in(data_dir.path(), &["doctor", "--json"]).output().expect("asb can be started");
    let report: Value = serde_json::from_str(&stdout(&report)).unwrap();
    let runtimes = report["runtimes"].as_array().unwrap();
    let works = |name: &str| runtimes.iter().any(|it| it["name"] == name && it["works"] == true);
    for name in ["native", "runc", "crun", "gvisor"] {
        assert!(works(name), "{report:#}");
    }
    let facts = report["machine"].as_array().unwrap();
    for name in ["kernel", "cgroups", "user namespaces", "overlay", "seccomp", "network"] {
        assert!(facts.iter().any(|fact| fact["name"] == name), "{report:#}");
    }
    let told = stdout(&asb_in(data_dir.path(), &["doctor"]).output().expect("asb can be started"));
    assert!(told.contains("ok native") && told.contains("kernel of its own"), "{told}");
    assert_nothing_left(data_dir.path());
}

/// A Pod under gVisor whose containers see each other on loopback.
fn pod_of_several() -> Value {
    let serve = |port: u16| {
        let script = "import http.server as h, os
class Answer(h.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write(open('/data/init').read().encode() + os.environ['WHO'].encode())
    def log_message(self, *_): pass
print('started', os.environ['WHO'], flush=True)
h.HTTPServer(('127.0.0.1', int(os.environ['PORT'])), Answer).serve_forever()";
        json!({
            "image": "host", "command": ["python3", "-c", script],
            "env": [{"name": "PORT", "value": port.to_string()}, {"name": "WHO", "value": format!("-{port}")}],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            "resources": {"limits": {"memory": "128Mi"}},
        })
    };
    let named = |name: &str, mut container: Value| {
        container["name"] = json!(name);
        container
    };
    let mut init = serve(0);
    init["command"] = json!(["sh", "-c", "echo -n made > /data/init"]);
    let mut sidecar = named("sidecar", serve(8081));
    sidecar["restartPolicy"] = json!("Always");
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "several"},
        "spec": {
            "runtimeClassName": "gvisor", "terminationGracePeriodSeconds": 1,
            "volumes": [{"name": "data", "emptyDir": {}}],
            "initContainers": [named("init", init), sidecar],
            "containers": [named("one", serve(8082)), named("two", serve(8083))],
        },
    })
}

fn all_run(engine: &Engine) {
    eventually("every container runs", || {
        let status = status(engine, "several");
        let runs = |kind: &str, at: usize| status[kind][at]["state"]["running"].is_object();
        runs("initContainerStatuses", 1) && runs("containerStatuses", 0) && runs("containerStatuses", 1)
    });
}

/// What a container gets from its neighbours on loopback.
fn assert_neighbours(engine: &Engine, container: &str) {
    let script = "import urllib.request as r
for port in (8081, 8082, 8083): print(r.urlopen(f'http://127.0.0.1:{port}/', timeout=5).read().decode())";
    eventually("neighbours answer", || {
        let asked = engine.kubectl(&["exec", "several", "-c", container, "--", "python3", "-c", script]);
        String::from_utf8_lossy(&asked.stdout) == "made-8081\nmade-8082\nmade-8083\n"
    });
}

fn restarts(engine: &Engine) -> Vec<i64> {
    let status = status(engine, "several");
    let all = |kind: &str| status[kind].as_array().cloned().unwrap_or_default();
    let all = all("initContainerStatuses").into_iter().skip(1).chain(all("containerStatuses"));
    all.map(|container| container["restartCount"].as_i64().unwrap_or(-1)).collect()
}

#[test]
fn containers_of_a_gvisor_pod_share_a_kernel_and_are_started_again_one_by_one() {
    let mut engine = Engine::start();
    stdout(&engine.kubectl_apply(&pod_of_several().to_string()));
    all_run(&engine);
    for container in ["sidecar", "one", "two"] {
        assert_neighbours(&engine, container);
    }
    let address = status(&engine, "several")["podIP"].clone();
    let end = |container: &str| {
        engine.kubectl(&["exec", "several", "-c", container, "--", "sh", "-c", "kill -9 -1"]);
    };
    end("two");
    eventually("it was started again", || restarts(&engine) == [0, 0, 1]);
    all_run(&engine);
    assert_neighbours(&engine, "one");
    assert_eq!(status(&engine, "several")["podIP"], address);
    let logs = stdout(&engine.kubectl(&["logs", "several", "-c", "two", "--previous"]));
    assert_eq!(logs, "started -8083\n");
    engine.kill();
    engine.restart();
    for container in ["sidecar", "one", "two"] {
        assert_neighbours(&engine, container);
    }
    assert_eq!(restarts(&engine), [0, 0, 1], "nothing was started again");
    engine.kubectl(&["exec", "several", "-c", "one", "--", "sh", "-c", "kill -9 -1"]);
    eventually("it was started again by the next engine", || restarts(&engine) == [0, 1, 1]);
    assert_neighbours(&engine, "sidecar");
    assert_eq!(status(&engine, "several")["podIP"], address);
    finish(engine);
}

#[test]
fn gvisor_pod_that_runs_out_of_memory_is_started_again_at_its_address() {
    let engine = Engine::start();
    stdout(&engine.kubectl_apply(&pod_of_several().to_string()));
    all_run(&engine);
    let address = status(&engine, "several")["podIP"].clone();
    let bomb = "x = bytearray(1 << 30)\nfor at in range(0, len(x), 4096): x[at] = 1";
    engine.kubectl(&["exec", "several", "-c", "one", "--", "python3", "-c", bomb]);
    eventually("all were started again", || restarts(&engine) == [1, 1, 1]);
    all_run(&engine);
    let status_now = status(&engine, "several");
    let last = &status_now["containerStatuses"][1]["lastState"]["terminated"];
    assert_eq!(last["reason"], "OOMKilled", "{last}");
    assert_eq!(status_now["podIP"], address);
    assert_neighbours(&engine, "two");
    finish(engine);
}

#[test]
fn runtime_that_was_uninstalled_is_no_class_any_more_and_is_refused() {
    let mut engine = Engine::start();
    stdout(&engine.kubectl_apply(&pod("before", "crun", "exec sleep 1000")));
    is_running(&engine, "before");
    let has_class = |engine: &Engine| engine.kubectl(&["get", "runtimeclass", "crun"]).status.success();
    eventually("there is a class", || has_class(&engine));
    engine.kill();
    engine.restart_without("crun");
    eventually("there is no class any more", || !has_class(&engine));
    assert_eq!(status(&engine, "before")["phase"], "Running", "what runs needs no program");
    stdout(&engine.kubectl_apply(&pod("after", "crun", "exec sleep 1000")));
    eventually("the Pod says why", || status(&engine, "after")["phase"] == "Failed");
    let refused = status(&engine, "after");
    assert_eq!(refused["reason"], "RuntimeClassNotAvailable");
    assert!(refused["message"].as_str().unwrap().contains("crun is not installed"), "{refused}");
    eventually("the refusal is told", || {
        stdout(&engine.kubectl(&["get", "events", "-o", "jsonpath={.items[*].message}"]))
            .contains("crun is not installed")
    });
    engine.kill();
    engine.restart();
    eventually("the class is back", || has_class(&engine));
    finish(engine);
}
