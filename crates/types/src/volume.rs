//! Rules about claims and volumes in which the API server and the node have to agree.

use jiff::Timestamp;
use serde_json::Value;

/// Keeps a PersistentVolume until nothing needs its object any more.
pub const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";

/// Whether a Pod does not count as a user of a claim: it was created after the claim was deleted, and has never started.
///
/// Both times are of a clock that may have been set back in between, so that alone does not count against a Pod whose containers
/// have run: it has the volume mounted.
pub fn came_too_late(created: Option<Timestamp>, deleted: Option<Timestamp>, status: &Value) -> bool {
    created.zip(deleted).is_some_and(|(created, deleted)| created > deleted) && !has_started(status)
}

/// Whether a container of a Pod with this status has ever run.
fn has_started(status: &Value) -> bool {
    let waits = matches!(status["phase"].as_str(), None | Some("" | "Pending"));
    let lists = ["initContainerStatuses", "containerStatuses"];
    let mut containers = lists.iter().flat_map(|list| status[*list].as_array().into_iter().flatten());
    !waits || containers.any(has_run)
}

fn has_run(container: &Value) -> bool {
    let states = [&container["state"], &container["lastState"]];
    let ran = |state: &&Value| state["running"].is_object() || state["terminated"].is_object();
    container["started"] == true || states.iter().any(ran)
}

/// Whether the data of a volume without a claim is removed by the node: its policy is `Delete`, and the node has made it.
/// Volumes of earlier versions are not marked; their name and class tell.
pub fn is_removed(volume: &Value) -> bool {
    let (meta, spec) = (&volume["metadata"], &volume["spec"]);
    let made_here = match meta["annotations"]["pv.kubernetes.io/provisioned-by"].as_str() {
        Some(provisioner) => provisioner == "asb/local",
        None => {
            meta["name"].as_str().is_some_and(|name| name.starts_with("pvc-"))
                && spec["storageClassName"] == "local"
        }
    };
    made_here && spec["persistentVolumeReclaimPolicy"] == "Delete"
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_comes_too_late_if_it_is_younger_than_the_deletion_and_never_ran() {
        let at = |second: i64| Timestamp::from_second(second).ok();
        let container = |state: Value| json!({"phase": "Pending", "containerStatuses": [state]});
        for (created, deleted, status, expected) in [
            (at(6), at(5), Value::Null, true),
            (at(6), at(5), json!({"phase": "Pending"}), true),
            (at(6), at(5), container(json!({"state": {"waiting": {}}, "started": false})), true),
            (at(6), at(5), json!({"phase": "Running"}), false),
            (at(6), at(5), json!({"phase": "Succeeded"}), false),
            (at(6), at(5), container(json!({"started": true})), false),
            (at(6), at(5), container(json!({"state": {"running": {}}})), false),
            (
                at(6),
                at(5),
                container(json!({"state": {"waiting": {}}, "lastState": {"terminated": {}}})),
                false,
            ),
            (at(6), at(5), json!({"initContainerStatuses": [{"state": {"terminated": {}}}]}), false),
            (at(5), at(5), Value::Null, false),
            (at(4), at(5), Value::Null, false),
            (at(6), None, Value::Null, false),
            (None, at(5), Value::Null, false),
        ] {
            assert_eq!(
                came_too_late(created, deleted, &status),
                expected,
                "{created:?} {deleted:?} {status}"
            );
        }
    }

    #[test]
    fn the_node_removes_the_volumes_that_it_has_made_and_may_delete() {
        let volume = |by: Value, name: &str, class: &str, policy: &str| {
            json!({
                "metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": by}},
                "spec": {"storageClassName": class, "persistentVolumeReclaimPolicy": policy},
            })
        };
        let ours = || json!("asb/local");
        assert!(is_removed(&volume(ours(), "any", "keep", "Delete")));
        assert!(is_removed(&volume(Value::Null, "pvc-1", "local", "Delete")));
        assert!(!is_removed(&volume(ours(), "any", "keep", "Retain")));
        assert!(!is_removed(&volume(json!("other"), "pvc-1", "local", "Delete")));
        assert!(!is_removed(&volume(Value::Null, "disk", "local", "Delete")));
        assert!(!is_removed(&volume(Value::Null, "pvc-1", "other", "Delete")));
    }
}
