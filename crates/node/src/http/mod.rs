//! What the API server hands on to the node: `pods/log`, `pods/exec`, `pods/attach`, `pods/portforward`,
//! `pods/proxy`, and measurements.

mod attach;
mod exec;
mod flag;
mod log;
mod log_options;
mod metrics;
mod patience;
mod portforward;
mod proxy;
mod remote;
mod spdy;

use std::sync::Arc;

use axum::Router;
use axum::extract::Extension;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::{Api, ResourceExt};
use serde_json::json;

use asb_runtime::Sandbox;

use crate::node::{Node, uid};
use crate::pod::container::Slot;

pub fn routes(node: Node) -> Router {
    let pod = "/api/v1/namespaces/{namespace}/pods/{pod}";
    Router::new()
        .route(&format!("{pod}/log"), get(log::log))
        .route(&format!("{pod}/exec"), get(exec::exec).post(exec::exec))
        .route(&format!("{pod}/attach"), get(attach::attach).post(attach::attach))
        .route(&format!("{pod}/portforward"), get(portforward::portforward).post(portforward::portforward))
        .route(&format!("{pod}/proxy/"), any(proxy::proxy))
        .route(&format!("{pod}/proxy/{{*path}}"), any(proxy::proxy))
        .route("/apis/metrics.k8s.io/v1beta1/pods", get(metrics::pods))
        .route("/apis/metrics.k8s.io/v1beta1/nodes", get(metrics::nodes))
        .route("/api/v1/nodes/{node}/proxy/stats/summary", get(metrics::summary))
        .layer(Extension(Arc::new(metrics::Meter::default())))
        .with_state(node)
}

/// A failure as Kubernetes clients expect it.
pub struct Failure {
    code: StatusCode,
    reason: &'static str,
    message: String,
}

impl Failure {
    fn bad_request(message: impl Into<String>) -> Self {
        Self { code: StatusCode::BAD_REQUEST, reason: "BadRequest", message: message.into() }
    }

    fn internal(message: impl Into<String>) -> Self {
        Self { code: StatusCode::INTERNAL_SERVER_ERROR, reason: "InternalError", message: message.into() }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code.as_u16(),
        });
        (self.code, axum::Json(status)).into_response()
    }
}

async fn pod(node: &Node, namespace: &str, name: &str) -> Result<Pod, Failure> {
    let api: Api<Pod> = Api::namespaced(node.shared.client.clone(), namespace);
    api.get(name).await.map_err(|error| match error {
        kube::Error::Api(status) if status.code == 404 => {
            Failure { code: StatusCode::NOT_FOUND, reason: "NotFound", message: status.message }
        }
        other => Failure::internal(other.to_string()),
    })
}

/// The sandbox of the container that is meant, or why there is none.
fn sandbox_of(node: &Node, pod: &Pod, container: Option<&str>) -> Result<Sandbox, Failure> {
    has_containers(node, pod)?;
    let slot = slot(pod, container)?;
    node.shared.sandbox(&uid(pod), slot).ok_or_else(|| {
        let (name, known) = (pod.name_any(), slot.name(pod));
        let why = waiting(pod, slot).unwrap_or_default();
        Failure::bad_request(format!("container {known:?} in pod {name:?} is waiting to start{why}"))
    })
}

/// Refuses what only a Pod with containers of its own can do.
fn has_containers(node: &Node, pod: &Pod) -> Result<(), Failure> {
    match node.engine_pod(pod) {
        None => Ok(()),
        Some(own) => Err(Failure::bad_request(format!(
            "pod {} is a part of the engine and has no container: use port-forward; its log is the engine's log",
            own.name
        ))),
    }
}

/// The container that is meant: the one that is named, or the only one.
fn slot(pod: &Pod, container: Option<&str>) -> Result<Slot, Failure> {
    let name = pod.name_any();
    let all = Slot::with_ephemeral(pod);
    let names = |of: fn(&Slot) -> bool| -> String {
        let some = all.iter().filter(|slot| of(slot)).map(|slot| slot.name(pod));
        some.collect::<Vec<_>>().join(" ")
    };
    let mut choices = format!("[{}]", names(|it| matches!(it, Slot::Main(_))));
    let others = [
        ("init", names(|it| matches!(it, Slot::Init(_)))),
        ("ephemeral", names(|it| matches!(it, Slot::Ephemeral(_)))),
    ];
    for (kind, names) in others.iter().filter(|(_, names)| !names.is_empty()) {
        choices.push_str(&format!(" or, of its {kind} containers, [{names}]"));
    }
    match container.filter(|wanted| !wanted.is_empty()) {
        Some(wanted) => Slot::named(pod, wanted).ok_or_else(|| {
            Failure::bad_request(format!("container {wanted} is not valid for pod {name}; it has: {choices}"))
        }),
        None if pod.spec.as_ref().is_some_and(|spec| spec.containers.len() > 1) => {
            Err(Failure::bad_request(format!("pod {name} has several containers; name one of: {choices}")))
        }
        None => Ok(Slot::Main(0)),
    }
}

/// What its status says about a container that waits.
fn waiting(pod: &Pod, slot: Slot) -> Option<String> {
    let waiting = status(pod, slot)?.state.as_ref()?.waiting.as_ref()?;
    Some(format!(": {}: {}", waiting.reason.as_deref()?, waiting.message.as_deref().unwrap_or_default()))
}

fn status(pod: &Pod, slot: Slot) -> Option<&ContainerStatus> {
    let status = pod.status.as_ref()?;
    let all = match slot {
        Slot::Main(_) => status.container_statuses.as_ref()?,
        Slot::Init(_) => status.init_container_statuses.as_ref()?,
        Slot::Ephemeral(_) => status.ephemeral_container_statuses.as_ref()?,
    };
    let name = slot.name(pod);
    all.iter().find(|status| status.name == *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_is_the_one_named_or_the_only_one() {
        let pod = |mains: &[&str]| -> Pod {
            let containers: Vec<_> = mains.iter().map(|name| json!({"name": name})).collect();
            let spec = json!({"containers": containers, "initContainers": [{"name": "first"}]});
            serde_json::from_value(json!({"metadata": {"name": "box"}, "spec": spec})).unwrap()
        };
        let of = |mains: &[&str], wanted| slot(&pod(mains), wanted).map_err(|failure| failure.message);
        assert_eq!(of(&["a"], None), Ok(Slot::Main(0)));
        assert_eq!(of(&["a", "b"], Some("b")), Ok(Slot::Main(1)));
        assert_eq!(of(&["a"], Some("first")), Ok(Slot::Init(0)));
        assert!(of(&["a", "b"], None).unwrap_err().contains("[a b] or, of its init containers, [first]"));
        assert!(of(&["a"], Some("x")).unwrap_err().contains("x is not valid for pod box; it has: [a]"));
    }
}
