//! A place for a Pod that is about to be written: at its creation, or when somebody else binds it.

use asb_scheduler::{GATED, GATED_MESSAGE, Offer, Pod, Rejection, UNSCHEDULABLE};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Scheduling;
use super::report::Failure;
use crate::ops::now;

/// A place that is taken, and free again when this is dropped without [`Reservation::keep`].
#[must_use]
#[derive(Default)]
pub(crate) struct Reservation<'a> {
    taken: Option<(&'a Scheduling, String)>,
    /// What is to be told once the Pod is written.
    failure: Option<(&'a Scheduling, String)>,
}

impl Reservation<'_> {
    /// The Pod was written like this.
    pub fn keep(mut self, namespace: &str, name: &str, uid: &str) {
        self.taken = None;
        if let Some((scheduling, message)) = self.failure.take() {
            scheduling.report(Failure::unschedulable(namespace, name, uid, &message));
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if let Some((scheduling, uid)) = &self.taken {
            let mut ledger = scheduling.ledger();
            ledger.remove(uid);
            if ledger.has_work() {
                scheduling.wake.notify_one();
            }
        }
    }
}

impl Scheduling {
    /// Binds a new Pod that fits; tells one that does not why it waits, or why the node that it names rejects it.
    pub fn place(&self, object: &mut Value) -> Reservation<'_> {
        let none = Reservation::default();
        // What is wrong with it was found when it was checked.
        let Ok(pod) = Pod::deserialize(&*object) else { return none };
        if !pod.node_name().is_empty() {
            return self.admit(&pod, object);
        }
        if pod.is_gated() {
            object["status"]["conditions"] = json!([condition(GATED, GATED_MESSAGE, &Value::Null)]);
            return none;
        }
        if !pod.is_ours() {
            return none;
        }
        let offer = self.ledger().offer(&pod);
        match offer {
            Offer::Place => {
                object["spec"]["nodeName"] = self.node.as_str().into();
                self.taken(&pod)
            }
            Offer::Queue => none,
            Offer::Unfit(message) => {
                let generation = &object["metadata"]["generation"];
                object["status"]["conditions"] = json!([condition(UNSCHEDULABLE, &message, generation)]);
                Reservation { taken: None, failure: Some((self, message)) }
            }
        }
    }

    /// Checks a Pod that somebody else binds to the node, as a kubelet does: one that does not fit fails.
    pub fn admit(&self, pod: &Pod, object: &mut Value) -> Reservation<'_> {
        if pod.node_name() != self.node {
            return Reservation::default();
        }
        let admitted = self.ledger().admit(pod);
        match admitted {
            Ok(()) => self.taken(pod),
            Err(Rejection { reason, message }) => {
                let status = &mut object["status"];
                status["phase"] = "Failed".into();
                status["reason"] = reason.into();
                status["message"] = format!("Pod was rejected: {message}").into();
                Reservation::default()
            }
        }
    }

    fn taken(&self, pod: &Pod) -> Reservation<'_> {
        Reservation { taken: Some((self, pod.uid().to_owned())), failure: None }
    }
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
