//! A Sandbox and its children in memory, and builders that read as English.

use std::sync::Arc;

use asb_types::{Sandbox, SandboxStatus, condition, key};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, OwnerReference, Time};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::object::{Pod, Service, VolumeClaim};
use crate::sandbox::plan::{Action, Plan, Problem, ProblemKind, Seen, Step, plan};
use crate::sandbox::{child, judge};

pub const UID: &str = "sandbox-uid";

pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A Sandbox with one container, edited by `spec`, a merge patch of its spec.
pub fn sandbox(spec: Value) -> Sandbox {
    let mut object = json!({
        "metadata": {"name": "box", "namespace": "ns", "uid": UID, "generation": 3, "resourceVersion": "1"},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "host"}]}}},
    });
    json_patch::merge(&mut object["spec"], &spec);
    serde_json::from_value(object).unwrap()
}

pub fn owner(uid: &str) -> OwnerReference {
    OwnerReference {
        uid: uid.into(),
        kind: "Other".into(),
        name: "else".into(),
        controller: Some(true),
        ..Default::default()
    }
}

pub fn meta(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.into()),
        namespace: Some("ns".into()),
        uid: Some(format!("uid-of-{name}")),
        resource_version: Some("1".into()),
        ..Default::default()
    }
}

pub fn pod(phase: &str) -> Pod {
    let mut pod = Pod { metadata: meta("box"), ..Default::default() };
    pod.status.phase = phase.into();
    pod
}

pub trait Edit: Sized {
    fn edit(self, patch: Value) -> Self;
    fn owned(self) -> Self;
    fn foreign(self) -> Self;
}

impl<T: Serialize + DeserializeOwned> Edit for T {
    fn edit(self, patch: Value) -> Self {
        let mut object = json!(self);
        json_patch::merge(&mut object, &patch);
        serde_json::from_value(object).unwrap()
    }

    fn owned(self) -> Self {
        self.edit(json!({"metadata": {"ownerReferences": [child::owner_reference(&sandbox(json!({})))]}}))
    }

    fn foreign(self) -> Self {
        self.edit(json!({"metadata": {"ownerReferences": [owner("somebody-else")]}}))
    }
}

pub fn ready_pod() -> Pod {
    pod("Running").owned().edit(json!({
        "spec": {"nodeName": "node-1"},
        "status": {
            "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}],
        },
    }))
}

pub fn service() -> Service {
    let hash = child::hash(&sandbox(json!({})));
    let service = Service { metadata: meta("box"), ..Default::default() };
    service.edit(json!({
        "metadata": {"labels": {key::SANDBOX_NAME_HASH: hash}},
        "spec": {"clusterIP": "None", "selector": {key::SANDBOX_NAME_HASH: hash}},
    }))
}

pub fn claim(name: &str) -> VolumeClaim {
    VolumeClaim { metadata: meta(name), ..Default::default() }
}

/// What an observer sees when `pod` stands under the Sandbox's name.
pub fn seen(pod: Option<Pod>, service: Option<Service>) -> Seen {
    let pod = pod.map(Arc::new);
    let owned =
        pod.iter().filter(|pod| crate::object::controller_of(&***pod).is_some_and(|owner| owner.uid == UID));
    Seen {
        owned_pods: owned.cloned().collect(),
        named_pod: pod.clone(),
        service: service.map(Arc::new),
        volume_claims: vec![],
        ..Seen::default()
    }
}

pub fn failed(step: Step, message: &str) -> Problem {
    Problem { step, kind: ProblemKind::Failed, message: message.into() }
}

pub fn status(sandbox: &Sandbox, seen: &Seen, problems: &[Problem]) -> SandboxStatus {
    judge::judge(sandbox, seen, problems, "cluster.local", at(100))
}

/// `(status, reason, message)` of a condition.
pub fn said<'a>(status: &'a SandboxStatus, kind: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let found = condition::get(&status.conditions, kind)?;
    Some((found.status.as_str(), found.reason.as_str(), found.message.as_str()))
}

