//! Containers of which nothing is left but what the API server was told: the machine was reset before it had written down
//! the rest. Pure.

use std::time::SystemTime;

use k8s_openapi::api::core::v1::ContainerStatus;

use super::plan::Finished;

/// The end of an instance that was told to run and is nowhere to be found, in the kubelet's words. Those below `next` have
/// ended in ways that are known.
pub fn end(told: &ContainerStatus, next: u32, now: SystemTime) -> Option<Finished> {
    let running = told.state.as_ref()?.running.as_ref()?;
    let restarts = u32::try_from(told.restart_count).ok().filter(|restarts| *restarts >= next)?;
    Some(Finished {
        code: 137,
        reason: "ContainerStatusUnknown".to_owned(),
        since: running.started_at.as_ref().map_or(now, |at| at.0.into()),
        at: now,
        message: Some(
            "The container could not be located when the pod was deleted.  The container used to be Running"
                .to_owned(),
        ),
        restarts,
        restart: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn told(restarts: u32, state: Value) -> ContainerStatus {
        serde_json::from_value(json!({
            "name": "main", "image": "i", "imageID": "", "ready": true, "restartCount": restarts, "state": state,
        }))
        .unwrap()
    }

    #[test]
    fn instance_that_was_told_to_run_has_ended_for_reasons_unknown() {
        let now = SystemTime::now();
        let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
        let end = end(&told(2, running), 0, now).expect("it ran");
        assert_eq!((end.code, end.reason.as_str(), end.restarts), (137, "ContainerStatusUnknown", 2));
        assert!(end.at == now && end.since < now);
    }

    #[test]
    fn what_did_not_run_or_has_ended_in_a_known_way_is_not_lost() {
        let now = SystemTime::now();
        assert_eq!(end(&told(0, json!({"running": {}})), 1, now), None);
        assert_eq!(end(&told(0, json!({"waiting": {}})), 0, now), None);
    }
}
