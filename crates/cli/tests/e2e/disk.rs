//! Sandboxes that fill the disk: what they may take, who goes when there is too little, and that it is given back.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::engine::{Engine, eventually, stdout, text};

fn get(engine: &Engine, what: &str) -> Value {
    serde_json::from_str(&stdout(&engine.kubectl(&["get", what, "-o", "json"]))).unwrap()
}

fn pod(name: &str, script: &str, resources: &str, volumes: &str) -> String {
    let script = serde_json::to_string(script).unwrap();
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: host
    command: [sh, -c, {script}]
    resources: {resources}
    volumeMounts: [{{name: scratch, mountPath: /scratch}}]
  volumes: [{{name: scratch, emptyDir: {volumes}}}]
"#
    )
}

fn wait_for_eviction(engine: &Engine, name: &str) -> Value {
    let object = || get(engine, &format!("pod/{name}"));
    eventually(&format!("{name} is evicted"), || object()["status"]["phase"] == "Failed");
    let pod = object();
    assert_eq!(pod["status"]["reason"], "Evicted", "{}", pod["status"]);
    pod
}

/// What sandboxes have on the disk.
fn taken(engine: &Engine) -> u64 {
    let size = |name: &str| asb_runtime::tree::size(&engine.data_dir.path().join(name)).unwrap().bytes;
    size("sandboxes/sandbox") + size("pods")
}

#[test]
fn who_takes_more_than_it_may_is_evicted_and_gives_it_back_and_stays_evicted() {
    let mut engine = Engine::start();
    let fill = |path: &str| format!("echo begun; head -c 60000000 /dev/zero > {path}; sleep 1000");
    let limited = r#"{limits: {ephemeral-storage: 20Mi}, requests: {ephemeral-storage: 1Mi}}"#;
    // Links to what is not theirs, files of holes and as much as they may have: that is fine.
    let modest = "ln -s /usr /scratch/usr; ln -s /usr /usr-too; truncate -s 1G /scratch/holes; \
        head -c 10000000 /dev/zero > /scratch/some; sleep 1000";
    stdout(&engine.kubectl_apply(&pod("root", &fill("/tmp/fill"), limited, "{}")));
    stdout(&engine.kubectl_apply(&pod("scratch", &fill("/scratch/fill"), "{}", "{sizeLimit: 20Mi}")));
    stdout(&engine.kubectl_apply(&pod("both", &fill("/scratch/fill"), limited, "{}")));
    stdout(&engine.kubectl_apply(&pod("modest", modest, limited, "{sizeLimit: 20Mi}")));

    let root = wait_for_eviction(&engine, "root");
    let total = "Pod ephemeral local storage usage exceeds the total limit of containers 20Mi. ";
    assert_eq!(root["status"]["message"], total);
    let conditions = root["status"]["conditions"].as_array().unwrap();
    let disrupted = |conditions: &[Value]| conditions.iter().any(|it| it["type"] == "DisruptionTarget");
    assert!(!disrupted(conditions), "it is to blame itself");
    let scratch = wait_for_eviction(&engine, "scratch");
    let volume = "Usage of EmptyDir volume \"scratch\" exceeds the limit \"20Mi\". ";
    assert_eq!(scratch["status"]["message"], volume);
    assert_eq!(wait_for_eviction(&engine, "both")["status"]["message"], total, "its emptyDir counts");

    // The objects are still there; what they wrote is not.
    assert!(taken(&engine) < 30_000_000, "{}", taken(&engine));
    assert_eq!(stdout(&engine.kubectl(&["logs", "root"])), "begun\n");
    eventually("the eviction is told", || {
        let events = stdout(&engine.kubectl(&["get", "events", "--field-selector", "reason=Evicted"]));
        events.contains("Warning") && events.contains("pod/root")
    });
    engine.kill();
    engine.restart();
    let again = get(&engine, "pod/root");
    assert_eq!((&again["status"]["reason"], &again["status"]["message"]), (&"Evicted".into(), &total.into()));
    assert_eq!(stdout(&engine.kubectl(&["logs", "root"])), "begun\n");
    assert_eq!(get(&engine, "pod/modest")["status"]["phase"], "Running");
    let node = stdout(&engine.kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].status.capacity}"]));
    assert!(node.contains("ephemeral-storage"), "{node}");
    stdout(&engine.kubectl(&["delete", "pods", "--all", "--timeout=20s"]));
    engine.stop();
}

