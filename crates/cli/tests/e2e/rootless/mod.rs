//! `asb` by an ordinary user of the machine: what works, what is weaker and says so, and what a sandbox cannot do.

mod account;
mod network;

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use asb_testing::{ImageBuilder, TarBuilder};
use serde_json::{Value, json};

use self::account::Account;
use crate::containers::{plain, pod};
use crate::engine::{eventually, stdout, text};
use crate::together::SEGMENT;
use crate::volume::KEEPER;

/// Every user whose kernel gives what sandboxes need: with subordinate ids and without.
fn each(story: impl Fn(Account)) {
    for subordinate in [true, false] {
        story(Account::new(subordinate));
    }
}

#[test]
fn ordinary_user_runs_stops_starts_and_removes_sandboxes() {
    each(|user| {
        let hello = user.asb(&["run", "--", "sh", "-c", "id -u; echo hello"]);
        assert_eq!(stdout(&hello), "0\nhello\n");
        let mode = user.data_dir().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "nobody else may look into it");
        stdout(&user.kubectl(&["apply", "-f", "-"], KEEPER));
        stdout(&user.kubectl(&["wait", "--for=condition=Ready", "sandbox/keeper", "--timeout=30s"], ""));
        user.inside("keeper", "echo kept > /data/file; chmod 750 /data/file; echo lost > /tmp/file");
        stdout(&user.asb(&["stop", "keeper"]));
        stdout(&user.asb(&["start", "keeper"]));
        let found = user.inside("keeper", "stat -c '%u %a' /data/file; cat /data/file /tmp/file");
        assert!(found.starts_with("0 750\nkept\n") && found.contains("No such file"), "{found}");
        let top: Value = serde_json::from_str(&stdout(&user.asb(&["top", "--json"]))).unwrap();
        assert!(top[0]["memoryBytes"].as_u64() > Some(0), "{top}");
        let size = stdout(&user.asb(&["volume", "du"]));
        assert!(size.contains("data-keeper"), "{size}");
        user.finish();
    });
}

#[test]
fn sandboxes_outlive_a_killed_engine_and_the_next_one_has_them() {
    each(|user| {
        stdout(&user.asb(&["run", "--detach", "--name", "web"]));
        user.inside("web", "echo still > /tmp/file; (while :; do sleep 1000; done) >/dev/null 2>&1 &");
        user.kill_engine();
        stdout(&user.asb(&["up", "--detach"]));
        assert_eq!(user.inside("web", "cat /tmp/file"), "still\n");
        user.kill_engine();
        // Whatever needs an engine starts one, which can also end what it did not start.
        assert_eq!(stdout(&user.asb(&["run", "--", "echo", "beside"])), "beside\n");
        stdout(&user.asb(&["rm", "web"]));
        user.finish();
    });
}

#[test]
fn containers_of_a_pod_share_memory_and_ipc_and_find_them_again() {
    each(|user| {
        stdout(&user.asb(&["up", "--detach"]));
        let wait = "trap 'exit 3' TERM; while :; do sleep 0.05; done";
        let spec = json!({
            "volumes": [{"name": "shared", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}],
            "initContainers": [plain("init", "echo early > /s/file")],
            "containers": [plain("a", wait), plain("b", wait)],
        });
        for name in ["two", "other"] {
            stdout(&user.kubectl(&["apply", "-f", "-"], &pod(name, spec.clone()).to_string()));
            let ready = ["wait", "--for=condition=Ready", "--timeout=30s"];
            stdout(&user.kubectl(&[&ready[..], &[&format!("pod/{name}")]].concat(), ""));
        }
        let sh = |name: &str, container: &str, script: &str| {
            stdout(&user.kubectl(&["exec", name, "-c", container, "--", "sh", "-c", script], ""))
        };
        let segment = |what: &str| format!("exec python3 -c '{SEGMENT}' {what}");
        assert_eq!(sh("two", "a", "cat /s/file; umask 077; echo a > /s/a; echo a > /dev/shm/a"), "early\n");
        assert_eq!(sh("two", "a", &segment("write")), "word\n");
        let full =
            "cat /s/a /dev/shm/a; head -c 2000000 /dev/zero > /s/large 2>/dev/null || echo full; rm /s/large";
        assert_eq!(sh("two", "b", full), "a\na\nfull\n");
        assert_eq!(sh("other", "b", "ls /s /dev/shm"), "/dev/shm:\n\n/s:\nfile\n");
        user.kill_engine();
        stdout(&user.asb(&["up", "--detach"]));
        user.kubectl(&["exec", "two", "-c", "b", "--", "sh", "-c", "kill 1"], "");
        let again = ["get", "pod", "two", "-o", "jsonpath={.status.containerStatuses[1].restartCount}"];
        eventually("b is started again", || text(&user.kubectl(&again, "")) == "1");
        stdout(&user.kubectl(&["wait", "--for=condition=Ready", "--timeout=30s", "pod/two"], ""));
        assert_eq!(sh("two", "b", "cat /s/a /dev/shm/a"), "a\na\n");
        assert_eq!(sh("two", "b", &segment("read")), "word\n");
        assert_eq!(sh("other", "a", &segment("read")), "none\n");
        stdout(&user.kubectl(&["delete", "pod", "--all", "--now"], ""));
        user.finish();
    });
}

