//! Requests that only the node can answer: logs, exec, attach, port-forward, measurements.

use axum::extract::Request;
use axum::response::Response;
use tower::ServiceExt as _;

use super::Context;
use crate::ops::Api;
use crate::status::ApiError;

impl Context {
    /// Hands the request on as it came. For an object that does not exist this fails, unless the request can wait for it.
    pub(super) async fn kubelet(self, name: &str, request: Request) -> Result<Response, ApiError> {
        if !request.headers().contains_key("prefer") {
            self.api.get(&self.target, &self.namespace, name)?;
        }
        ask(&self.api, request).await
    }
}

pub(super) async fn ask(api: &Api, request: Request) -> Result<Response, ApiError> {
    let kubelet = api.kubelet.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
    let kubelet = kubelet.ok_or_else(|| ApiError::unavailable("no node is running that could serve this"))?;
    match kubelet.oneshot(request).await {
        Ok(response) => Ok(response),
        Err(never) => match never {},
    }
}