#[test]
fn limits_hold_under_every_runtime_and_a_sandbox_that_is_made_again_has_its_volumes() {
    let engine = Engine::start();
    let fill = "head -c 60000000 /dev/zero > /fill; sleep 1000";
    let limited = r#"{limits: {ephemeral-storage: 20Mi}}"#;
    let drivers = ["runc", "crun", "gvisor"];
    for driver in drivers {
        let spec = format!("spec:\n  runtimeClassName: {driver}");
        stdout(&engine.kubectl_apply(&pod(driver, fill, limited, "{}").replacen("spec:", &spec, 1)));
    }
    stdout(&engine.kubectl_apply(RECREATED));
    let uid = || {
        get(&engine, "pods")["items"]
            .as_array()
            .unwrap()
            .iter()
            .find(|it| it["metadata"]["name"] == "again")
            .map(|it| it["metadata"]["uid"].to_string())
    };
    eventually("there is a Pod", || uid().is_some());
    let first = uid();
    for driver in drivers {
        let message = wait_for_eviction(&engine, driver)["status"]["message"].to_string();
        assert!(message.contains("exceeds the total limit of containers 20Mi"), "{driver}: {message}");
    }
    eventually("the Pod is made again", || uid().is_some() && uid() != first);
    stdout(&engine.kubectl(&["wait", "--for=condition=Ready", "sandbox/again", "--timeout=30s"]));
    assert_eq!(
        stdout(&engine.kubectl(&["exec", "again", "--", "sh", "-c", "ls /data; ls /fill 2>&1 || true"]))
            .lines()
            .next(),
        Some("seen")
    );
    assert!(taken(&engine) < 5_000_000, "{}", taken(&engine));
    stdout(&engine.kubectl(&["delete", "sandboxes,pods", "--all", "--timeout=20s"]));
    engine.stop();
}

#[test]
fn trees_made_to_hide_or_to_exhaust_are_measured_or_evicted_and_removed() {
    let engine = Engine::start();
    let limited = r#"{limits: {ephemeral-storage: 20Mi}}"#;
    let deep = "cd /scratch; i=0; while [ $i -lt 400 ]; do mkdir d; cd d; i=$((i+1)); done; sleep 1000";
    // Many names of few bytes, and directories that are never where they were.
    let many = "mkdir /scratch/a /scratch/b; seq -f /scratch/a/%g 1 20000 | xargs touch; \
        head -c 60000000 /dev/zero > /scratch/a/fill; \
        while :; do mv /scratch/a /scratch/b/a; mv /scratch/b/a /scratch/a; done";
    stdout(&engine.kubectl_apply(&pod("deep", deep, limited, "{}")));
    stdout(&engine.kubectl_apply(&pod("many", many, limited, "{}")));
    let message = wait_for_eviction(&engine, "deep")["status"]["message"].to_string();
    assert!(message.contains("nested deeper than 256 levels"), "{message}");
    let message = wait_for_eviction(&engine, "many")["status"]["message"].to_string();
    assert!(message.contains("exceeds the total limit of containers 20Mi"), "{message}");
    assert!(taken(&engine) < 5_000_000, "{}", taken(&engine));
    stdout(&engine.kubectl(&["delete", "pods", "--all", "--timeout=20s"]));
    engine.stop();
}

/// Runs a test of this file on a disk of its own, in a mount namespace of its own.
fn on_a_disk_of(size: &str, test: &str) {
    let place = tempfile::tempdir().unwrap();
    let script = format!("mount -t tmpfs -o size={size} disk {0} && exec \"$@\"", place.path().display());
    let this = std::env::current_exe().unwrap();
    let done = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", &script, "sh"])
        .arg(this)
        .args(["--exact", &format!("disk::{test}"), "--ignored", "--nocapture"])
        .env("TMPDIR", place.path())
        .env("ASB_DISK_FLOOR", "64Mi")
        .output()
        .unwrap();
    assert!(done.status.success() && text(&done).contains("1 passed"), "{}", text(&done));
}