#[test]
fn users_of_an_image_are_themselves_or_the_only_one() {
    let many = Account::new(true);
    let owner = "touch /tmp/a; chown 33:34 /tmp/a; stat -c %u:%g /tmp/a; cut -c1-33 /proc/self/uid_map";
    let seen = stdout(&many.asb(&["run", "--", "sh", "-c", owner]));
    assert!(seen.starts_with("33:34\n"), "{seen}");
    let pod = |name: &str, security: Value| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "terminationGracePeriodSeconds": 0, "restartPolicy": "Never", "securityContext": security,
                "containers": [{
                    "name": "main", "image": "host", "command": ["sh", "-c", "id; exec sleep 1000"],
                    "resources": {"limits": {"memory": "64Mi", "cpu": "500m"}},
                }],
            },
        })
        .to_string()
    };
    let groups = json!({"runAsUser": 1000, "runAsGroup": 7, "fsGroup": 2000, "supplementalGroups": [3000]});
    stdout(&many.kubectl(&["apply", "-f", "-"], &pod("groups", groups.clone())));
    let id = |user: &Account, name: &str| {
        eventually("it runs", || text(&user.kubectl(&["logs", name], "")).contains("uid="));
        stdout(&user.kubectl(&["logs", name], ""))
    };
    assert!(
        id(&many, "groups").contains("uid=1000(user) gid=7 groups=7,2000,3000"),
        "{}",
        id(&many, "groups")
    );
    eventually("the limits that do not hold are told", || {
        stdout(&many.kubectl(&["get", "events", "-o", "jsonpath={.items[*].message}"], ""))
            .contains("spec.containers[0].resources.limits.memory, spec.containers[0].resources.limits.cpu: not enforced")
    });
    stdout(&many.kubectl(&["delete", "pods", "--all"], ""));
    many.finish();

    let one = Account::new(false);
    stdout(&one.asb(&["up", "--detach"]));
    stdout(&one.kubectl(&["apply", "-f", "-"], &pod("user", json!({"runAsUser": 1000, "runAsGroup": 7}))));
    assert!(id(&one, "user").contains("uid=1000(user) gid=7"), "{}", id(&one, "user"));
    stdout(&one.kubectl(&["apply", "-f", "-"], &pod("groups", groups)));
    eventually("it is refused by the field", || {
        let message = one.kubectl(&["get", "pod", "groups", "-o", "jsonpath={.status.message}"], "");
        let message = stdout(&message);
        message.contains("spec.securityContext.fsGroup") && message.contains("uidmap")
    });
    stdout(&one.kubectl(&["delete", "pods", "--all"], ""));
    one.finish();
}

