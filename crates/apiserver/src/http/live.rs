//! Kinds that are measured when they are asked for and never stored: `metrics.k8s.io`.
//!
//! The node answers with all objects there are at this moment, under the path of the whole collection; what of them was
//! asked for, and in which shape, is decided here as for any other kind.

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::table::{Include, Table, metadata_only};
use super::{Context, View, kubelet};
use crate::ops::not_found;
use crate::status::{ApiError, json_response};
use crate::store::Meta;

/// More than the objects of any machine take.
const LARGEST: usize = 64 << 20;

impl Context {
    /// A list, or the object of one name.
    pub(super) async fn live(&self, name: Option<&str>, method: &Method) -> Result<Response, ApiError> {
        if !matches!(*method, Method::GET | Method::HEAD) || self.query.flag("watch") {
            return Err(ApiError::method_not_allowed());
        }
        let selector = self.selector()?;
        let mut objects = self.measured().await?;
        objects.retain(|object| {
            let meta = Meta::of(object, &[]);
            (self.namespace.is_empty() || *meta.namespace == *self.namespace)
                && name.is_none_or(|name| *meta.name == *name)
                && selector.accepts(&meta, object)
        });
        objects.sort_by_key(|object| {
            let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
            (text("namespace"), text("name"))
        });
        if let Some(name) = name
            && objects.is_empty()
        {
            return Err(not_found(&self.target, name));
        }
        let body = match (self.view, name) {
            (View::Table, _) => {
                let include = Include::parse(self.query.text("includeObject"));
                Table::new(&self.target, include).render(json!({}), objects.into_iter(), true)
            }
            (View::Metadata, Some(_)) => objects.first().map(metadata_only).unwrap_or_default(),
            (View::Full, Some(_)) => objects.pop().unwrap_or_default(),
            (View::Metadata, None) => {
                let items: Vec<Value> = objects.iter().map(metadata_only).collect();
                json!({
                    "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {}, "items": items,
                })
            }
            (View::Full, None) => json!({
                "kind": &*self.target.resource.list_kind, "apiVersion": self.target.api_version(),
                "metadata": {}, "items": objects,
            }),
        };
        Ok(json_response(StatusCode::OK, &body))
    }

    /// Every object of the kind, as the node finds it now.
    async fn measured(&self) -> Result<Vec<Value>, ApiError> {
        let path = format!("/apis/{}/{}", self.target.api_version(), self.target.resource.plural);
        let request = Request::get(path).body(Body::empty());
        let request = request.map_err(|error| ApiError::internal(error.to_string()))?;
        let response = kubelet::ask(&self.api, request).await?;
        let code = response.status();
        let body = axum::body::to_bytes(response.into_body(), LARGEST).await;
        let body = body.map_err(|error| ApiError::internal(error.to_string()))?;
        if !code.is_success() {
            return Err(ApiError::unavailable(format!("the node could not measure: it answered {code}")));
        }
        let mut list: Value =
            serde_json::from_slice(&body).map_err(|error| ApiError::internal(error.to_string()))?;
        match list["items"].take() {
            Value::Array(items) => Ok(items),
            _ => Err(ApiError::internal("the node answered with something that is no list")),
        }
    }
}
