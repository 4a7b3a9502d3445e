//! `asb stop`, `start` and `volume`: what stays when processes go.

use std::fs;
use std::os::unix::fs::MetadataExt;

use serde_json::Value;

use crate::engine::{Engine, eventually, stdout, text};

/// A Sandbox with a volume.
pub const KEEPER: &str = r#"
apiVersion: agents.x-k8s.io/v1beta1
kind: Sandbox
metadata: {name: keeper}
spec:
  podTemplate:
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: host, volumeMounts: [{name: data, mountPath: /data}]}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
"#;

fn start(engine: &Engine) -> String {
    stdout(&engine.kubectl_apply(KEEPER));
    stdout(&engine.kubectl(&["wait", "--for=condition=Ready", "sandbox/keeper", "--timeout=30s"]));
    let rows: Value = serde_json::from_str(&stdout(&engine.asb(&["volume", "ls", "--json"]))).unwrap();
    assert_eq!(rows[0]["usedBy"][0], "keeper");
    rows[0]["name"].as_str().unwrap().to_owned()
}

fn inside(engine: &Engine, script: &str) -> String {
    stdout(&engine.asb(&["exec", "keeper", "--", "sh", "-c", script]))
}

#[test]
fn stopped_sandbox_keeps_its_volume_and_starts_again() {
    let engine = Engine::start();
    start(&engine);
    inside(&engine, "echo kept > /data/file; echo lost > /tmp/file");
    let stopped = engine.asb(&["stop", "keeper"]);
    assert_eq!(stdout(&stopped), "keeper\n");
    assert!(stopped.stderr.is_empty(), "{}", text(&stopped));
    assert!(text(&engine.asb(&["ps"])).contains("Suspended"), "{}", text(&engine.asb(&["ps"])));
    assert!(!engine.asb(&["exec", "keeper", "--", "true"]).status.success(), "nothing runs");
    assert_eq!(stdout(&engine.asb(&["stop", "keeper"])), "keeper\n", "stopping twice is fine");
    assert_eq!(stdout(&engine.asb(&["start", "keeper"])), "keeper\n");
    assert_eq!(inside(&engine, "cat /data/file; cat /tmp/file 2>/dev/null || echo gone"), "kept\ngone\n");
    stdout(&engine.asb(&["run", "--detach", "--name", "plain"]));
    let plain = engine.asb(&["stop", "plain"]);
    assert!(text(&plain).contains("no volumes"), "{}", text(&plain));
    let nobody = engine.asb(&["stop", "nobody"]);
    assert!(!nobody.status.success() && text(&nobody).contains("asb ps"), "{}", text(&nobody));
    engine.stop();
}

#[test]
fn volume_is_measured_exported_and_imported_with_owners_and_modes() {
    let engine = Engine::start();
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("data.tar");
    let archive = archive.to_str().unwrap();
    let volume = start(&engine);
    let script = "cd /data && head -c 3000000 /dev/urandom > large && mkdir -p d/e && echo x > d/e/f && chown 12:34 d/e/f \
        && chmod 640 d/e/f && ln d/e/f hard && ln -s /etc/passwd link && md5sum large > sum";
    inside(&engine, script);
    let busy = engine.asb(&["volume", "export", &volume, "-o", archive]);
    assert!(!busy.status.success() && text(&busy).contains("asb stop keeper"), "{}", text(&busy));
    stdout(&engine.asb(&["volume", "export", &volume, "-o", archive, "--force"]));
    assert_eq!(fs::metadata(archive).unwrap().mode() & 0o777, 0o600);
    let rows: Value = serde_json::from_str(&stdout(&engine.asb(&["volume", "du", "--json"]))).unwrap();
    assert!(rows[0]["bytes"].as_u64().unwrap() >= 3_000_000 && rows[0]["files"] == 6, "{rows}");
    assert_eq!((&rows[0]["requestedBytes"], &rows[0]["complete"]), (&(1u64 << 30).into(), &true.into()));
    let table = stdout(&engine.asb(&["volume", "du"]));
    assert!(table.contains("SIZE") && table.contains("1Gi (0%)"), "{table}");

    // As a sandbox has it that runs as such a user.
    let pv = engine.kubectl(&["get", "pvc", &volume, "-o", "jsonpath={.spec.volumeName}"]);
    let sum = engine.data_dir.path().join("volumes").join(stdout(&pv)).join("sum");
    std::os::unix::fs::chown(&sum, Some(1_000_650_000), Some(1_000_650_000)).unwrap();
    stdout(&engine.asb(&["volume", "export", &volume, "-o", archive, "--force"]));
    inside(&engine, "rm -rf /data/*; echo stays > /data/other");
    let busy = engine.asb(&["volume", "import", &volume, archive]);
    assert!(!busy.status.success() && text(&busy).contains("used by `keeper`"), "{}", text(&busy));
    stdout(&engine.asb(&["stop", "keeper"]));
    let imported = engine.asb(&["volume", "import", &volume, archive]);
    assert!(imported.status.success() && !text(&imported).contains("owner"), "{}", text(&imported));
    assert_eq!(fs::metadata(&sum).unwrap().uid(), 1_000_650_000);
    stdout(&engine.asb(&["start", "keeper"]));
    let seen = inside(
        &engine,
        "cd /data && md5sum -c sum && stat -c '%u %g %a %h' d/e/f && readlink link && cat other",
    );
    assert_eq!(seen, "large: OK\n12 34 640 2\n/etc/passwd\nstays\n");
    let piped = engine.asb(&["volume", "export", &volume, "--force"]);
    assert!(piped.status.success() && piped.stdout.len() > 3_000_000, "to a pipe");
    engine.stop();
}

