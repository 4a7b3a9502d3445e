//! What a Pod is given: variables and volumes from ConfigMaps, Secrets and the Pod itself.

use serde_json::{Value, json};

use crate::engine::{Engine, eventually, stdout, text};

pub fn apply(engine: &Engine, object: &Value) {
    stdout(&engine.kubectl_apply(&object.to_string()));
}

pub fn config_map(name: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

pub fn secret(name: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data})
}

/// A Pod that runs a script and then stays.
pub fn pod(name: &str, script: &str, container: Value, mut spec: Value) -> Value {
    let mut main = json!({"name": "main", "image": "host", "command": ["sh", "-c", format!("{script}; echo done; exec sleep 1000")]});
    main.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
    spec["containers"] = json!([main]);
    let metadata = json!({"name": name, "labels": {"app": "web"}, "annotations": {"note": "hi"}});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
}

pub fn get(engine: &Engine, name: &str) -> Value {
    serde_json::from_str(&stdout(&engine.kubectl(&["get", "pod", name, "-o", "json"]))).unwrap()
}

/// What a Pod's script printed, once it is through.
pub fn printed(engine: &Engine, name: &str) -> String {
    let log = || text(&engine.kubectl(&["logs", name]));
    eventually(&format!("the script of {name} is through"), || log().lines().any(|line| line == "done"));
    log().replace("done\n", "")
}

/// Removes the Pods and stops the engine, which must leave nothing.
pub fn finish(engine: Engine) {
    stdout(&engine.kubectl(&["delete", "pod", "--all", "--now"]));
    engine.stop();
}

#[test]
fn variables_come_from_objects_and_from_the_pod_itself() {
    let engine = Engine::start();
    apply(&engine, &config_map("map", &json!({"COLOUR": "red", "SIZE": "7", "1bad": "x"})));
    let field =
        |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let container = json!({
        "resources": {"limits": {"memory": "64Mi", "cpu": "500m"}},
        "envFrom": [{"configMapRef": {"name": "map"}}, {"prefix": "S_", "secretRef": {"name": "later"}},
            {"configMapRef": {"name": "none", "optional": true}}],
        "env": [
            {"name": "SIZE", "value": "$(SIZE)-$(COLOUR)"},
            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "later", "key": "token"}}},
            {"name": "NONE", "valueFrom": {"configMapKeyRef": {"name": "map", "key": "none", "optional": true}}},
            field("NAME", "metadata.name"), field("APP", "metadata.labels['app']"), field("IP", "status.podIP"),
            {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
            {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
        ],
    });
    let script = "echo $SIZE $KEY $S_token ${NONE-unset} $NAME $APP $MEMORY $CPU; echo $IP; tr '\\0' '\\n' </proc/$$$$/environ | grep 1bad";
    apply(&engine, &pod("env", script, container, json!({})));
    let waiting = || get(&engine, "env")["status"]["containerStatuses"][0]["state"]["waiting"].clone();
    eventually("the Pod waits for its Secret", || waiting()["reason"] == "CreateContainerConfigError");
    assert_eq!(waiting()["message"], "secret \"later\" not found");
    eventually("it is told", || {
        text(&engine.kubectl(&["describe", "pod", "env"])).contains("Error: secret \"later\" not found")
    });
    apply(&engine, &secret("later", &json!({"other": "x"})));
    eventually("it says which key is missing", || {
        waiting()["message"] == "couldn't find key token in Secret default/later"
    });
    apply(&engine, &secret("later", &json!({"token": "hunter2"})));
    let (said, pod) = (printed(&engine, "env"), get(&engine, "env"));
    let address = pod["status"]["podIP"].as_str().unwrap();
    assert_eq!(said, format!("7-red hunter2 hunter2 unset env web 64 500\n{address}\n1bad=x\n"));
    finish(engine);
}

