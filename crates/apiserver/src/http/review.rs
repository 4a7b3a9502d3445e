//! Reviews: questions about the caller, answered and not stored.
//!
//! The port of the API has one token, and its bearer may do everything; so may this user on the socket.

use axum::extract::Request;
use axum::response::Response;
use http::StatusCode;
use serde_json::{Value, json};

use super::Context;
use crate::status::{ApiError, json_response};

/// The caller, under the name that the kubeconfig gives it.
const USER: &str = "agent-sandbox";
const GROUPS: [&str; 2] = ["system:masters", "system:authenticated"];

impl Context {
    pub(super) async fn review(&self, request: Request) -> Result<Response, ApiError> {
        let (mut object, _) = self.read_object(request).await?;
        object["kind"] = (&*self.target.resource.kind).into();
        object["apiVersion"] = self.target.api_version().into();
        object["status"] = status(&self.target.resource.plural);
        Ok(json_response(StatusCode::CREATED, &object))
    }
}

fn status(plural: &str) -> Value {
    match plural {
        "selfsubjectreviews" => json!({ "userInfo": { "username": USER, "groups": GROUPS } }),
        "selfsubjectrulesreviews" => json!({
            "resourceRules": [{ "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"] }],
            "nonResourceRules": [{ "verbs": ["*"], "nonResourceURLs": ["*"] }],
            "incomplete": false,
        }),
        _ => json!({ "allowed": true, "reason": "the bearer of the token may do everything" }),
    }
}
