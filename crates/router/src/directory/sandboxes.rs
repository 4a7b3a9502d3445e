//! What is known of Sandboxes that cannot be reached, so that errors are honest.

use std::collections::HashMap;

use super::Key;
use super::objects::{Sandbox, is_pool_member, key, ready};
use super::watch::Table;

#[derive(Default)]
pub struct Sandboxes(HashMap<Key, State>);

#[derive(Debug, PartialEq, Eq)]
pub enum State {
    Suspended,
    /// Meant to run. The message of its Ready condition, empty where there is none.
    Running {
        reason: String,
    },
}

impl Sandboxes {
    pub fn find(&self, namespace: &str, name: &str) -> Option<&State> {
        self.0.get(&(namespace.to_owned(), name.to_owned()))
    }
}

impl Table for Sandboxes {
    type Object = Sandbox;

    fn apply(&mut self, sandbox: Sandbox) {
        let key = key(&sandbox.metadata);
        // Nobody has been given a pool member's name yet, so by name it does not exist.
        if is_pool_member(&sandbox.metadata) {
            self.0.remove(&key);
            return;
        }
        let state = if sandbox.spec.operating_mode.as_deref() == Some("Suspended") {
            State::Suspended
        } else {
            let condition = ready(&sandbox.status.conditions).filter(|condition| condition.status != "True");
            State::Running {
                reason: condition.map(|condition| condition.message.clone()).unwrap_or_default(),
            }
        };
        self.0.insert(key, state);
    }

    fn remove(&mut self, sandbox: Sandbox) {
        self.0.remove(&key(&sandbox.metadata));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use asb_types::key;

    fn sandbox(metadata: serde_json::Value, status: &str) -> Sandbox {
        let mut metadata = metadata;
        metadata["namespace"] = json!("ns");
        metadata["name"] = json!("web");
        let condition = json!({"type": "Ready", "status": status, "message": "why"});
        serde_json::from_value(json!({"metadata": metadata, "status": {"conditions": [condition]}})).unwrap()
    }

    #[test]
    fn a_reason_is_kept_only_while_the_sandbox_is_not_ready() {
        let mut table = Sandboxes::default();
        table.apply(sandbox(json!({}), "False"));
        assert_eq!(table.find("ns", "web"), Some(&State::Running { reason: "why".to_owned() }));
        table.apply(sandbox(json!({}), "True"));
        assert_eq!(table.find("ns", "web"), Some(&State::Running { reason: String::new() }));
    }

    #[test]
    fn a_deleted_sandbox_and_an_unclaimed_pool_member_are_unknown() {
        let mut table = Sandboxes::default();
        table.apply(sandbox(json!({}), "True"));
        table.remove(sandbox(json!({}), "True"));
        assert_eq!(table.find("ns", "web"), None);
        table.apply(sandbox(json!({"labels": {key::WARM_POOL_SANDBOX: "pool"}}), "True"));
        assert_eq!(table.find("ns", "web"), None);
    }
}
