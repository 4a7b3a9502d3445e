//! What changes of an object when it is restored, possibly on another machine. Pure.

use std::path::Path;

use asb_apiserver::backup::Stored;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;
use serde_json::{Value, json};

/// Marks a Pod that the engine itself makes.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Where objects are restored to.
pub struct Here<'a> {
    /// The name of this machine.
    pub node: &'a str,
    /// Where its volumes are.
    pub volumes: &'a Path,
    /// The name of the machine that the backup was made on, if it had one.
    pub instead_of: Option<&'a str>,
}

/// The object for an engine of this machine; `None` for what the engine makes itself.
///
/// A Pod that ran begins again on this node: its processes are not in the backup. The Node keeps what users have said of
/// it, not what was measured.
pub fn adapt(mut stored: Stored, here: &Here<'_>) -> Option<Stored> {
    let object = &mut stored.object;
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    match stored.key.split('/').next()? {
        "nodes" if here.instead_of == Some(&name) => {
            object["metadata"]["name"] = here.node.into();
            if let Some(object) = object.as_object_mut() {
                object.remove("status");
            }
            if let Some(taints) = object["spec"]["taints"].as_array_mut() {
                taints.retain(is_of_a_user);
            }
            stored.key = format!("nodes//{}", here.node);
        }
        // Of machines and processes that are not here.
        "nodes" | "leases.coordination.k8s.io" | "events" => return None,
        "pods" if object["metadata"]["annotations"][MIRROR].is_string() => return None,
        "pods" => {
            let bound = object["spec"]["nodeName"].as_str().is_some_and(|name| !name.is_empty());
            let ended = matches!(object["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
            if bound && !ended {
                object["spec"]["nodeName"] = here.node.into();
                object["status"] = json!({"phase": "Pending", "qosClass": object["status"]["qosClass"]});
            }
        }
        "persistentvolumes" if has_files(object) => {
            object["spec"]["hostPath"]["path"] = json!(here.volumes.join(name));
        }
        _ => {}
    }
    Some(stored)
}

/// Conditions of a machine have taints as well; `kubectl cordon` has one of those.
fn is_of_a_user(taint: &Value) -> bool {
    let key = taint["key"].as_str().unwrap_or_default();
    key == "node.kubernetes.io/unschedulable" || !key.starts_with("node.kubernetes.io/")
}

/// Whether a PersistentVolume has a directory of the engine: one that the node has made, or that a user has written by hand
/// for a directory that was retained.
pub fn is_kept_here(volume: &PersistentVolume) -> bool {
    let path = volume.spec.as_ref().and_then(|spec| Some(Path::new(&spec.host_path.as_ref()?.path)));
    asb_node::is_ours(volume)
        || path.is_some_and(|path| path.ends_with(Path::new("volumes").join(volume.name_any())))
}

/// The same for an object that may be anything.
pub fn has_files(volume: &Value) -> bool {
    serde_json::from_value(volume.clone()).is_ok_and(|volume| is_kept_here(&volume))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapted(key: &str, object: Value) -> Option<Value> {
        restored(key, object).map(|it| it.object)
    }

    fn restored(key: &str, object: Value) -> Option<Stored> {
        let here = Here { node: "here", volumes: Path::new("/new/volumes"), instead_of: Some("there") };
        adapt(Stored { key: key.to_owned(), object }, &here)
    }

    #[test]
    fn a_pod_that_ran_begins_anew_on_this_machine_and_one_that_ended_stays_as_it_was() {
        let pod = |phase: &str| {
            json!({
                "spec": {"nodeName": "there"},
                "status": {"phase": phase, "qosClass": "Burstable", "podIP": "10.0.0.1"},
            })
        };
        let fresh = json!({
            "spec": {"nodeName": "here"}, "status": {"phase": "Pending", "qosClass": "Burstable"},
        });
        assert_eq!(adapted("pods/default/web", pod("Running")), Some(fresh));
        assert_eq!(adapted("pods/default/web", pod("Failed")), Some(pod("Failed")));
        let gated = json!({"spec": {}, "status": {"phase": "Pending"}});
        assert_eq!(adapted("pods/default/web", gated.clone()), Some(gated));
    }

    #[test]
    fn what_belongs_to_the_other_machine_stays_there() {
        for key in
            ["nodes//elsewhere", "leases.coordination.k8s.io/kube-node-lease/there", "events/default/x"]
        {
            assert_eq!(adapted(key, json!({})), None, "{key}");
        }
        let mirror = json!({"metadata": {"annotations": {MIRROR: "x"}}});
        assert_eq!(adapted("pods/agent-sandbox-system/router", mirror), None);
        let secret = json!({"data": {"a": "b"}});
        assert_eq!(adapted("secrets/default/s", secret.clone()), Some(secret));
    }

    #[test]
    fn the_node_keeps_what_users_have_said_of_it() {
        let node = json!({
            "metadata": {"name": "there", "labels": {"disk": "fast"}},
            "spec": {"unschedulable": true, "taints": [
                {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
                {"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"},
                {"key": "team", "value": "a", "effect": "NoExecute"},
            ]},
            "status": {"capacity": {"cpu": "64"}},
        });
        let node = restored("nodes//there", node).unwrap();
        assert_eq!(node.key, "nodes//here");
        let expected = json!({
            "metadata": {"name": "here", "labels": {"disk": "fast"}},
            "spec": {"unschedulable": true, "taints": [
                {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
                {"key": "team", "value": "a", "effect": "NoExecute"},
            ]},
        });
        assert_eq!(node.object, expected);
    }

    #[test]
    fn volumes_of_the_engine_are_where_the_new_engine_has_them() {
        let volume = |path: &str| json!({"metadata": {"name": "kept"}, "spec": {"hostPath": {"path": path}}});
        let of = |path: &str| {
            adapted("persistentvolumes//kept", volume(path)).unwrap()["spec"]["hostPath"]["path"].clone()
        };
        assert_eq!(of("/old/volumes/kept"), "/new/volumes/kept");
        assert_eq!(of("/mnt/somewhere"), "/mnt/somewhere");
        // The node's own, wherever an object says it is.
        let mut own = volume("/mnt/somewhere");
        own["metadata"]["annotations"] = json!({"pv.kubernetes.io/provisioned-by": "asb/local"});
        let own = adapted("persistentvolumes//kept", own).unwrap();
        assert_eq!(own["spec"]["hostPath"]["path"], "/new/volumes/kept");
    }
}
