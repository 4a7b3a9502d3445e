//! A place for a Pod that is about to be written: at its creation, or when a client binds it.

use asb_scheduler::{GATED, GATED_MESSAGE, Offer, Pod, Rejection, UNSCHEDULABLE};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Scheduling;
use super::report::Failure;
use crate::ops::now;
use crate::status::ApiError;

/// What the ledger holds for a new Pod until the Pod is written.
#[must_use]
pub(crate) enum Reservation<'a> {
    Nothing,
    Place(Taken<'a>),
    /// The Pod waits, and an event with this message is written once the Pod is.
    Unfit {
        scheduling: &'a Scheduling,
        message: String,
    },
}

/// A place, which is free again when this is dropped without [`Reservation::keep`]: nothing else knows the UID of a Pod that is
/// not written.
pub(crate) struct Taken<'a> {
    scheduling: &'a Scheduling,
    uid: String,
    kept: bool,
}

impl Reservation<'_> {
    /// The Pod was written like this.
    pub fn keep(self, namespace: &str, name: &str, uid: &str) {
        match self {
            Self::Nothing => {}
            Self::Place(mut taken) => taken.kept = true,
            Self::Unfit { scheduling, message } => {
                scheduling.report(Failure::unschedulable(namespace, name, uid, message));
            }
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        let mut ledger = self.scheduling.ledger();
        ledger.remove(&self.uid);
        if ledger.has_work() {
            self.scheduling.wake.notify_one();
        }
    }
}

impl Scheduling {
    /// Binds a new Pod that fits; tells one that does not why it waits, or why the node that it names rejects it.
    pub fn place(&self, object: &mut Value) -> Result<Reservation<'_>, ApiError> {
        let pod = readable(object)?;
        Ok(self.place_read(&pod, object))
    }

    fn place_read(&self, pod: &Pod, object: &mut Value) -> Reservation<'_> {
        let none = Reservation::Nothing;
        let place = || Reservation::Place(Taken { scheduling: self, uid: pod.uid().to_owned(), kept: false });
        if !pod.node_name().is_empty() {
            return if self.admit(pod, object) { place() } else { none };
        }
        if pod.is_gated() {
            object["status"]["conditions"] = json!([condition(GATED, GATED_MESSAGE, &Value::Null)]);
            return none;
        }
        if !pod.is_ours() {
            return none;
        }
        let offer = self.ledger().offer(pod);
        match offer {
            Offer::Place => {
                object["spec"]["nodeName"] = self.node.as_str().into();
                place()
            }
            Offer::Queue => none,
            Offer::Unfit(message) => {
                let generation = &object["metadata"]["generation"];
                object["status"]["conditions"] = json!([condition(UNSCHEDULABLE, &message, generation)]);
                Reservation::Unfit { scheduling: self, message }
            }
        }
    }

    /// Checks a Pod that a client binds to a node, as the kubelet of this node does: one that does not fit fails. Returns
    /// whether the Pod has a place now. If the Pod is then not written, [`Scheduling::synchronise`] has to follow.
    pub fn admit(&self, pod: &Pod, object: &mut Value) -> bool {
        if pod.node_name() != self.node {
            return false;
        }
        let admitted = self.ledger().admit(pod);
        if let Err(Rejection { reason, message }) = &admitted {
            let status = &mut object["status"];
            status["phase"] = "Failed".into();
            status["reason"] = reason.as_str().into();
            status["message"] = format!("Pod was rejected: {message}").into();
        }
        admitted.is_ok()
    }
}

/// A Pod as scheduling reads it. One that it cannot read would wait for ever, and is refused as kube-apiserver refuses what it
/// cannot decode.
pub(crate) fn readable(object: &Value) -> Result<Pod, ApiError> {
    Pod::deserialize(object).map_err(|error| {
        ApiError::bad_request(format!("Pod in version \"v1\" cannot be handled as a Pod: {error}"))
    })
}

/// The condition `PodScheduled` of a Pod that waits.
pub(super) fn condition(reason: &str, message: &str, generation: &Value) -> Value {
    let mut condition = json!({
        "type": "PodScheduled", "status": "False", "reason": reason, "message": message,
        "lastProbeTime": null, "lastTransitionTime": now(),
    });
    if !generation.is_null() {
        condition["observedGeneration"] = generation.clone();
    }
    condition
}

/// Puts the condition `PodScheduled` in the place of what the Pod was told before. The time since when it holds stays.
pub(super) fn tell(pod: &mut Value, mut condition: Value) {
    if !pod["status"]["conditions"].is_array() {
        pod["status"]["conditions"] = json!([]);
    }
    let Some(conditions) = pod["status"]["conditions"].as_array_mut() else { return };
    match conditions.iter_mut().find(|known| known["type"] == condition["type"]) {
        Some(known) => {
            if known["status"] == condition["status"] && known["lastTransitionTime"].is_string() {
                condition["lastTransitionTime"] = known["lastTransitionTime"].take();
            }
            *known = condition;
        }
        None => conditions.push(condition),
    }
}

/// Binds a Pod in its stored form.
pub(crate) fn bind(pod: &mut Value, node: &str) {
    pod["spec"]["nodeName"] = node.into();
    let condition = json!({
        "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now(),
    });
    tell(pod, condition);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_keeps_the_time_since_when_it_holds() {
        let old = "2026-01-01T00:00:00Z";
        let mut pod = json!({"status": {"conditions": [
            {"type": "Other", "status": "True"},
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": old},
        ]}});
        tell(&mut pod, condition(UNSCHEDULABLE, "no room", &json!(2)));
        let told = pod["status"]["conditions"][1].clone();
        assert_eq!((&told["message"], &told["lastTransitionTime"]), (&json!("no room"), &json!(old)));
        assert_eq!(told["observedGeneration"], 2);
        bind(&mut pod, "here");
        let bound = &pod["status"]["conditions"][1];
        assert!(bound["status"] == "True" && bound["reason"].is_null() && bound["lastTransitionTime"] != old);
        assert_eq!(
            (&pod["spec"]["nodeName"], &pod["status"]["conditions"][0]["type"]),
            (&json!("here"), &json!("Other"))
        );
    }
}
