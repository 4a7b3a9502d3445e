//! Claims and volumes: nothing that a user stored is removed while something refers to it.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::runtime::wait::await_condition;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::engine::{Engine, eventually, kubectl, stdout, text};
use crate::volume::{KEEPER, claim};

fn get(engine: &Engine, what: &str, path: &str) -> String {
    stdout(&engine.kubectl(&["get", what, "-o", &format!("jsonpath={path}")]))
}

fn ready(engine: &Engine, what: &str) {
    stdout(&engine.kubectl(&["wait", "--for=condition=Ready", what, "--timeout=30s"]));
}

fn inside(engine: &Engine, pod: &str, script: &str) -> String {
    stdout(&engine.kubectl(&["exec", pod, "--", "sh", "-c", script]))
}

/// A Pod that has `kept` in a file of its claim, and the name of its volume.
fn pod_with_data(engine: &Engine, name: &str) -> String {
    stdout(&engine.kubectl_apply(&claim(name, "64Mi", "")));
    ready(engine, &format!("pod/{name}"));
    inside(engine, name, "echo kept > /data/file");
    get(engine, &format!("pvc/{name}"), "{.spec.volumeName}")
}

fn directory(engine: &Engine, volume: &str) -> PathBuf {
    engine.data_dir.path().join("volumes").join(volume)
}

fn delete(engine: &Engine, what: &[&str]) {
    stdout(&engine.kubectl(&[&["delete", "--timeout=20s"], what].concat()));
}

fn patch(engine: &Engine, what: &str, patch: &str) {
    stdout(&engine.kubectl(&["patch", what, "--type=merge", "-p", patch]));
}

fn phase(engine: &Engine, what: &str, wanted: &str) {
    eventually(&format!("{what} is {wanted}"), || get(engine, what, "{.status.phase}") == wanted);
}

/// Pods are bound to a Node by its name. Neither a sandbox nor an emptyDir goes because the machine has another name.
#[test]
fn a_machine_that_is_renamed_keeps_its_sandboxes_and_their_files() {
    let mut engine = Engine::start();
    let pod = claim("scratch", "1Mi", "").split("---\n").last().unwrap().to_owned();
    let pod = pod.replace("persistentVolumeClaim: {claimName: scratch}", "emptyDir: {}");
    assert!(pod.contains("emptyDir"), "{pod}");
    stdout(&engine.kubectl_apply(&pod));
    ready(&engine, "pod/scratch");
    inside(&engine, "scratch", "echo kept > /data/file");
    let [node, uid] = ["{.spec.nodeName}", "{.metadata.uid}"].map(|path| get(&engine, "pod/scratch", path));
    let same = |engine: &Engine| {
        ready(engine, "pod/scratch");
        assert_eq!(inside(engine, "scratch", "cat /data/file"), "kept\n");
        assert_eq!(get(engine, "pod/scratch", "{.status.containerStatuses[0].restartCount}"), "0");
    };
    engine.kill();
    engine.restart_as("renamed");
    same(&engine);
    assert_eq!(stdout(&engine.kubectl(&["get", "nodes", "-o", "name"])), format!("node/{node}\n"));
    // An engine of an earlier version stored no name: the Pod is bound to a Node that is not this one, but it exists.
    engine.kill();
    let file = engine.data_dir.path().join("node-name");
    fs::remove_file(&file).unwrap();
    engine.restart_as("renamed");
    let kept = engine.data_dir.path().join("pods").join(uid);
    assert!(kept.is_dir());
    stdout(&engine.asb(&["down"]));
    assert!(kept.is_dir());
    engine.kill();
    fs::write(&file, format!("{node}\n")).unwrap();
    engine.restart();
    same(&engine);
    delete(&engine, &["pod/scratch"]);
    assert!(!kept.exists());
    engine.stop();
}

