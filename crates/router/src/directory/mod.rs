//! Where every sandbox is, from watches of Pods and Sandboxes.
//!
//! ```text
//! [ Pod ] ─► pods: Sandbox UID ─► target ◄─ namespace/name        who can be reached
//! [ Sandbox ] ─► sandboxes: namespace/name ─► mode, readiness     why somebody cannot
//! ```
//!
//! Both tables are plain values; `watch` is the only part that does I/O.

mod objects;
mod pods;
mod sandboxes;
mod watch;

use std::net::IpAddr;
use std::sync::{PoisonError, RwLock};

use pods::Pods;
use sandboxes::{Sandboxes, State};

use crate::dial::Target;
use crate::error::Error;
use crate::request::Address;

pub use watch::{Watching, watch};

/// The namespace and name of an object.
type Key = (String, String);

#[derive(Default)]
pub struct Directory {
    pods: RwLock<Pods>,
    sandboxes: RwLock<Sandboxes>,
}

/// What the directory knows about an address.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    Ready(Target),
    Suspended,
    NotReady { reason: String },
    Unknown,
}

// === impl Directory ===

impl Directory {
    pub fn lookup(&self, address: &Address) -> Found {
        let pods = self.pods.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(target) = pods.find(&address.namespace, &address.name, address.uid.as_deref()) {
            return Found::Ready(target.clone());
        }
        drop(pods);
        let sandboxes = self.sandboxes.read().unwrap_or_else(PoisonError::into_inner);
        match sandboxes.find(&address.namespace, &address.name) {
            None => Found::Unknown,
            Some(State::Suspended) => Found::Suspended,
            Some(State::Running { reason }) => Found::NotReady { reason: reason.clone() },
        }
    }
}

// === impl Found ===

impl Found {
    /// Where the sandbox is, if it can be reached.
    pub fn known_address(&self) -> Option<IpAddr> {
        match self {
            Self::Ready(target) => Some(target.address),
            _ => None,
        }
    }

    /// The target, or why `address` cannot be served.
    pub fn target(self, address: &Address) -> Result<Target, Error> {
        let sandbox = || format!("{}/{}", address.namespace, address.name);
        match self {
            // `X-Sandbox-Pod-IP` is not asked. A caller may not choose addresses: one that could would reach everything
            // the router's network reaches. Nor is a wrong one refused: clients keep the address they saw first, and
            // after a suspend and resume it is an old one while the name still says exactly whom they mean.
            Self::Ready(target) => Ok(target),
            Self::Suspended => {
                Err(Error::Suspended { namespace: address.namespace.clone(), name: address.name.clone() })
            }
            Self::NotReady { reason } => Err(Error::NotReady { sandbox: sandbox(), reason }),
            Self::Unknown => Err(Error::Unknown { sandbox: sandbox() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::watch::Table;
    use super::*;

    fn address(name: &str) -> Address {
        Address {
            namespace: "ns".to_owned(),
            name: name.to_owned(),
            port: 8888,
            uid: None,
            pod_address: None,
            timeout: None,
        }
    }

    #[test]
    fn each_state_of_a_sandbox_has_its_answer() {
        let directory = Directory::default();
        let pod = objects::test_pod("web", "uid-web", json!({}));
        directory.pods.write().unwrap().apply(pod);
        for (name, spec, condition) in [
            ("asleep", json!({"operatingMode": "Suspended"}), json!({"type": "Ready", "status": "False"})),
            ("early", json!({}), json!({"type": "Ready", "status": "False", "message": "Pod is Pending"})),
        ] {
            let sandbox = json!({
                "metadata": {"namespace": "ns", "name": name}, "spec": spec, "status": {"conditions": [condition]},
            });
            directory.sandboxes.write().unwrap().apply(serde_json::from_value(sandbox).unwrap());
        }
        assert_eq!(directory.lookup(&address("web")).known_address(), Some([10, 0, 0, 5].into()));
        assert_eq!(directory.lookup(&address("asleep")), Found::Suspended);
        assert_eq!(
            directory.lookup(&address("early")),
            Found::NotReady { reason: "Pod is Pending".to_owned() }
        );
        assert_eq!(directory.lookup(&address("nobody")), Found::Unknown);
    }

    #[test]
    fn the_callers_idea_of_an_address_changes_nothing() {
        let directory = Directory::default();
        directory.pods.write().unwrap().apply(objects::test_pod("web", "uid-web", json!({})));
        let mut address = address("web");
        let told = directory.lookup(&address).target(&address).unwrap();
        for given in [[10, 0, 0, 5], [10, 0, 0, 6]] {
            address.pod_address = Some(given.into());
            assert_eq!(directory.lookup(&address).target(&address), Ok(told.clone()));
        }
    }
}