#[test]
fn volumes_hold_files_of_objects_and_memory_and_parts_of_them_can_be_mounted() {
    let engine = Engine::start();
    apply(&engine, &config_map("app", &json!({"a.conf": "listen 80\n", "b.conf": "b\n"})));
    let labels = json!({"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}});
    let spec = json!({"volumes": [
        {"name": "app", "configMap": {"name": "app"}},
        {"name": "key", "secret": {"secretName": "late", "defaultMode": 0o400}},
        {"name": "all", "projected": {"sources": [
            {"configMap": {"name": "app", "items": [{"key": "b.conf", "path": "deep/b"}]}},
            {"downwardAPI": {"items": [labels]}},
        ]}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "disk", "emptyDir": {}},
    ]});
    let container = json!({
        "env": [{"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "volumeMounts": [
            {"name": "app", "mountPath": "/etc/app"}, {"name": "app", "mountPath": "/srv/one.conf", "subPath": "a.conf"},
            {"name": "key", "mountPath": "/key"}, {"name": "all", "mountPath": "/all"},
            {"name": "memory", "mountPath": "/memory"},
            {"name": "disk", "mountPath": "/disk"}, {"name": "disk", "mountPath": "/mine", "subPathExpr": "of/$(NAME)"},
        ],
    });
    let script = "cat /etc/app/a.conf /srv/one.conf /key/token /all/deep/b /all/labels; echo; \
        stat -L -c %a /key/token; touch /etc/app/x 2>/dev/null || echo read-only; stat -f -c %T /memory; \
        head -c 2000000 /dev/zero > /memory/x 2>/dev/null || echo full; touch /mine/here; ls /disk/of/volumes";
    apply(&engine, &pod("volumes", script, container, spec));
    let waiting = || get(&engine, "volumes")["status"]["containerStatuses"][0]["state"]["waiting"].clone();
    eventually("the Pod waits for its Secret", || {
        waiting()["message"] == "MountVolume.SetUp failed for volume \"key\" : secret \"late\" not found"
    });
    apply(&engine, &secret("late", &json!({"token": "hunter2\n"})));
    let expected = "listen 80\nlisten 80\nhunter2\nb\napp=\"web\"\n400\nread-only\ntmpfs\nfull\nhere\n";
    assert_eq!(printed(&engine, "volumes"), expected);

    let uid = get(&engine, "volumes")["metadata"]["uid"].as_str().unwrap().to_owned();
    let files = engine.data_dir.path().join("pods").join(uid);
    assert_eq!(std::fs::read_to_string(files.join("key/token")).unwrap(), "hunter2\n");
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&files.metadata().unwrap().permissions()) & 0o777,
        0o700
    );
    stdout(&engine.kubectl(&["delete", "pod", "volumes", "--now"]));
    assert!(!files.exists(), "the files of a Secret go with the Pod");
    finish(engine);
}

#[test]
fn groups_of_the_pod_reach_its_processes_and_its_volumes() {
    let engine = Engine::start();
    apply(&engine, &secret("key", &json!({"token": "hunter2"})));
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    apply(&engine, &claim);
    let volumes = json!([
        {"name": "claim", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "disk", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "key", "secret": {"secretName": "key", "defaultMode": 0o400}},
    ]);
    let mounts = json!([
        {"name": "claim", "mountPath": "/claim"}, {"name": "disk", "mountPath": "/disk"},
        {"name": "memory", "mountPath": "/memory"}, {"name": "key", "mountPath": "/key"},
    ]);
    let spec = |group: u32| {
        json!({
            "volumes": volumes,
            "securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": group, "supplementalGroups": [3000]},
        })
    };
    let script = "id -G; for at in claim disk memory; do touch /$at/x; stat -c %u:%g:%a /$at; stat -c %g /$at/x; done; \
        stat -L -c %g:%a /key/token; cat /key/token; echo";
    apply(&engine, &pod("first", script, json!({"workingDir": "/", "volumeMounts": mounts}), spec(2000)));
    let volume = |mode: u32| format!("0:2000:{mode}\n2000\n");
    let volumes = [2777, 2777, 3777].map(volume).concat();
    let expected = format!("1000 2000 3000\n{volumes}2000:440\nhunter2\n");
    assert_eq!(printed(&engine, "first"), expected);
    stdout(&engine.kubectl(&["delete", "pod", "first", "--now"]));
    apply(
        &engine,
        &pod(
            "second",
            "stat -c %g /claim /claim/x",
            json!({"workingDir": "/", "volumeMounts": mounts}),
            spec(2001),
        ),
    );
    assert_eq!(printed(&engine, "second"), "2001\n2001\n", "what a claim holds goes to the next Pod's group");
    stdout(&engine.kubectl(&["delete", "pod", "second", "--now"]));
    stdout(&engine.kubectl(&["delete", "pvc", "data"]));
    finish(engine);
}