#[test]
fn a_claim_that_is_deleted_under_a_sandbox_stays_until_the_sandbox_is_gone() {
    let engine = Engine::start();
    stdout(&engine.kubectl_apply(KEEPER));
    ready(&engine, "sandbox/keeper");
    inside(&engine, "keeper", "echo kept > /data/file");
    let volume = get(&engine, "pvc/data-keeper", "{.spec.volumeName}");
    delete(&engine, &["pvc/data-keeper", "--wait=false"]);
    delete(&engine, &["pv", &volume, "--wait=false"]);
    assert!(stdout(&engine.kubectl(&["get", "pvc"])).contains("Terminating"));
    assert!(stdout(&engine.kubectl(&["get", "pv"])).contains("Terminating"));
    assert_eq!(inside(&engine, "keeper", "echo more >> /data/file; cat /data/file"), "kept\nmore\n");
    ready(&engine, "sandbox/keeper");
    delete(&engine, &["sandbox/keeper"]);
    eventually("the claim, its volume and the data go with the last user", || {
        stdout(&engine.kubectl(&["get", "pv,pvc", "-o", "name"])).is_empty()
            && !directory(&engine, &volume).exists()
    });
    engine.stop();
}

#[test]
fn a_mounted_volume_is_not_removed_even_if_its_claim_is_forced_away() {
    let mut engine = Engine::start();
    let volume = pod_with_data(&engine, "first");
    delete(&engine, &["pvc/first", "--wait=false"]);
    patch(&engine, "pvc/first", r#"{"metadata":{"finalizers":null}}"#);
    // Another volume goes meanwhile, so the node has looked at all of them.
    let other = pod_with_data(&engine, "other");
    delete(&engine, &["pod/other", "pvc/other"]);
    eventually("the other volume is removed", || !directory(&engine, &other).exists());
    assert_eq!(inside(&engine, "first", "cat /data/file"), "kept\n");
    // The next engine knows it only by the sandbox that it finds.
    engine.kill();
    engine.restart();
    let other = pod_with_data(&engine, "other");
    delete(&engine, &["pod/other", "pvc/other"]);
    eventually("the other volume is removed", || !directory(&engine, &other).exists());
    assert_eq!(inside(&engine, "first", "cat /data/file"), "kept\n");
    delete(&engine, &["pod/first"]);
    eventually("nothing refers to it any more", || !directory(&engine, &volume).exists());
    engine.stop();
}

#[test]
fn a_retained_volume_keeps_its_data_and_is_bound_again() {
    let mut engine = Engine::start();
    let volume = pod_with_data(&engine, "first");
    let pv = format!("pv/{volume}");
    patch(&engine, &pv, r#"{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}"#);
    delete(&engine, &["pod/first", "pvc/first"]);
    phase(&engine, &pv, "Released");
    engine.kill();
    engine.restart();
    phase(&engine, &pv, "Released");
    assert_eq!(fs::read_to_string(directory(&engine, &volume).join("file")).unwrap(), "kept\n");
    // A claim of the same name is another claim: it gets a volume of its own.
    let fresh = pod_with_data(&engine, "first");
    assert_ne!(fresh, volume);
    delete(&engine, &["pod/first", "pvc/first"]);
    patch(&engine, &pv, r#"{"spec":{"claimRef":null}}"#);
    phase(&engine, &pv, "Available");
    stdout(&engine.kubectl_apply(&claim("second", "32Mi", "")));
    ready(&engine, "pod/second");
    assert_eq!(get(&engine, "pvc/second", "{.spec.volumeName}"), volume);
    assert_eq!(get(&engine, "pvc/second", "{.status.capacity.storage}"), "64Mi");
    assert_eq!(inside(&engine, "second", "cat /data/file"), "kept\n");
    phase(&engine, &pv, "Bound");
    delete(&engine, &["pod/second", "pvc/second"]);
    phase(&engine, &pv, "Released");
    // The policy decides when it is changed, too.
    patch(&engine, &pv, r#"{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}"#);
    eventually("the volume is removed", || !directory(&engine, &volume).exists());
    engine.stop();
}

#[test]
fn classes_of_users_decide_what_becomes_of_their_volumes() {
    let engine = Engine::start();
    let class = |name: &str, provisioner: &str| {
        let manifest = format!(
            "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {{name: {name}}}\nprovisioner: {provisioner}\nreclaimPolicy: Retain\n"
        );
        stdout(&engine.kubectl_apply(&manifest));
    };
    class("keep", "asb/local");
    class("cloud", "example.com/disks");
    let with = |name: &str, class: &str| claim(name, "1Mi", &format!(", storageClassName: {class:?}"));
    stdout(&engine.kubectl_apply(&with("mine", "keep")));
    ready(&engine, "pod/mine");
    let volume = get(&engine, "pvc/mine", "{.spec.volumeName}");
    let policy = get(&engine, &format!("pv/{volume}"), "{.spec.persistentVolumeReclaimPolicy}");
    assert_eq!(policy, "Retain");
    delete(&engine, &["pod/mine", "pvc/mine"]);
    phase(&engine, &format!("pv/{volume}"), "Released");
    assert!(directory(&engine, &volume).exists());
    patch(&engine, &format!("pv/{volume}"), r#"{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}"#);
    eventually("the volume is removed", || !directory(&engine, &volume).exists());
    for (name, class, message) in [
        ("other", "cloud", "the provisioner \"example.com/disks\" of \"cloud\" does not run here"),
        ("typo", "lokal", "no StorageClass \"lokal\"; this machine has \"local\""),
        ("none", "", "no PersistentVolume fits"),
    ] {
        stdout(&engine.kubectl_apply(&with(name, class)));
        eventually(message, || {
            let waiting = "{.status.containerStatuses[0].state.waiting.message}";
            get(&engine, &format!("pod/{name}"), waiting).contains(message)
        });
    }
    engine.stop();
}

#[test]
fn a_volume_whose_directory_is_gone_is_not_replaced_by_an_empty_one() {
    let engine = Engine::start();
    stdout(&engine.kubectl_apply(KEEPER));
    ready(&engine, "sandbox/keeper");
    let volume = get(&engine, "pvc/data-keeper", "{.spec.volumeName}");
    stdout(&engine.asb(&["stop", "keeper"]));
    let (path, aside) = (directory(&engine, &volume), engine.data_dir.path().join("aside"));
    fs::rename(&path, &aside).unwrap();
    let start = engine.kubectl(&[
        "patch",
        "sandbox/keeper",
        "--type=merge",
        "-p",
        r#"{"spec":{"operatingMode":"Running"}}"#,
    ]);
    assert!(start.status.success(), "{}", text(&start));
    eventually("the Pod says what is missing", || {
        get(&engine, "pod/keeper", "{.status.containerStatuses[0].state.waiting.message}")
            .contains("is gone; put it back")
    });
    assert!(!path.exists());
    let sandbox: Value =
        serde_json::from_str(&stdout(&engine.kubectl(&["get", "sandbox/keeper", "-o", "json"]))).unwrap();
    let conditions = sandbox["status"]["conditions"].as_array().unwrap();
    let is_ready = conditions.iter().find(|it| it["type"] == "Ready").unwrap();
    assert_eq!(is_ready["status"], "False", "{sandbox}");
    fs::rename(&aside, &path).unwrap();
    ready(&engine, "sandbox/keeper");
    engine.stop();
}

#[test]
fn a_sandbox_whose_volume_is_gone_is_not_ready_and_says_so() {
    let engine = Engine::start();
    stdout(&engine.kubectl_apply(KEEPER));
    ready(&engine, "sandbox/keeper");
    inside(&engine, "keeper", "echo kept > /data/file");
    let reason = || get(&engine, "sandbox/keeper", "{.status.conditions[?(@.type=='Ready')].reason}");
    let volume = get(&engine, "pvc/data-keeper", "{.spec.volumeName}");
    let pv = format!("pv/{volume}");
    // The object of the volume is forced away: the data is where it was, and no claim leads to it.
    let kept = stdout(&engine.kubectl(&["get", &pv, "-o", "json"]));
    delete(&engine, &[&pv, "--wait=false"]);
    patch(&engine, &pv, r#"{"metadata":{"finalizers":null}}"#);
    eventually("the loss of the volume is told", || reason() == "VolumeLost");
    phase(&engine, "pvc/data-keeper", "Lost");
    assert_eq!(inside(&engine, "keeper", "cat /data/file"), "kept\n");
    let mut again: Value = serde_json::from_str(&kept).unwrap();
    again["metadata"] = serde_json::json!({"name": volume, "annotations": again["metadata"]["annotations"]});
    stdout(&engine.kubectl_apply(&again.to_string()));
    phase(&engine, "pvc/data-keeper", "Bound");
    ready(&engine, "sandbox/keeper");
    // The claim itself is forced away, under the Pod that uses it.
    delete(&engine, &["pvc/data-keeper", "--wait=false"]);
    patch(&engine, "pvc/data-keeper", r#"{"metadata":{"finalizers":null}}"#);
    eventually("the loss of the claim is told", || reason() == "VolumeLost");
    assert_eq!(inside(&engine, "keeper", "cat /data/file"), "kept\n");
    assert_eq!(stdout(&engine.kubectl(&["get", "pvc", "-o", "name"])), "", "no empty one in its place");
    stdout(&engine.asb(&["stop", "keeper"]));
    stdout(&engine.asb(&["start", "keeper"]));
    ready(&engine, "sandbox/keeper");
    assert_eq!(inside(&engine, "keeper", "ls /data"), "");
    let events =
        || stdout(&engine.kubectl(&["get", "events", "--field-selector", "involvedObject.name=keeper"]));
    eventually("both are told of", || events().contains("VolumeLost") && events().contains("VolumeReplaced"));
    engine.stop();
}

/// What a container of a Pod waits for.
fn waits_for(engine: &Engine, pod: &str, message: &str) {
    eventually(message, || {
        let waiting = "{.status.containerStatuses[0].state.waiting.message}";
        get(engine, &format!("pod/{pod}"), waiting).contains(message)
    });
}

#[test]
fn a_volume_that_a_claim_has_is_never_given_to_another_claim() {
    let engine = Engine::start();
    let volume = pod_with_data(&engine, "first");
    let (pv, uid) = (format!("pv/{volume}"), get(&engine, "pvc/first", "{.metadata.uid}"));
    let is_bound_again = || {
        eventually("the volume is bound to its claim again", || {
            get(&engine, &pv, "{.spec.claimRef.uid} {.status.phase}") == format!("{uid} Bound")
        });
        phase(&engine, "pvc/first", "Bound");
    };
    patch(&engine, &pv, r#"{"spec":{"claimRef":null}}"#);
    assert_ne!(pod_with_data(&engine, "second"), volume);
    is_bound_again();
    // The object is forced away, and created again without the reference.
    let mut again: Value =
        serde_json::from_str(&stdout(&engine.kubectl(&["get", &pv, "-o", "json"]))).unwrap();
    delete(&engine, &[&pv, "--wait=false"]);
    patch(&engine, &pv, r#"{"metadata":{"finalizers":null}}"#);
    phase(&engine, "pvc/first", "Lost");
    again["metadata"] = json!({"name": volume, "annotations": again["metadata"]["annotations"]});
    again["spec"].as_object_mut().unwrap().remove("claimRef");
    again.as_object_mut().unwrap().remove("status");
    stdout(&engine.kubectl_apply(&again.to_string()));
    assert_ne!(pod_with_data(&engine, "third"), volume);
    is_bound_again();
    // Nor does a claim get it that asks for it by name, while the reference is missing.
    patch(&engine, &pv, r#"{"spec":{"claimRef":null}}"#);
    stdout(&engine.kubectl_apply(&claim("thief", "1Mi", &format!(", volumeName: {volume}"))));
    waits_for(&engine, "thief", "already bound to a different claim");
    is_bound_again();
    // It is given away by hand: the claim that had it is lost, and its data outlives the other claim.
    stdout(&engine.kubectl_apply(&claim("heir", "1Mi", ", storageClassName: \"\"")));
    let heir = get(&engine, "pvc/heir", "{.metadata.uid}");
    let reference = json!({"spec": {"claimRef": {"name": "heir", "namespace": "default", "uid": heir}}});
    patch(&engine, &pv, &reference.to_string());
    phase(&engine, "pvc/first", "Lost");
    delete(&engine, &["pod/heir", "pvc/heir"]);
    phase(&engine, &pv, "Released");
    assert_eq!(fs::read_to_string(directory(&engine, &volume).join("file")).unwrap(), "kept\n");
    assert_eq!(inside(&engine, "first", "cat /data/file"), "kept\n");
    delete(&engine, &["pods,pvc", "--all"]);
    eventually("the claim is gone", || !directory(&engine, &volume).exists());
    engine.stop();
}

#[test]
fn volumes_that_are_not_in_the_data_directory_are_neither_chosen_nor_reached() {
    let engine = Engine::start();
    // As the Kubernetes tutorial makes one.
    let foreign = "apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: task-pv}\nspec: {storageClassName: local, \
                   capacity: {storage: 10Gi}, accessModes: [ReadWriteOnce], hostPath: {path: /mnt/data}}\n";
    stdout(&engine.kubectl_apply(foreign));
    phase(&engine, "pv/task-pv", "Available");
    assert_ne!(pod_with_data(&engine, "own"), "task-pv");
    stdout(&engine.kubectl_apply(&claim("other", "1Mi", ", volumeName: task-pv")));
    waits_for(&engine, "other", "\"task-pv\" is not of the provisioner \"asb/local\"");
    for (name, path) in [("up", ".."), ("home", "../../../home"), ("root", "/")] {
        let applied = engine.kubectl_apply(&claim(name, "1Mi", &format!(", volumeName: {path:?}")));
        // The API server may know better than the node.
        if applied.status.success() {
            waits_for(&engine, name, "is not the name of a directory");
        }
    }
    delete(&engine, &["pods,pvc", "--all"]);
    delete(&engine, &["pv/task-pv"]);
    engine.stop();
}

/// Neither a source that goes while it is read, nor a destination that goes while it is written, leaves anything.
#[test]
fn a_clone_whose_claims_are_deleted_meanwhile_leaves_no_directory() {
    let engine = Engine::start();
    pod_with_data(&engine, "source");
    inside(&engine, "source", "cd /data && for i in $(seq 3000); do echo $i > $i; done");
    for round in 0..4 {
        let name = format!("clone-{round}");
        stdout(&engine.kubectl_apply(&claim(&name, "64Mi", &crate::volume::clone_of("source"))));
        let pvc = format!("pvc/{name}");
        delete(&engine, &[&pvc, "--wait=false"]);
        patch(&engine, &pvc, r#"{"metadata":{"finalizers":null}}"#);
        if round == 3 {
            delete(&engine, &["pvc/source", "--wait=false"]);
            patch(&engine, "pvc/source", r#"{"metadata":{"finalizers":null}}"#);
        }
        delete(&engine, &[&format!("pod/{name}")]);
    }
    assert_eq!(inside(&engine, "source", "cat /data/file"), "kept\n");
    delete(&engine, &["pod/source"]);
    let volumes = engine.data_dir.path().join("volumes");
    eventually("nothing is left", || fs::read_dir(&volumes).unwrap().count() == 0);
    engine.stop();
}

#[test]
fn a_removal_that_fails_is_told_and_does_not_hold_up_others() {
    let engine = Engine::start();
    let volume = pod_with_data(&engine, "stuck");
    let other = pod_with_data(&engine, "other");
    let busy = directory(&engine, &volume).join("busy");
    fs::create_dir(&busy).unwrap();
    let mounted = |args: &[&str]| {
        let done = std::process::Command::new(args[0]).args(&args[1..]).arg(&busy).status().unwrap();
        assert!(done.success(), "{args:?}");
    };
    mounted(&["mount", "-t", "tmpfs", "tmpfs"]);
    delete(&engine, &["pod/stuck", "pvc/stuck"]);
    phase(&engine, &format!("pv/{volume}"), "Failed");
    let events = ["get", "events", "--field-selector", "reason=VolumeFailedDelete"];
    eventually("the failure is told", || stdout(&engine.kubectl(&events)).contains(&volume));
    delete(&engine, &["pod/other", "pvc/other"]);
    eventually("the other is removed", || !directory(&engine, &other).exists());
    mounted(&["umount"]);
    eventually("the volume is removed", || !directory(&engine, &volume).exists());
    engine.stop();
}

#[test]
fn a_sandbox_that_mounts_a_claim_of_the_user_says_when_it_is_lost() {
    let engine = Engine::start();
    stdout(&engine.kubectl_apply(&claim("mine", "1Mi", "")));
    ready(&engine, "pod/mine");
    delete(&engine, &["pod/mine"]);
    let (before, _) = KEEPER.split_once("  volumeClaimTemplates").unwrap();
    let volumes = "      volumes: [{name: data, persistentVolumeClaim: {claimName: mine}}]\n";
    stdout(&engine.kubectl_apply(&format!("{before}{volumes}")));
    ready(&engine, "sandbox/keeper");
    inside(&engine, "keeper", "echo kept > /data/file");
    delete(&engine, &["pvc/mine", "--wait=false"]);
    patch(&engine, "pvc/mine", r#"{"metadata":{"finalizers":null}}"#);
    let reason = || get(&engine, "sandbox/keeper", "{.status.conditions[?(@.type=='Ready')].reason}");
    eventually("the loss of the claim is told", || reason() == "VolumeLost");
    assert_eq!(inside(&engine, "keeper", "cat /data/file"), "kept\n");
    engine.stop();
}

#[test]
fn commands_of_the_document_about_storage_run_as_they_stand() {
    let engine = Engine::start();
    let backups = tempfile::tempdir().unwrap();
    let document = fs::read_to_string(asb_testing::root().join("docs/storage.md")).unwrap();
    let blocks = document.split("\n```sh\n").skip(1).filter_map(|text| text.split_once("\n```"));
    let script: String = blocks.map(|(block, _)| format!("{block}\n")).collect();
    let programs = PathBuf::from(crate::engine::ASB);
    let path = std::env::var("PATH").unwrap();
    let done = engine
        .program("sh", &["-eu", "-c", &script])
        .env("PATH", format!("{}:{path}", programs.parent().unwrap().display()))
        .env("BACKUPS", backups.path())
        .output()
        .unwrap();
    assert!(stdout(&done).contains("\nimportant\n"), "{}", text(&done));
    assert!(backups.path().join("elsewhere/store.redb").exists());
    engine.stop();
}

/// A Sandbox removes the claims that it has made. Those that a user has made, and that another sandbox or nobody uses, stay.
#[test]
fn rm_removes_what_the_sandbox_has_made_and_nothing_else() {
    let engine = Engine::start();
    let own = pod_with_data(&engine, "shared");
    let borrower = KEEPER.replace(
        "containers:",
        "volumes: [{name: lent, persistentVolumeClaim: {claimName: shared}}]\n      containers:",
    );
    let borrower =
        borrower.replace("mountPath: /data}]", "mountPath: /data}, {name: lent, mountPath: /lent}]");
    stdout(&engine.kubectl_apply(&borrower));
    ready(&engine, "sandbox/keeper");
    assert_eq!(inside(&engine, "keeper", "cat /lent/file; echo mine > /data/file"), "kept\n");
    let made = get(&engine, "pvc/data-keeper", "{.spec.volumeName}");
    stdout(&engine.asb(&["stop", "keeper"]));
    assert_eq!(
        fs::read_to_string(directory(&engine, &made).join("file")).unwrap(),
        "mine\n",
        "stopped, not removed"
    );
    stdout(&engine.asb(&["rm", "keeper"]));
    eventually("what it has made is removed", || !directory(&engine, &made).exists());
    assert_eq!(inside(&engine, "shared", "cat /data/file"), "kept\n");
    stdout(&engine.asb(&["rm", "--all"]));
    assert_eq!(inside(&engine, "shared", "cat /data/file"), "kept\n", "no sandbox, so not rm's");
    delete(&engine, &["pod/shared"]);
    assert_eq!(
        fs::read_to_string(directory(&engine, &own).join("file")).unwrap(),
        "kept\n",
        "nobody uses it now"
    );
    delete(&engine, &["pvc/shared"]);
    engine.stop();
}

#[test]
fn a_namespace_that_goes_takes_its_data_last_and_what_is_retained_not_at_all() {
    let mut engine = Engine::start();
    stdout(&engine.kubectl(&["create", "namespace", "team"]));
    for name in ["kept", "gone"] {
        // Does not end before it is killed, so that the namespace has to wait.
        let pod = claim(name, "32Mi", "").replace("GracePeriodSeconds: 1", "GracePeriodSeconds: 600").replace(
            "image: host",
            "image: host, command: [sh, -c, \"trap '' TERM; echo kept > /data/file; while :; do sleep 0.05; done\"]",
        );
        stdout(&kubectl(&engine.kubeconfig(), &["apply", "-n", "team", "-f", "-"], &pod));
        stdout(&engine.kubectl(&["wait", "-n", "team", "--for=condition=Ready", &format!("pod/{name}")]));
    }
    let volume = |name: &str| {
        let path = "jsonpath={.spec.volumeName}";
        stdout(&engine.kubectl(&["get", "pvc", "-n", "team", name, "-o", path]))
    };
    let (kept, gone) = (volume("kept"), volume("gone"));
    patch(&engine, &format!("pv/{kept}"), r#"{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}"#);
    stdout(&engine.kubectl(&["delete", "namespace", "team", "--wait=false"]));
    for _ in 0..2 {
        eventually("the Pods are on their way out", || {
            let marks = "jsonpath={.items[*].metadata.deletionTimestamp}";
            stdout(&engine.kubectl(&["get", "pods", "-n", "team", "-o", marks])).split(' ').count() == 2
        });
        for volume in [&kept, &gone] {
            let file = directory(&engine, volume).join("file");
            assert_eq!(fs::read_to_string(file).unwrap_or_default(), "kept\n");
        }
        engine.kill();
        engine.restart();
    }
    stdout(&engine.kubectl(&["delete", "pods", "-n", "team", "--all", "--grace-period=0", "--force"]));
    stdout(&engine.kubectl(&["wait", "--for=delete", "namespace/team", "--timeout=60s"]));
    eventually("the other volume is removed", || !directory(&engine, &gone).exists());
    phase(&engine, &format!("pv/{kept}"), "Released");
    assert_eq!(fs::read_to_string(directory(&engine, &kept).join("file")).unwrap(), "kept\n");
    patch(&engine, &format!("pv/{kept}"), r#"{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}"#);
    eventually("nobody wants it any more", || !directory(&engine, &kept).exists());
    engine.stop();
}

/// The policy of a volume is changed at about the time when its claim is deleted: whoever was answered while the volume was
/// still bound has kept the data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_is_changed_in_the_last_moment_holds() {
    let engine = tokio::task::spawn_blocking(Engine::start).await.unwrap();
    let client = engine.client().await;
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(client.clone());
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let (params, retain) =
        (PatchParams::default(), json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}}));
    let (mut kept, mut lost) = (0, 0);
    for round in 0..24 {
        let name = format!("late-{round}");
        stdout(&engine.kubectl_apply(&claim(&name, "64Mi", "")));
        let running =
            |pod: Option<&Pod>| pod.and_then(|pod| pod.status.as_ref()?.phase.as_deref()) == Some("Running");
        await_condition(pods.clone(), &name, running).await.unwrap();
        let volume = claims.get(&name).await.unwrap().spec.unwrap().volume_name.unwrap();
        let file = directory(&engine, &volume).join("kept");
        fs::write(&file, "kept").unwrap();
        let usual = DeleteParams::default();
        let at_once = DeleteParams { grace_period_seconds: Some(0), ..usual.clone() };
        pods.delete(&name, &at_once).await.unwrap();
        await_condition(pods.clone(), &name, |pod: Option<&Pod>| pod.is_none()).await.unwrap();
        let patch = async {
            // From long before the removal to long after it.
            tokio::time::sleep(Duration::from_micros(250 * round)).await;
            volumes.patch(&volume, &params, &Patch::Merge(&retain)).await
        };
        let (deleted, patched) = tokio::join!(claims.delete(&name, &usual), patch);
        deleted.unwrap();
        let was = patched.ok().and_then(|volume| volume.status?.phase);
        if was.as_deref() == Some("Bound") {
            let released = |volume: Option<&PersistentVolume>| {
                volume.is_none_or(|it| {
                    it.status.as_ref().and_then(|it| it.phase.as_deref()) == Some("Released")
                })
            };
            await_condition(volumes.clone(), &volume, released).await.unwrap();
            assert!(volumes.get_opt(&volume).await.unwrap().is_some(), "round {round}: the volume is gone");
            assert_eq!(fs::read_to_string(&file).unwrap_or_default(), "kept", "round {round}");
            kept += 1;
        } else {
            lost += 1;
        }
    }
    assert!(kept > 0, "no answer came in time, {lost} too late");
    let delete = json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}});
    for volume in volumes.list(&ListParams::default()).await.unwrap() {
        _ = volumes.patch(&volume.name_any(), &params, &Patch::Merge(&delete)).await;
    }
    tokio::task::spawn_blocking(|| engine.stop()).await.unwrap();
}

/// Before claims and volumes had finalizers, before volumes were marked, and before there was `format.json`.
#[test]
fn a_data_directory_of_an_earlier_version_starts_and_loses_nothing() {
    let mut engine = Engine::start();
    stdout(&engine.kubectl_apply(KEEPER));
    ready(&engine, "sandbox/keeper");
    inside(&engine, "keeper", "echo kept | tee /data/file > /root/file");
    let bare = pod_with_data(&engine, "bare");
    let volume = get(&engine, "pvc/data-keeper", "{.spec.volumeName}");
    let unfinalized = r#"{"metadata":{"finalizers":null}}"#;
    for (claim, volume) in [("pvc/data-keeper", &volume), ("pvc/bare", &bare)] {
        patch(&engine, claim, unfinalized);
        let unmarked = r#"{"metadata":{"finalizers":null,"annotations":null}}"#;
        patch(&engine, &format!("pv/{volume}"), unmarked);
    }
    stdout(&engine.asb(&["down"]));
    let data_dir = engine.data_dir.path().to_owned();
    for file in ["format.json", "store.mark"] {
        fs::remove_file(data_dir.join(file)).unwrap();
    }
    engine.restart();
    let format: Value = serde_json::from_slice(&fs::read(data_dir.join("format.json")).unwrap()).unwrap();
    assert!(format["store"].is_string(), "{format}");
    for kill in [false, true] {
        ready(&engine, "sandbox/keeper");
        ready(&engine, "pod/bare");
        assert_eq!(inside(&engine, "keeper", "cat /data/file /root/file"), "kept\nkept\n");
        assert_eq!(inside(&engine, "bare", "cat /data/file"), "kept\n");
        if kill {
            engine.kill();
            engine.restart();
        }
    }
    // Their claims are deleted while they run.
    delete(&engine, &["pvc/data-keeper", "pvc/bare", "--wait=false"]);
    let other = pod_with_data(&engine, "other");
    delete(&engine, &["pod/other", "pvc/other"]);
    eventually("the other volume is removed", || !directory(&engine, &other).exists());
    assert_eq!(inside(&engine, "keeper", "cat /data/file"), "kept\n");
    assert_eq!(inside(&engine, "bare", "cat /data/file"), "kept\n");
    delete(&engine, &["sandbox/keeper", "pod/bare"]);
    eventually("their volumes go with the last user", || {
        !directory(&engine, &volume).exists() && !directory(&engine, &bare).exists()
    });
    engine.stop();
}
