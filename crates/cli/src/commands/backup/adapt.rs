//! What changes of an object when it is restored, possibly on another machine. Pure.

use std::path::Path;

use asb_apiserver::backup::Stored;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;
use serde_json::{Value, json};

/// Marks a Pod that the engine itself makes.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// The object for an engine on the machine `node` with its volumes below `volumes`; `None` for what it makes anew.
///
/// A Pod that ran begins anew on this node: its processes are not in the backup.
pub fn adapt(mut stored: Stored, node: &str, volumes: &Path) -> Option<Stored> {
    let object = &mut stored.object;
    match stored.key.split('/').next()? {
        // Of machines and processes that are not here.
        "nodes" | "leases.coordination.k8s.io" | "events" => return None,
        "pods" if object["metadata"]["annotations"][MIRROR].is_string() => return None,
        "pods" => {
            let bound = object["spec"]["nodeName"].as_str().is_some_and(|name| !name.is_empty());
            let ended = matches!(object["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
            if bound && !ended {
                object["spec"]["nodeName"] = node.into();
                object["status"] = json!({"phase": "Pending", "qosClass": object["status"]["qosClass"]});
            }
        }
        "persistentvolumes" if has_files(object) => {
            let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            object["spec"]["hostPath"]["path"] = json!(volumes.join(name));
        }
        _ => {}
    }
    Some(stored)
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
        adapt(Stored { key: key.to_owned(), object }, "here", Path::new("/new/volumes")).map(|it| it.object)
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
        for key in ["nodes/there", "leases.coordination.k8s.io/kube-node-lease/there", "events/default/x"] {
            assert_eq!(adapted(key, json!({})), None, "{key}");
        }
        let mirror = json!({"metadata": {"annotations": {MIRROR: "x"}}});
        assert_eq!(adapted("pods/agent-sandbox-system/router", mirror), None);
        let secret = json!({"data": {"a": "b"}});
        assert_eq!(adapted("secrets/default/s", secret.clone()), Some(secret));
    }

    #[test]
    fn volumes_of_the_engine_are_where_the_new_engine_has_them() {
        let volume =
            |path: &str| json!({"metadata": {"name": "pvc-1"}, "spec": {"hostPath": {"path": path}}});
        let of = |path: &str| {
            adapted("persistentvolumes/pvc-1", volume(path)).unwrap()["spec"]["hostPath"]["path"].clone()
        };
        assert_eq!(of("/old/volumes/pvc-1"), "/new/volumes/pvc-1");
        assert_eq!(of("/mnt/somewhere"), "/mnt/somewhere");
    }
}
