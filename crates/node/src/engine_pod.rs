//! A Pod that the engine serves itself, as a kubelet shows its static Pods.
//!
//! The engine keeps the Pod object and its status; the node starts no container for it, and hands `pods/portforward` to
//! the part of the engine that the Pod stands for. Only the Pod of this name that carries the mirror annotation is meant:
//! another one with the same name is an ordinary Pod.

use std::io;
use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use tokio::io::DuplexStream;

use crate::node::Node;

/// The annotation of a Pod that only mirrors what runs on its node.
pub const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// Connects to a port of the part of the engine that a Pod stands for.
pub type Connect = Arc<dyn Fn(u16) -> BoxFuture<'static, io::Result<DuplexStream>> + Send + Sync>;

/// Which Pod it is, and what answers on its ports.
pub struct EnginePod {
    pub namespace: String,
    pub name: String,
    pub connect: Connect,
}

impl EnginePod {
    fn is(&self, pod: &Pod) -> bool {
        let meta = &pod.metadata;
        meta.name.as_ref() == Some(&self.name)
            && meta.namespace.as_ref() == Some(&self.namespace)
            && pod.annotations().contains_key(MIRROR_ANNOTATION)
    }
}

impl Node {
    /// Makes the node leave this Pod to the engine. To be called once, before [`Node::run`].
    pub fn set_engine_pod(&self, pod: EnginePod) {
        let again = self.shared.engine_pod.set(pod).is_err();
        debug_assert!(!again, "the engine has one Pod");
    }

    /// What answers on the ports of `pod`, if the engine serves it itself.
    pub(crate) fn engine_pod(&self, pod: &Pod) -> Option<&EnginePod> {
        self.shared.engine_pod.get().filter(|own| own.is(pod))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_the_mirror_of_that_name_belongs_to_the_engine() {
        let connect: Connect = Arc::new(|_| Box::pin(async { Err(io::ErrorKind::NotConnected.into()) }));
        let own = EnginePod { namespace: "system".to_owned(), name: "router".to_owned(), connect };
        let is = |namespace: &str, name: &str, annotations: serde_json::Value| {
            let metadata = json!({"namespace": namespace, "name": name, "annotations": annotations});
            own.is(&serde_json::from_value(json!({"metadata": metadata})).unwrap())
        };
        let mirror = || json!({MIRROR_ANNOTATION: "x"});
        assert!(is("system", "router", mirror()));
        assert!(!is("system", "router", json!({})));
        assert!(!is("system", "other", mirror()));
        assert!(!is("default", "router", mirror()));
    }
}
