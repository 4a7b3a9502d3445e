//! A pool and its Sandboxes in memory, and builders that read as English.

use std::sync::Arc;

use asb_types::{Sandbox, Template, WarmPool, WarmPoolStatus, key, name};
use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::object::controller_of;
use crate::warm_pool::Settings;
use crate::warm_pool::blueprint::Blueprint;
use crate::warm_pool::judge::judge;
use crate::warm_pool::plan::{Memory, Plan, Seen, plan};

pub const UID: &str = "pool-uid";

pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

pub fn edit<T: Serialize + DeserializeOwned>(object: &T, patch: Value) -> T {
    let mut object = json!(object);
    json_patch::merge(&mut object, &patch);
    serde_json::from_value(object).unwrap()
}

/// A pool of `web` Sandboxes, edited by `spec`, a merge patch of its spec.
pub fn pool(spec: Value) -> WarmPool {
    let mut object = json!({
        "metadata": {"name": "pool", "namespace": "ns", "uid": UID, "generation": 4, "resourceVersion": "1"},
        "spec": {"sandboxTemplateRef": {"name": "web"}},
    });
    json_patch::merge(&mut object["spec"], &spec);
    serde_json::from_value(object).unwrap()
}

/// The template `web`, edited by `spec`, a merge patch of its spec.
pub fn template(spec: Value) -> Template {
    let mut object = json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "template-uid"},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "v1"}]}}},
    });
    json_patch::merge(&mut object["spec"], &spec);
    serde_json::from_value(object).unwrap()
}

/// A Sandbox as the pool makes it from `template`, as old as `now`, not Ready.
pub fn made_from(template: &Template, sandbox: &str, now: Timestamp) -> Sandbox {
    let mut object = Blueprint::of(template).sandbox(&pool(json!({})), true);
    object["metadata"]["name"] = json!(sandbox);
    object["metadata"]["uid"] = json!(format!("uid-of-{sandbox}"));
    object["metadata"]["resourceVersion"] = json!("1");
    object["metadata"]["creationTimestamp"] = json!(now.to_string());
    serde_json::from_value(object).unwrap()
}

pub fn member(sandbox: &str) -> Sandbox {
    made_from(&template(json!({})), sandbox, at(0))
}

fn said(sandbox: &Sandbox, kind: &str, status: &str, reason: &str) -> Sandbox {
    edit(
        sandbox,
        json!({"status": {"conditions": [{
            "type": kind, "status": status, "reason": reason, "message": "",
            "lastTransitionTime": at(0).to_string(),
        }]}}),
    )
}

pub fn ready(sandbox: Sandbox) -> Sandbox {
    said(&sandbox, "Ready", "True", "DependenciesReady")
}

pub fn with_ready(sandbox: Sandbox, status: &str) -> Sandbox {
    said(&sandbox, "Ready", status, "Any")
}

pub fn unschedulable(sandbox: Sandbox) -> Sandbox {
    said(&sandbox, "PodScheduled", "False", "Unschedulable")
}

pub fn orphan(sandbox: Sandbox) -> Sandbox {
    edit(&sandbox, json!({"metadata": {"ownerReferences": null, "labels": {key::LAUNCH_TYPE: null}}}))
}

/// Taken by a claim, while the pool still sees the label.
pub fn claimed(sandbox: Sandbox) -> Sandbox {
    let claim = json!({"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
        "name": "claim", "uid": "claim-uid", "controller": true});
    edit(&sandbox, json!({"metadata": {"ownerReferences": [claim]}}))
}

pub fn leaving(sandbox: Sandbox) -> Sandbox {
    edit(&sandbox, json!({"metadata": {"deletionTimestamp": at(1).to_string()}}))
}

pub fn is_ours(sandbox: &Sandbox) -> bool {
    controller_of(sandbox).is_some_and(|owner| owner.uid == UID)
}

/// The API in memory: applies plans to a world until they are empty.
pub struct World {
    pub pool: WarmPool,
    pub template: Option<Template>,
    pub refusal: Option<String>,
    pub sandboxes: Vec<Sandbox>,
    pub memory: Memory,
    pub settings: Settings,
    pub now: Timestamp,
    pub made: usize,
}

impl World {
    pub fn new(spec: Value, sandboxes: Vec<Sandbox>) -> Self {
        Self {
            pool: pool(spec),
            template: Some(template(json!({}))),
            refusal: None,
            sandboxes,
            memory: Memory::default(),
            settings: Settings::default(),
            now: at(10),
            made: 0,
        }
    }

    /// What the controller would do now.
    pub fn plan(&self) -> Plan {
        let seen = Seen {
            sandboxes: self.sandboxes.iter().cloned().map(Arc::new).collect(),
            template: self.template.clone().map(Arc::new),
            refusal: self.refusal.clone(),
        };
        plan(&self.pool, &seen, &self.memory, &self.settings, self.now, 0.0)
    }

    /// One pass in which every write succeeds.
    pub fn pass(&mut self) -> Plan {
        let mut plan = self.plan();
        for (name, patch) in &plan.patches {
            let found =
                self.sandboxes.iter_mut().find(|sandbox| sandbox.metadata.name.as_ref() == Some(name));
            let found = found.expect("only what was seen is patched");
            *found = edit(found, patch.clone());
        }
        for identity in &plan.deletions {
            let before = self.sandboxes.len();
            self.sandboxes.retain(|sandbox| sandbox.metadata.uid.as_ref() != Some(&identity.uid));
            assert_eq!(self.sandboxes.len() + 1, before, "what is deleted is there, once");
        }
        if let Some((object, count)) = &plan.create {
            for _ in 0..*count {
                self.made += 1;
                let mut object = object.clone();
                object["metadata"]["name"] = json!(format!("pool-{}", self.made));
                object["metadata"]["uid"] = json!(format!("uid-of-new-{}", self.made));
                object["metadata"]["resourceVersion"] = json!("1");
                object["metadata"]["creationTimestamp"] = json!(self.now.to_string());
                self.sandboxes.push(serde_json::from_value(object).unwrap());
            }
            plan.memory.pace.created(*count);
        }
        self.memory = plan.memory.clone();
        plan
    }

    /// How many are created and deleted in one pass.
    pub fn counts(&mut self) -> (usize, usize) {
        let plan = self.pass();
        (plan.create.map_or(0, |(_, count)| count), plan.deletions.len())
    }

    pub fn status(&self) -> WarmPoolStatus {
        let sandboxes: Vec<_> = self.sandboxes.iter().cloned().map(Arc::new).collect();
        judge(&self.pool, &sandboxes, self.template.as_ref(), self.memory.stuck, self.now)
    }

    pub fn names(&self) -> Vec<&str> {
        self.sandboxes.iter().map(|sandbox| sandbox.metadata.name.as_deref().unwrap()).collect()
    }

    pub fn images(&self) -> Vec<&Value> {
        self.sandboxes
            .iter()
            .map(|sandbox| &sandbox.spec.pod_template.spec["containers"][0]["image"])
            .collect()
    }
}

pub fn pool_hash() -> String {
    name::name_hash("pool")
}

/// The hash of what members of a template are made from.
pub fn hash(template: &Template) -> String {
    Blueprint::of(template).hash().to_owned()
}
