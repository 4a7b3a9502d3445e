//! The well-known first manifest, applied with kubectl.

use crate::engine::{Engine, assert_nothing_left, eventually, stdout, text};

pub const MANIFEST: &str = r#"
apiVersion: agents.x-k8s.io/v1beta1
kind: Sandbox
metadata:
  name: my-sandbox
spec:
  service: true
  podTemplate:
    spec:
      containers:
      - name: my-container
        image: host
        command: ["sh", "-c", "i=0; while true; do i=$((i+1)); echo $i > /tmp/beat; echo beat $i; sleep 0.1; done"]
        volumeMounts: [{name: work, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: work}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
"#;

fn set_mode(engine: &Engine, mode: &str) {
    let patch = format!(r#"{{"spec":{{"operatingMode":"{mode}"}}}}"#);
    stdout(&engine.kubectl(&["patch", "sandbox", "my-sandbox", "--type=merge", "-p", &patch]));
}

fn wait_ready(engine: &Engine) {
    stdout(&engine.kubectl(&["wait", "--for=condition=Ready", "sandbox/my-sandbox", "--timeout=30s"]));
}

fn beat(engine: &Engine) -> u64 {
    let beat = stdout(&engine.kubectl(&["exec", "my-sandbox", "--", "cat", "/tmp/beat"]));
    beat.trim().parse().unwrap_or(0)
}

#[test]
fn first_manifest_lives_through_suspend_resume_and_a_crash_of_the_engine() {
    let mut engine = Engine::start();
    stdout(&engine.kubectl_apply(MANIFEST));
    wait_ready(&engine);
    let listed = stdout(&engine.kubectl(&["get", "sandbox"]));
    assert!(listed.contains("READY") && listed.contains("True"), "{listed}");
    assert!(listed.contains("DependenciesReady"), "{listed}");

    let inside = stdout(&engine.kubectl(&["exec", "my-sandbox", "--", "hostname"]));
    assert_eq!(inside.trim(), "my-sandbox");
    assert_eq!(stdout(&engine.asb(&["exec", "my-sandbox", "--", "hostname"])).trim(), "my-sandbox");
    let code = engine.kubectl(&["exec", "my-sandbox", "--", "sh", "-c", "exit 7"]).status.code();
    assert_eq!(code, Some(7), "exit codes pass through");
    stdout(&engine.asb(&["exec", "my-sandbox", "--", "sh", "-c", "echo precious > /data/file"]));

    set_mode(&engine, "Suspended");
    let suspended = ["wait", "--for=condition=Suspended", "sandbox/my-sandbox", "--timeout=45s"];
    stdout(&engine.kubectl(&suspended));
    assert!(
        !engine.kubectl(&["get", "pod", "my-sandbox"]).status.success(),
        "a suspended sandbox has no Pod"
    );
    set_mode(&engine, "Running");
    wait_ready(&engine);
    assert_eq!(stdout(&engine.asb(&["exec", "my-sandbox", "--", "cat", "/data/file"])), "precious\n");

    let pid = |engine: &Engine| stdout(&engine.kubectl(&["exec", "my-sandbox", "--", "pgrep", "-o", "sh"]));
    let (before, process) = (beat(&engine), pid(&engine));
    engine.kill();
    std::thread::sleep(std::time::Duration::from_secs(1)); // time in which the sandbox is alone
    engine.restart();
    wait_ready(&engine);
    assert_eq!(pid(&engine), process, "the same process");
    assert!(beat(&engine) >= before + 5, "it went on while no engine was there");
    let log = stdout(&engine.kubectl(&["logs", "my-sandbox"]));
    let beats: Vec<u64> = log.lines().filter_map(|line| line.strip_prefix("beat ")?.parse().ok()).collect();
    let complete: Vec<u64> = (1..=beats.len() as u64).collect();
    assert_eq!(beats, complete, "no line of the log was lost");
    assert_eq!(stdout(&engine.asb(&["exec", "my-sandbox", "--", "cat", "/data/file"])), "precious\n");

    stdout(&engine.kubectl(&["delete", "sandbox", "my-sandbox"]));
    assert_nothing_left(engine.data_dir.path());
    engine.stop();
}

#[test]
fn what_happened_while_no_engine_was_there_is_made_up_for() {
    let mut engine = Engine::start();
    stdout(&engine.asb(&["run", "--detach", "--name", "kept"]));
    let once = r#"
apiVersion: v1
kind: Pod
metadata: {name: once}
spec:
  restartPolicy: Never
  containers: [{name: main, image: host, command: ["sh", "-c", "sleep 0.5; exit 4"]}]
"#;
    stdout(&engine.kubectl_apply(once));
    stdout(&engine.kubectl(&["wait", "--for=condition=Ready", "pod/once", "--timeout=30s"]));
    engine.kill();
    std::thread::sleep(std::time::Duration::from_secs(1)); // it ends unobserved
    engine.restart();
    eventually("the exit code is reported", || {
        let path = "jsonpath={.status.phase} {.status.containerStatuses[0].state.terminated.exitCode}";
        text(&engine.kubectl(&["get", "pod", "once", "-o", path])) == "Failed 4"
    });
    stdout(&engine.kubectl(&["delete", "pod", "once"]));
    assert_eq!(stdout(&engine.asb(&["exec", "kept", "--", "echo", "still here"])), "still here\n");
    engine.stop();
}
