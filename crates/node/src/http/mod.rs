//! What the API server hands on to the node: `pods/log`, `pods/exec`, `pods/attach`, `pods/portforward`, and measurements.

mod attach;
mod exec;
mod flag;
mod log;
mod metrics;
mod portforward;
mod remote;
mod spdy;

use std::sync::Arc;

use axum::Router;
use axum::extract::Extension;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};
use serde_json::json;

use asb_runtime::Sandbox;

use crate::node::{Node, uid};
use crate::pod::spec;

pub fn routes(node: Node) -> Router {
    let pod = "/api/v1/namespaces/{namespace}/pods/{pod}";
    Router::new()
        .route(&format!("{pod}/log"), get(log::log))
        .route(&format!("{pod}/exec"), get(exec::exec).post(exec::exec))
        .route(&format!("{pod}/attach"), get(attach::attach).post(attach::attach))
        .route(&format!("{pod}/portforward"), get(portforward::portforward).post(portforward::portforward))
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

/// The sandbox of a Pod's container, or why there is none.
async fn sandbox(
    node: &Node,
    namespace: &str,
    name: &str,
    container: Option<&str>,
) -> Result<Sandbox, Failure> {
    sandbox_of(node, &pod(node, namespace, name).await?, container)
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

fn sandbox_of(node: &Node, pod: &Pod, container: Option<&str>) -> Result<Sandbox, Failure> {
    let name = pod.name_any();
    let known = spec::container(pod).map(|container| container.name.as_str()).unwrap_or_default();
    if let Some(wanted) = container.filter(|wanted| !wanted.is_empty() && *wanted != known) {
        return Err(Failure::bad_request(format!(
            "container {wanted} is not valid for pod {name}; it has: {known}"
        )));
    }
    let waiting = || {
        let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
        let waiting = statuses.first()?.state.as_ref()?.waiting.as_ref()?;
        Some(format!(": {}: {}", waiting.reason.as_deref()?, waiting.message.as_deref().unwrap_or_default()))
    };
    node.shared.sandbox(&uid(pod)).ok_or_else(|| {
        let why = waiting().unwrap_or_default();
        Failure::bad_request(format!("container {known:?} in pod {name:?} is waiting to start{why}"))
    })
}