pub fn old_condition(kind: &str, status: &str, reason: &str) -> Condition {
    Condition {
        type_: kind.into(),
        status: status.into(),
        reason: reason.into(),
        message: String::new(),
        observed_generation: Some(1),
        last_transition_time: Time(at(1)),
    }
}

/// The API in memory: applies plans to a world until they are empty.
pub struct World {
    pub sandbox: Sandbox,
    pub seen: Seen,
    pub now: Timestamp,
    /// Everything that was done, for assertions about what must never happen.
    pub history: Vec<Action>,
    pub sandbox_deleted: bool,
}

impl World {
    pub fn new(sandbox: Sandbox, mut seen: Seen) -> Self {
        seen.volume_claims.resize(sandbox.spec.volume_claims().len(), None);
        Self { sandbox, seen, now: at(100), history: Vec::new(), sandbox_deleted: false }
    }

    /// One pass; returns the plan that was applied.
    pub fn pass(&mut self) -> Plan {
        let plan = plan(&self.sandbox, &self.seen, self.now);
        for action in &plan.actions {
            self.take(action);
        }
        self.history.extend(plan.actions.iter().cloned());
        self.sandbox.status =
            Some(judge::judge(&self.sandbox, &self.seen, &plan.problems, "cluster.local", self.now));
        plan
    }

    /// Passes until a plan has no actions and the status stands still.
    pub fn settle(&mut self) -> Plan {
        for _ in 0..6 {
            let before = self.sandbox.status.clone();
            let plan = self.pass();
            if plan.actions.is_empty() && before == self.sandbox.status {
                return plan;
            }
        }
        panic!("no rest after 6 passes; history: {:#?}", self.history);
    }

    fn take(&mut self, action: &Action) {
        match action {
            Action::CreatePod(object) => {
                assert!(self.seen.named_pod.is_none(), "a Pod of that name exists");
                self.set_pod(Some(created::<Pod>(object).edit(json!({"status": {"phase": "Pending"}}))));
            }
            Action::PatchPod { patch, .. } => {
                let pod = self.seen.named_pod.clone().expect("only a Pod that is there can be patched");
                self.set_pod(Some(Pod::clone(&pod).edit(patch.clone())));
            }
            Action::DeletePod(_) => self.set_pod(None),
            Action::CreateService(object) => self.seen.service = Some(Arc::new(created(object))),
            Action::PatchService { patch, .. } => {
                let service = self.seen.service.clone().expect("only a Service that is there can be patched");
                self.seen.service = Some(Arc::new(Service::clone(&service).edit(patch.clone())));
            }
            Action::DeleteService(_) => self.seen.service = None,
            Action::CreateVolumeClaim(object) => {
                let free = self.seen.volume_claims.iter_mut().find(|claim| claim.is_none());
                *free.expect("one place per template") = Some(Arc::new(created(object)));
            }
            Action::PatchVolumeClaim { name, patch } => {
                for claim in self.seen.volume_claims.iter_mut().flatten() {
                    if claim.metadata.name.as_ref() == Some(name) {
                        *claim = Arc::new(VolumeClaim::clone(claim).edit(patch.clone()));
                    }
                }
            }
            Action::DeleteSandbox(_) => self.sandbox_deleted = true,
        }
    }

    fn set_pod(&mut self, pod: Option<Pod>) {
        let volume_claims = std::mem::take(&mut self.seen.volume_claims);
        let service = self.seen.service.take();
        self.seen = Seen { service, volume_claims, ..seen(pod, None) };
    }
}

fn created<T: DeserializeOwned>(object: &Value) -> T {
    let mut object = object.clone();
    let name = object["metadata"]["name"].as_str().unwrap().to_owned();
    object["metadata"]["uid"] = json!(format!("uid-of-{name}"));
    object["metadata"]["resourceVersion"] = json!("1");
    serde_json::from_value(object).unwrap()
}