#[test]
fn sandbox_of_an_ordinary_user_is_confined() {
    each(|user| {
        let secret = user.home().join("secret");
        std::fs::write(&secret, "do not tell").unwrap();
        std::os::unix::fs::chown(&secret, Some(user.uid), None).unwrap();
        let mut outside = user.command("sleep", &["1000"]).spawn().unwrap();
        let service = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = service.local_addr().unwrap().port();
        stdout(&user.asb(&["run", "--detach", "--name", "box"]));
        let inside = |script: &str| user.inside("box", script);

        let status = inside("grep -E 'NoNewPrivs|Seccomp:|CapBnd' /proc/self/status");
        for line in ["NoNewPrivs:\t1", "Seccomp:\t2", "CapBnd:\t00000000800405fb"] {
            assert!(status.contains(line), "{status}");
        }
        for call in [
            "unshare --user true",
            "unshare --mount true",
            "mount -t tmpfs x /mnt",
            "chroot / mount -o remount,rw /",
        ] {
            let refused = inside(&format!("{call} && echo allowed"));
            assert!(!refused.contains("allowed"), "{call}: {refused}");
        }
        let seen = inside("ls /proc | grep -c '^[0-9]'; ps ax");
        assert!(!seen.contains("sleep 1000") && !seen.contains("asb up"), "{seen}");
        let (home, data) = (user.home(), user.data_dir());
        for path in [&secret, &home, &data, &"/root".into()] {
            let read = inside(&format!("ls {0} && cat {0}", path.display()));
            assert!(!read.contains("do not tell") && !read.contains("kubeconfig"), "{read}");
        }
        for file in ["/etc/shadow", "/proc/1/environ", "/proc/1/mem", "/proc/kcore"] {
            let read = inside(&format!("head -c 1 {file} 2>/dev/null | wc -c"));
            assert_eq!(read, "0\n", "{file}");
        }
        let writes = inside(
            "echo x > /proc/sys/kernel/hostname; echo x > /usr/x; echo b > /proc/sysrq-trigger; ls /usr/x",
        );
        assert!(writes.contains("No such file") && writes.matches("Read-only").count() >= 2, "{writes}");
        // The kernel keeps these from a process 1.
        inside("kill -9 1; kill -STOP 1; kill -HUP 1");
        assert_eq!(inside("echo lives"), "lives\n");
        let connect = "import socket,sys\nfor a in sys.argv[2:]:\n try: socket.create_connection((a,int(sys.argv[1])),2); print('reached',a)\n except OSError as e: print('not',a,e)";
        let addresses = stdout(&std::process::Command::new("hostname").arg("-I").output().unwrap());
        let reached = inside(&format!(
            "python3 -c \"{connect}\" {port} 127.0.0.1 10.0.2.2 169.254.169.254 {}",
            addresses.trim()
        ));
        assert!(reached.contains("not 127.0.0.1") && !reached.contains("reached"), "{reached}");
        assert!(inside("ls -ln /dev/null").contains("1, 3"));
        assert!(inside("mknod /tmp/d b 8 0 && echo made").contains("not permitted"));
        outside.kill().unwrap();
        outside.wait().unwrap();
        user.finish();
    });
}

#[test]
fn fork_bomb_ends_at_the_process_limit_without_cgroups() {
    let user = Account::new(true);
    let bomb = "import os,time\nn=0\ntry:\n while True:\n  if os.fork()==0: time.sleep(1000)\n  n+=1\nexcept OSError: print('stopped at',n)";
    let said = stdout(&user.asb(&["run", "--", "python3", "-c", bomb]));
    let count: u32 = said.trim().rsplit(' ').next().and_then(|word| word.parse().ok()).expect(&said);
    assert!(said.contains("stopped at") && count < 1024, "{said}");
    user.finish();
}

#[test]
fn limits_hold_where_cgroups_are_delegated() {
    let user = Account::new(true);
    let cgroups = user.delegate(&["memory", "pids", "cpu"]);
    let told = stdout(&user.asb(&["doctor"]));
    assert!(told.contains("memory (v") && told.contains("memory limit, process limit"), "{told}");
    stdout(&user.asb(&["up", "--detach"]));
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "hungry"},
        "spec": {"restartPolicy": "Never", "containers": [{
            "name": "main", "image": "host", "command": ["python3", "-c", "x = bytearray(512 << 20)"],
            "resources": {"limits": {"memory": "64Mi"}},
        }]},
    });
    stdout(&user.kubectl(&["apply", "-f", "-"], &pod.to_string()));
    let reason = "jsonpath={.status.containerStatuses[0].state.terminated.reason}";
    eventually("it is ended for want of memory", || {
        stdout(&user.kubectl(&["get", "pod", "hungry", "-o", reason], "")) == "OOMKilled"
    });
    let reasons = || stdout(&user.kubectl(&["get", "events", "-o", "jsonpath={.items[*].reason}"], ""));
    eventually("its start is told", || reasons().contains("Started"));
    let events = reasons();
    assert!(!events.contains("LimitsNotEnforced"), "{events}");
    stdout(&user.kubectl(&["delete", "pods", "--all"], ""));
    user.finish();
    drop(cgroups);
}