#[test]
fn machine_that_is_low_on_disk_holds_new_pods_back_and_evicts_who_has_most() {
    on_a_disk_of("256m", "child_on_a_small_disk");
}

#[test]
#[ignore = "run by machine_that_is_low_on_disk_holds_new_pods_back_and_evicts_who_has_most"]
fn child_on_a_small_disk() {
    let engine = Engine::start();
    let pressure = || {
        let status = get(&engine, "nodes")["items"][0]["status"].clone();
        let conditions = status["conditions"].as_array().unwrap().clone();
        conditions.into_iter().find(|it| it["type"] == "DiskPressure").unwrap()
    };
    let phase = |name: &str| get(&engine, &format!("pod/{name}"))["status"]["phase"].clone();
    stdout(&engine.asb(&["run", "--detach", "--name", "quiet"]));
    assert_eq!(pressure()["status"], "False");

    // Somebody else fills the disk: nobody here is evicted for it.
    let theirs = engine.data_dir.path().join("theirs");
    std::fs::write(&theirs, vec![0; 200 << 20]).unwrap();
    eventually("the node says so", || pressure()["status"] == "True");
    assert!(pressure()["message"].to_string().contains("Threshold quantity: 64Mi"), "{}", pressure());
    stdout(&engine.kubectl_apply(&pod("new", "sleep 1000", "{}", "{}")));
    eventually("the new one waits", || {
        let pod = get(&engine, "pod/new");
        pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "DiskPressure"
    });
    assert_eq!((phase("new"), phase("quiet")), ("Pending".into(), "Running".into()));
    std::fs::remove_file(&theirs).unwrap();
    eventually("it begins when there is room", || phase("new") == "Running");
    eventually("the node says so", || pressure()["status"] == "False");

    // Who has most of it goes, and with it what it has.
    // It fills the disk to the last byte, so for a while nothing can be written about it either.
    stdout(&engine.kubectl_apply(&pod("greedy", "cat /dev/zero > /fill; sleep 1000", "{}", "{}")));
    let message = wait_for_eviction(&engine, "greedy")["status"]["message"].to_string();
    assert!(
        message.contains("The node was low on resource: ephemeral-storage. Threshold quantity: 64Mi"),
        "{message}"
    );
    assert!(message.contains("Container main was using"), "{message}");
    eventually("the disk is free again", || pressure()["status"] == "False");

    // Who fills a claim goes as well; what is in it stays.
    stdout(&engine.kubectl_apply(CLAIM));
    let slowly = "while :; do head -c 4M /dev/zero >> /data/fill; sleep 0.2; done";
    let script = format!("command: [sh, -c, {slowly:?}]");
    stdout(&engine.kubectl_apply(&CLAIMANT.replace("COMMAND", &script)));
    let message = wait_for_eviction(&engine, "claimant")["status"]["message"].to_string();
    assert!(message.contains("PersistentVolumeClaims grew by"), "{message}");
    let rows: Value = serde_json::from_str(&stdout(&engine.asb(&["volume", "du", "--json"]))).unwrap();
    assert!(rows[0]["bytes"].as_u64().unwrap() > 50 << 20, "{rows}");
    assert_eq!((phase("new"), phase("quiet")), ("Running".into(), "Running".into()));
    stdout(&engine.kubectl(&["delete", "pods", "--all", "--timeout=20s"]));
    stdout(&engine.kubectl(&["delete", "pvc", "--all", "--timeout=20s"]));
    eventually("what the claim held is gone", || {
        Path::read_dir(&engine.data_dir.path().join("volumes")).unwrap().count() == 0
    });
    engine.stop();
}

/// It fills its root the first time.
const RECREATED: &str = r#"
apiVersion: agents.x-k8s.io/v1beta1
kind: Sandbox
metadata: {name: again}
spec:
  podFailurePolicy: Recreate
  podTemplate:
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: host
        command: [sh, -c, "if [ -e /data/seen ]; then sleep 1000; fi; touch /data/seen; head -c 60000000 /dev/zero > /fill; sleep 1000"]
        resources: {limits: {ephemeral-storage: 20Mi}}
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
"#;

const CLAIM: &str = r#"
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
"#;

const CLAIMANT: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: claimant}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: host, COMMAND, volumeMounts: [{name: data, mountPath: /data}]}
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
"#;