#[test]
fn archive_that_attacks_changes_nothing_outside_its_volume() {
    let engine = Engine::start();
    let volume = start(&engine);
    stdout(&engine.asb(&["stop", "keeper"]));
    let dir = tempfile::tempdir().unwrap();
    let victim = dir.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    let path = dir.path().join("evil.tar");
    let import = |entries: &[(tar::EntryType, &str, &str)]| {
        let mut builder = tar::Builder::new(fs::File::create(&path).unwrap());
        for (kind, name, contents) in entries {
            let mut header = tar::Header::new_gnu();
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_mode(0o644);
            let is_link = *kind != tar::EntryType::Regular;
            if is_link {
                header.as_old_mut().linkname[..contents.len()].copy_from_slice(contents.as_bytes());
            }
            let data = if is_link { "" } else { *contents };
            header.set_size(data.len() as u64);
            header.set_cksum();
            builder.append(&header, data.as_bytes()).unwrap();
        }
        builder.finish().unwrap();
        let done = engine.asb(&["volume", "import", &volume, path.to_str().unwrap()]);
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious", "{}", text(&done));
        done
    };
    use tar::EntryType::{Link, Regular, Symlink};
    let victim_path = victim.to_str().unwrap();
    assert!(!import(&[(Regular, "../../../escaped", "evil")]).status.success());
    import(&[(Symlink, "out", dir.path().to_str().unwrap()), (Regular, "out/victim", "evil")]);
    import(&[(Symlink, "direct", victim_path), (Regular, "direct", "evil")]);
    assert!(!import(&[(Link, "hard", victim_path)]).status.success(), "no link to a file of the machine");
    assert!(!engine.data_dir.path().join("escaped").exists());
    let missing = engine.asb(&["volume", "import", "nothing", "-"]);
    assert!(text(&missing).contains("asb volume ls"), "{}", text(&missing));
    engine.stop();
}

/// A claim, and a Pod that has it at /data.
pub fn claim(name: &str, size: &str, source: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: {size}}}}}{source}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{{name: main, image: host, volumeMounts: [{{name: data, mountPath: /data}}]}}]
  volumes: [{{name: data, persistentVolumeClaim: {{claimName: {name}}}}}]
"#
    )
}

/// What makes a claim begin as a clone of another.
pub fn clone_of(name: &str) -> String {
    format!(", dataSource: {{kind: PersistentVolumeClaim, name: {name}}}")
}

#[test]
fn claim_begins_as_a_clone_of_another_and_goes_its_own_way() {
    let mut engine = Engine::start();
    let inside = |pod: &str, script: &str| {
        stdout(&engine.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{pod}"), "--timeout=30s"]));
        stdout(&engine.kubectl(&["exec", pod, "--", "sh", "-c", script]))
    };
    stdout(&engine.kubectl_apply(&claim("first", "64Mi", "")));
    inside(
        "first",
        "cd /data && mkdir d && echo one > d/file && chown 12:34 d/file && chmod 640 d/file && ln d/file hard",
    );
    stdout(&engine.kubectl_apply(&claim("second", "64Mi", &clone_of("first"))));
    assert_eq!(
        inside("second", "cd /data && cat hard && stat -c '%u %g %a %h' d/file"),
        "one\n12 34 640 2\n"
    );
    inside("second", "echo two > /data/d/file");
    assert_eq!(inside("first", "cat /data/d/file"), "one\n");

    for (name, size, source, message) in [
        ("small", "1Mi", clone_of("first"), "spec.resources.requests.storage"),
        ("lost", "64Mi", clone_of("nobody"), "spec.dataSource.name: no PersistentVolumeClaim \"nobody\""),
        (
            "other",
            "64Mi",
            ", dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: s}".to_owned(),
            "spec.dataSource.kind: \"VolumeSnapshot\" is not available",
        ),
    ] {
        stdout(&engine.kubectl_apply(&claim(name, size, &source)));
        let get = ["get", "pod", name, "-o", "jsonpath={.status.containerStatuses[0].state.waiting}"];
        eventually(message, || {
            let waiting: Value = serde_json::from_str(&stdout(&engine.kubectl(&get))).unwrap_or_default();
            waiting["reason"] == "FailedMount"
                && waiting["message"].to_string().replace('\\', "").contains(message)
        });
    }
    let left = engine.data_dir.path().join("volumes/.clone-pvc-left");
    fs::create_dir_all(left.join("half")).unwrap();
    engine.kill();
    engine.restart();
    assert!(!left.exists(), "what an engine did not finish is gone");
    stdout(&engine.kubectl(&["delete", "pods,pvc", "--all", "--timeout=20s"]));
    eventually("nothing is left of them", || {
        fs::read_dir(engine.data_dir.path().join("volumes")).unwrap().count() == 0
    });
    engine.stop();
}

#[test]
fn claim_that_holds_more_than_it_asked_for_says_so_once() {
    let engine = Engine::start();
    stdout(&engine.kubectl_apply(&claim("small", "1Mi", "")));
    stdout(&engine.kubectl(&["wait", "--for=condition=Ready", "pod/small", "--timeout=30s"]));
    stdout(&engine.kubectl(&["exec", "small", "--", "sh", "-c", "head -c 3000000 /dev/zero > /data/file"]));
    let events =
        || stdout(&engine.kubectl(&["get", "events", "--field-selector", "reason=VolumeOverRequest"]));
    eventually("a warning about the claim", || events().contains("persistentvolumeclaim/small"));
    assert!(events().contains("more than the 1Mi"), "{}", events());
    assert_eq!(
        stdout(&engine.kubectl(&["get", "pod", "small", "-o", "jsonpath={.status.phase}"])),
        "Running"
    );
    stdout(&engine.kubectl(&["delete", "pods,pvc", "--all", "--timeout=20s"]));
    engine.stop();
}