/// The doctor freezes a sandbox of the user's, and thaws it again.
#[test]
fn sandboxes_are_frozen_where_cgroups_are_delegated_and_elsewhere_it_is_said_why_not() {
    for subordinate in [true, false] {
        let user = Account::new(subordinate);
        let freezes = |user: &Account| {
            let tried = user.asb(&["--log", "info", "doctor", "--json"]);
            let report: Value = serde_json::from_str(&stdout(&tried)).unwrap();
            let said = String::from_utf8_lossy(&tried.stderr).into_owned();
            (report["runtimes"][0]["abilities"]["freeze"] == true, said)
        };
        let (frozen, said) = freezes(&user);
        assert!(!frozen && said.contains("freezing does not work"), "{said}");
        assert!(said.contains("freezer: no cgroups of this kind are this user's"), "{said}");
        let cgroups = user.delegate(&["memory", "pids", "cpu", "freezer"]);
        let (frozen, said) = freezes(&user);
        assert!(frozen, "{said}");
        user.finish();
        drop(cgroups);
    }
}

#[test]
fn two_users_and_root_do_not_disturb_each_other() {
    let (ann, bob, root) = (Account::new(true), Account::new(false), crate::engine::Engine::start());
    for user in [&ann, &bob] {
        stdout(&user.asb(&["run", "--detach", "--name", "web"]));
        user.inside("web", &format!("echo {} > /tmp/whose", user.uid));
    }
    stdout(&root.asb(&["run", "--detach", "--name", "web"]));
    for user in [&ann, &bob] {
        assert_eq!(user.inside("web", "cat /tmp/whose"), format!("{}\n", user.uid));
    }
    let look = ann.command("ls", &[bob.data_dir().to_str().unwrap()]).output().unwrap();
    assert!(!look.status.success(), "{}", text(&look));
    stdout(&ann.asb(&["rm", "web"]));
    assert_eq!(bob.inside("web", "cat /tmp/whose"), format!("{}\n", bob.uid));
    root.stop();
    bob.finish();
    ann.finish();
}

#[test]
fn image_is_imported_and_run_with_its_owners_and_deletions() {
    each(|user| {
        let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).exists());
        let busybox = std::fs::read(busybox.expect("these tests need busybox-static")).unwrap();
        let lower = TarBuilder::default()
            .directory("bin/", 0o755)
            .entry(tar::EntryType::Regular, "bin/sh", 0o755, "", &busybox)
            .directory("opaque/", 0o755)
            .file("opaque/below", b"")
            .file("gone", b"")
            .finish();
        let upper = [(".wh.gone", ""), ("opaque/.wh..wh..opq", ""), ("opaque/above", "")];
        let built = ImageBuilder::default().tar(&lower).files(&upper).build();
        let layout = user.home().join("layout");
        for (path, bytes) in built.layout(Some("app:1")) {
            let path = layout.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
        stdout(&user.asb(&["image", "import", layout.to_str().unwrap()]));
        let run =
            user.asb(&["run", "app:1", "--", "/bin/sh", "-c", "echo /opaque/* /gone*; echo x > /opaque/new"]);
        assert_eq!(stdout(&run), "/opaque/above /gone*\n");
        assert!(stdout(&user.asb(&["image", "ls"])).contains("app:1"));
        stdout(&user.asb(&["image", "rm", "app:1"]));
        user.finish();
    });
}

/// The user's cgroups would be those of root inside as well.
#[test]
fn privileged_containers_are_not_to_be_had_without_root() {
    let user = Account::new(true);
    let refused = user.asb(&["up", "--allow-privileged"]);
    let said = text(&refused);
    assert!(!refused.status.success() && said.contains("needs an engine that root runs"), "{said}");
    user.finish();
}

#[test]
fn doctor_says_what_is_weaker_and_how_to_get_more() {
    let doctor = |user: &Account| stdout(&user.asb(&["doctor"]));
    let many = Account::new(true);
    let told = doctor(&many);
    assert!(told.contains("user ids         65536 for all sandboxes together"), "{told}");
    assert!(told.contains("weaker than as root") && told.contains("Delegate=yes"), "{told}");
    assert!(told.contains("ok native") && told.contains("needs an engine that root runs"), "{told}");
    let report: Value = serde_json::from_str(&stdout(&many.asb(&["doctor", "--json"]))).unwrap();
    let native = &report["runtimes"][0];
    assert_eq!(
        (&native["works"], &native["abilities"]["memoryLimit"]),
        (&json!(true), &json!(false)),
        "{report:#}"
    );
    many.finish();
    let one = Account::new(false);
    let told = doctor(&one);
    assert!(told.contains("user ids         one for all sandboxes") && told.contains("usermod"), "{told}");
    one.finish();
}