#[test]
fn part_of_a_claimed_volume_stays_in_it_when_a_sandbox_plants_links() {
    let engine = Engine::start();
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "shared"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    apply(&engine, &claim);
    let spec = json!({"volumes": [{"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}]});
    let mount = |extra: Value| {
        let mut mount = json!({"name": "shared", "mountPath": "/shared"});
        mount.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        json!({"volumeMounts": [mount]})
    };
    let secrets = engine.data_dir.path().display().to_string();
    let plant = format!("test -e /.asb/sandboxd && ln -s {secrets} /shared/away && ln -s /etc /shared/etc");
    apply(&engine, &pod("attacker", &plant, mount(json!({})), spec.clone()));
    assert_eq!(printed(&engine, "attacker"), "");
    apply(
        &engine,
        &pod("etc", "ls /shared/passwd || echo nothing", mount(json!({"subPath": "etc"})), spec.clone()),
    );
    apply(&engine, &pod("away", "ls /shared", mount(json!({"subPath": "away"})), spec.clone()));
    // A link to what the volume does not have leads nowhere: the Pod says so and does not start.
    for name in ["etc", "away"] {
        eventually("the Pod does not start", || {
            let status = get(&engine, name)["status"]["containerStatuses"][0]["state"]["waiting"].clone();
            status["reason"] == "CreateContainerError"
        });
    }
    let dots =
        engine.kubectl_apply(&pod("dots", "true", mount(json!({"subPath": "../x"})), spec).to_string());
    assert!(
        !dots.status.success() && text(&dots).contains("subPath: Invalid value: \"../x\""),
        "{}",
        text(&dots)
    );
    stdout(&engine.kubectl(&["delete", "pod", "--all", "--now"]));
    stdout(&engine.kubectl(&["delete", "pvc", "shared"]));
    finish(engine);
}

#[test]
fn root_keeps_the_capabilities_that_it_did_not_drop_and_finds_its_aliases() {
    let engine = Engine::start();
    let script =
        "grep CapEff /proc/self/status | cut -f 2; chown 5 /tmp || echo refused; getent hosts db.internal";
    let container =
        json!({"securityContext": {"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}}});
    let aliases = json!({"hostAliases": [{"ip": "192.0.2.7", "hostnames": ["db.internal", "db"]}]});
    apply(&engine, &pod("less", script, container, aliases));
    let said = printed(&engine, "less");
    let lines: Vec<_> = said.lines().filter(|line| !line.starts_with("chown: ")).collect();
    assert_eq!(lines[..2], ["0000000000000400", "refused"], "{said}");
    assert_eq!(lines[2].split_whitespace().collect::<Vec<_>>(), ["192.0.2.7", "db.internal", "db"], "{said}");
    let beside = stdout(&engine.asb(&["exec", "less", "--", "sh", "-c", "grep CapBnd /proc/self/status"]));
    assert!(beside.trim().ends_with("0000000000000400"), "{beside}");

    let more = json!({"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}});
    apply(&engine, &pod("more", "true", more, json!({})));
    eventually("it is refused by the field", || {
        let message = get(&engine, "more")["status"]["message"].as_str().unwrap_or_default().to_owned();
        message.contains("spec.containers[0].securityContext.capabilities.add[0]: no sandbox has")
    });
    finish(engine);
}

#[test]
fn part_of_the_machine_is_shown_only_where_its_operator_opened_it() {
    use std::os::unix::fs::{MetadataExt, symlink};
    let host = tempfile::tempdir().unwrap();
    let [open, closed] = ["open", "closed"].map(|name| host.path().join(name));
    std::fs::create_dir(&open).unwrap();
    std::fs::create_dir(&closed).unwrap();
    std::fs::write(open.join("given"), "from the machine").unwrap();
    std::fs::write(closed.join("secret"), "of the machine").unwrap();
    symlink(&closed, open.join("way-out")).unwrap();
    let engine = Engine::start_with(&["--allow-host-path", open.to_str().unwrap()]);
    let container = json!({"volumeMounts": [
        {"name": "all", "mountPath": "/all"}, {"name": "new", "mountPath": "/new"},
        {"name": "file", "mountPath": "/etc/given", "readOnly": true},
    ]});
    let volume = |name: &str, path: &std::path::Path, kind: &str| json!({"name": name, "hostPath": {"path": path, "type": kind}});
    let volumes = json!({"volumes": [
        volume("all", &open, ""), volume("new", &open.join("a/b"), "DirectoryOrCreate"),
        volume("file", &open.join("given"), "File"),
    ]});
    let script = "cat /etc/given; echo; echo mine > /new/mine; cat /all/a/b/mine; cat /all/way-out/secret || echo nothing; \
        echo x > /etc/given || echo sealed";
    apply(&engine, &pod("inside", script, container, volumes));
    let said = printed(&engine, "inside");
    for wanted in ["from the machine\n", "mine\n", "nothing\n", "sealed\n"] {
        assert!(said.contains(wanted), "{wanted:?} in {said}");
    }
    assert!(!said.contains("of the machine"), "{said}");
    let made = open.join("a/b/mine");
    assert_eq!(
        (std::fs::read_to_string(&made).unwrap().as_str(), made.metadata().unwrap().uid()),
        ("mine\n", 0)
    );

    let around = json!({"volumes": [volume("v", &open.join("../closed"), "")]});
    let around = engine.kubectl_apply(&pod("around", "true", json!({}), around).to_string());
    assert!(
        !around.status.success() && text(&around).contains("spec.volumes[0].hostPath.path"),
        "{}",
        text(&around)
    );
    for (name, path) in [("elsewhere", closed.clone()), ("etc", "/etc".into())] {
        let mounts = json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]});
        apply(&engine, &pod(name, "true", mounts, json!({"volumes": [volume("v", &path, "")]})));
        eventually("it is refused by the field", || {
            let message = get(&engine, name)["status"]["message"].as_str().unwrap_or_default().to_owned();
            message.contains("spec.volumes[0].hostPath.path: ") && message.contains("open to Pods")
        });
    }
    // By a link that a sandbox may have planted: it is resolved as if the directory were all there is.
    let mounts = json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let planted = json!({"volumes": [volume("v", &open.join("way-out"), "Directory")]});
    apply(&engine, &pod("planted", "true", mounts, planted));
    eventually("it waits for what is not there", || {
        let status = get(&engine, "planted")["status"].to_string();
        status.contains("hostPath type check failed")
    });
    finish(engine);
    assert!(open.join("given").exists() && made.exists(), "what is the machine's stays");
}
