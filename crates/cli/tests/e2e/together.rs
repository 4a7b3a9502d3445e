//! What containers of one Pod share beyond network and files, and that it outlives all but the Pod: IPC and volumes in
//! memory. And when a Pod begins anew, as it does after a restart of the machine.

use serde_json::{Value, json};

use crate::containers::{container, log, plain, pod, sh, sidecar, wait_for};
use crate::engine::{Engine, eventually, stdout, text};
use crate::pod::{apply, finish, get};

const WAIT: &str = "trap 'exit 3' TERM; while :; do sleep 0.05; done";

/// Writes or reads a word in a System V segment that only its owner may use.
pub const SEGMENT: &str = r#"
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
made = libc.shmget(0x61736202, 4096, 0o600 | (0o1000 if sys.argv[1] == "write" else 0))
if made == -1: sys.exit(print("none") or 0)
place = libc.shmat(made, None, 0)
if sys.argv[1] == "write": ctypes.memmove(place, b"word", 5)
print(ctypes.string_at(place).decode())
"#;

fn memory(size: &str) -> Value {
    json!([{"name": "shared", "emptyDir": {"medium": "Memory", "sizeLimit": size}}])
}

fn segment(engine: &Engine, name: &str, container: &str, what: &str) -> String {
    sh(engine, name, container, &format!("exec python3 -c '{SEGMENT}' {what}"))
}

fn restarts(engine: &Engine, name: &str, list: &str) -> Vec<u64> {
    let all = get(engine, name)["status"][list].clone();
    all.as_array().unwrap().iter().map(|it| it["restartCount"].as_u64().unwrap()).collect()
}

/// The processes 1 of all sandboxes, as their directories name them.
fn supervisors(engine: &Engine, of: &str) -> Vec<(std::path::PathBuf, Value)> {
    let all = std::fs::read_dir(engine.data_dir.path().join("sandboxes/sandbox")).unwrap();
    let all = all.map(|entry| entry.unwrap()).filter(|it| it.file_name().to_str().unwrap().ends_with(of));
    let started = all.map(|entry| entry.path().join("started.json"));
    started
        .map(|path| (path.clone(), serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()))
        .collect()
}

/// Whether it still is the process that was written down.
fn lives(identity: &Value) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", identity["pid"])).unwrap_or_default();
    let since = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(19)?.parse().ok());
    since.is_some_and(|since: u64| identity["start_time"] == since)
}

