//! What the API is told about a Pod: its status, and that it may go.

use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::plan::Outcome;
use super::status::{Facts, status};
use super::worker::Worker;

/// After some tries in a row.
const LATER: Duration = Duration::from_secs(10);

/// Writes the status if it is another than before. It is what others act on, so it is tried until it is written or
/// useless. When to try once more, if it was not.
pub(super) async fn report(
    worker: &mut Worker,
    outcome: Option<Outcome>,
    now: SystemTime,
) -> Option<SystemTime> {
    let pod = &worker.pod;
    let status = status(&Facts {
        pod,
        conditions: &conditions(pod, worker.told.as_ref()),
        seen: &worker.seen,
        outcome,
        refusal: worker.refused.as_ref(),
        address: worker.address,
        address6: worker.address6,
        since: worker.since,
        now,
    });
    if worker.told.as_ref() == Some(&status) {
        return None;
    }
    let api: Api<Pod> =
        Api::namespaced(worker.node.shared.client.clone(), &pod.namespace().unwrap_or_default());
    let mut patch = json!({"status": status});
    let gated = pod.spec.as_ref().is_some_and(|spec| spec.readiness_gates.is_some());
    if gated {
        // Others write conditions of their own into the same list: none of them may get lost.
        patch["metadata"] = json!({"resourceVersion": pod.metadata.resource_version});
    }
    for pause in [10, 100, 1000, 5000] {
        match api.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await {
            Ok(_) => {
                worker.told = Some(status);
                return None;
            }
            Err(kube::Error::Api(error)) if error.code == 404 => return None,
            // What was changed meanwhile is on its way here.
            Err(kube::Error::Api(error)) if error.code == 409 && gated => return None,
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "Pod status not written; trying again"
                );
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
        }
    }
    Some(SystemTime::now() + LATER)
}

/// The conditions as they were told last.
fn conditions(pod: &Pod, told: Option<&Value>) -> Vec<Value> {
    match told {
        Some(told) => told["conditions"].as_array().cloned().unwrap_or_default(),
        None => {
            let known = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
            known.map(|condition| json!(condition)).collect()
        }
    }
}

/// Lets the API server forget a Pod of which nothing is left.
pub(super) async fn remove(client: &Client, pod: &Pod) {
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let preconditions = Preconditions { uid: pod.metadata.uid.clone(), resource_version: None };
    let params = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(preconditions),
        ..Default::default()
    };
    while let Err(error) = api.delete(&pod.name_any(), &params).await {
        // 404 and 409: gone, or another Pod of the same name by now.
        if matches!(&error, kube::Error::Api(status) if status.code == 404 || status.code == 409) {
            return;
        }
        tracing::warn!(error = &error as &dyn std::error::Error, "Pod object not removed; trying again");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
