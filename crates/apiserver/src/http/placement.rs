//! `pods/binding` and `pods/eviction`: what schedulers and `kubectl drain` ask for.

use axum::extract::Request;
use axum::response::Response;
use http::{Method, StatusCode};
use serde_json::json;

use super::Context;
use crate::ops::Disruption;
use crate::status::{ApiError, json_response};

impl Context {
    pub(super) async fn binding(&self, name: &str, request: Request) -> Result<Response, ApiError> {
        if request.method() != Method::POST {
            return Err(ApiError::method_not_allowed());
        }
        let (binding, options) = self.read_object(request).await?;
        self.api.bind(&self.target, &self.namespace, name, &binding, options.dry_run)?;
        Ok(done())
    }

    /// There are no PodDisruptionBudgets: every Pod may be evicted.
    pub(super) async fn eviction(&self, name: &str, request: Request) -> Result<Response, ApiError> {
        if request.method() != Method::POST {
            return Err(ApiError::method_not_allowed());
        }
        let (eviction, written) = self.read_object(request).await?;
        let named = eviction["metadata"]["name"].as_str().unwrap_or_default();
        if !named.is_empty() && named != name {
            return Err(ApiError::bad_request("name in URL does not match name in Eviction object"));
        }
        let mut options = self.delete_options_of(&eviction["deleteOptions"])?;
        options.dry_run |= written.dry_run;
        let pod = self.api.get(&self.target, &self.namespace, name)?;
        self.api.evict(pod, Disruption::Request, options)?;
        Ok(done())
    }
}

fn done() -> Response {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201,
    });
    json_response(StatusCode::CREATED, &status)
}