fn kill(identity: &Value) {
    let pid = rustix::process::Pid::from_raw(identity["pid"].as_i64().unwrap() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// What a restart of the machine leaves: files of processes that are gone, and of another boot.
fn pretend_reboot(engine: &mut Engine) {
    engine.kill();
    for (path, mut identity) in supervisors(engine, "") {
        if lives(&identity) {
            kill(&identity);
        }
        eventually("it is gone", || !lives(&identity));
        identity["boot_id"] = json!("00000000-0000-0000-0000-000000000000");
        std::fs::write(path, identity.to_string()).unwrap();
    }
    engine.restart();
}

#[test]
fn volume_in_memory_is_shared_and_outlives_containers_and_the_engine() {
    let mut engine = Engine::start();
    for runtime in ["native", "runc", "crun"] {
        let user = json!({"securityContext": {"runAsUser": 1000}});
        let spec = json!({
            "runtimeClassName": runtime, "volumes": memory("1Mi"),
            "initContainers": [plain("init", "umask 077; echo early > /s/init; umask 0; echo a > /s/open")],
            "containers": [plain("a", WAIT), plain("b", WAIT), container("user", WAIT, user)],
        });
        apply(&engine, &pod(runtime, spec));
        wait_for(&engine, runtime, "condition=Ready");
        let look = "cat /s/init /s/open; stat -f -c %T /s; echo b >> /s/open";
        assert_eq!(sh(&engine, runtime, "b", look), "early\na\ntmpfs\n");
        let user = sh(&engine, runtime, "user", "cat /s/init 2>&1; cat /s/open; touch /s/mine");
        assert!(user.contains("Permission denied") && user.ends_with("a\nb\n"), "{user}");
        let full =
            "stat -c %u /s/mine; head -c 2000000 /dev/zero > /s/large 2>/dev/null || echo full; rm /s/large";
        assert_eq!(sh(&engine, runtime, "a", full), "1000\nfull\n");
        let uid = get(&engine, runtime)["metadata"]["uid"].as_str().unwrap().to_owned();
        let on_disk = engine.data_dir.path().join("pods").join(uid).join("shared");
        assert_eq!(std::fs::read_dir(on_disk).unwrap().count(), 0, "nothing of it is on the disk");
        engine.kill();
        engine.restart();
        // All of them end, so that nothing but the Pod itself holds what they share.
        for container in ["a", "b", "user"] {
            engine.kubectl(&["exec", runtime, "-c", container, "--", "sh", "-c", "kill -TERM 1 -1"]);
        }
        let again = || restarts(&engine, runtime, "containerStatuses") == [1, 1, 1];
        eventually("all are started again", again);
        wait_for(&engine, runtime, "condition=Ready");
        assert_eq!(sh(&engine, runtime, "a", "cat /s/init /s/open"), "early\na\nb\n");
        assert_eq!(restarts(&engine, runtime, "initContainerStatuses"), [0]);
        stdout(&engine.kubectl(&["delete", "pod", runtime, "--now"]));
    }
    finish(engine);
}

#[test]
fn ipc_is_that_of_the_pod_and_of_no_other() {
    let engine = Engine::start();
    for runtime in ["native", "runc", "crun"] {
        let of = |name: &str| {
            let containers = [plain("a", WAIT), plain("b", WAIT)];
            pod(name, json!({"runtimeClassName": runtime, "containers": containers}))
        };
        let (name, other, single) = (runtime, format!("other-{runtime}"), format!("single-{runtime}"));
        apply(&engine, &of(name));
        apply(&engine, &of(&other));
        apply(&engine, &pod(&single, json!({"runtimeClassName": runtime, "containers": [plain("a", WAIT)]})));
        for name in [name, &other, &single] {
            wait_for(&engine, name, "condition=Ready");
        }
        assert_eq!(segment(&engine, name, "a", "write"), "word\n");
        sh(&engine, name, "a", "umask 077; echo posix > /dev/shm/name");
        assert_eq!(segment(&engine, name, "b", "read"), "word\n");
        assert_eq!(sh(&engine, name, "b", "cat /dev/shm/name"), "posix\n");
        for (name, container) in [(&other, "a"), (&other, "b"), (&single, "a")] {
            assert_eq!(segment(&engine, name, container, "read"), "none\n");
            assert_eq!(sh(&engine, name, container, "ls /dev/shm; tail -n +2 /proc/sysvipc/shm"), "");
        }
        let own = sh(&engine, name, "b", "cat /proc/1/cmdline | tr '\\0' ' '; ls /proc | grep -c '^[0-9]'");
        assert!(
            !own.contains("sh -c trap 'exit 3' TERM; trap"),
            "process ids stay each container's own: {own}"
        );
        stdout(&engine.kubectl(&["delete", "pod", "--all", "--now"]));
    }
    finish(engine);
}

#[test]
fn after_a_restart_of_the_machine_init_containers_run_again_before_the_others() {
    let mut engine = Engine::start();
    let count = |name: &str| format!("echo {name} >> /s/order");
    let stay = |name: &str| format!("{}; {WAIT}", count(name));
    let spec = json!({
        "initContainers": [
            plain("one", &count("one")), sidecar("side", &stay("side"), json!({
                "startupProbe": {"exec": {"command": ["grep", "-q", "side", "/s/order"]}, "periodSeconds": 1},
            })), plain("two", &count("two")),
        ],
        "containers": [plain("main", &stay("main"))],
    });
    apply(&engine, &pod("again", spec));
    let once = |name, script: &str| {
        let script = format!("{}; {script}", count(name));
        pod(
            name,
            json!({"restartPolicy": "OnFailure", "initContainers": [plain("init", &count("init"))], "containers": [plain("main", &script)]}),
        )
    };
    apply(&engine, &once("over", "exit 0"));
    wait_for(&engine, "again", "condition=Ready");
    wait_for(&engine, "over", "jsonpath={.status.phase}=Succeeded");
    eventually("main is up", || sh(&engine, "again", "main", "cat /s/order").ends_with("main\n"));
    pretend_reboot(&mut engine);
    let order = || text(&engine.kubectl(&["exec", "again", "-c", "main", "--", "cat", "/s/order"]));
    let expected = "one\nside\ntwo\nmain\none\nside\ntwo\nmain\n";
    eventually("all have run again, in order", || order() == expected);
    wait_for(&engine, "again", "condition=Ready");
    assert_eq!(restarts(&engine, "again", "initContainerStatuses"), [1, 1, 1]);
    assert_eq!(restarts(&engine, "again", "containerStatuses"), [1]);
    let over = get(&engine, "over");
    assert_eq!(over["status"]["phase"], "Succeeded", "what is over stays so");
    assert_eq!(restarts(&engine, "over", "initContainerStatuses"), [0]);
    // An engine that is killed changes nothing about that.
    engine.kill();
    engine.restart();
    wait_for(&engine, "again", "condition=Ready");
    assert_eq!(sh(&engine, "again", "main", "cat /s/order"), expected);
    finish(engine);
}

#[test]
fn pod_that_loses_what_its_containers_share_begins_again() {
    let engine = Engine::start();
    let spec = json!({
        "volumes": memory("1Mi"), "initContainers": [plain("init", "echo made > /s/file")],
        "containers": [plain("a", &format!("cat /s/file; {WAIT}")), plain("b", WAIT)],
    });
    apply(&engine, &pod("lost", spec));
    wait_for(&engine, "lost", "condition=Ready");
    sh(&engine, "lost", "b", "echo changed > /s/file");
    let found = supervisors(&engine, "-pod");
    assert_eq!(found.len(), 1, "{found:?}");
    kill(&found[0].1);
    eventually("all are started again", || {
        restarts(&engine, "lost", "containerStatuses") == [1, 1]
            && restarts(&engine, "lost", "initContainerStatuses") == [1]
    });
    wait_for(&engine, "lost", "condition=Ready");
    assert_eq!(log(&engine, "lost", "a"), "made\n");
    assert_eq!(sh(&engine, "lost", "b", "cat /s/file"), "made\n");
    let address = get(&engine, "lost")["status"]["podIP"].as_str().unwrap().to_owned();
    let own = sh(&engine, "lost", "b", "hostname -i");
    assert!(own.split_whitespace().any(|it| it == address), "{own}");
    finish(engine);
}

#[test]
fn pod_of_one_container_has_one_sandbox() {
    let engine = Engine::start();
    apply(&engine, &pod("one", json!({"containers": [plain("main", WAIT)]})));
    wait_for(&engine, "one", "condition=Ready");
    assert_eq!(supervisors(&engine, "").len(), 1);
    finish(engine);
}
