//! The `scale` subresource of custom resources.

use axum::extract::Request;
use axum::response::Response;
use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::{Context, body};
use crate::ops::Part;
use crate::patch::Patch;
use crate::status::{ApiError, FieldError, json_response};

impl Context {
    pub(super) async fn scale(self, name: &str, request: Request) -> Result<Response, ApiError> {
        let (method, headers) = (request.method().clone(), request.headers().clone());
        match method {
            Method::GET | Method::HEAD => {}
            Method::PUT | Method::PATCH => {
                let options = self.query.write_options(Vec::new())?;
                let media_type = body::media_type(&headers).to_owned();
                let raw = body::read(request.into_body()).await?;
                let change = if method == Method::PUT {
                    Change::Replace(body::parse_object(&media_type, &raw)?.0)
                } else if media_type == "application/strategic-merge-patch+json" {
                    Change::Patch(Patch::Merge(body::parse_json(&raw)?))
                } else {
                    Change::Patch(Patch::parse(
                        &media_type,
                        &raw,
                        self.query.get("fieldManager"),
                        &self.target,
                    )?)
                };
                let locked = change.locked_to().map(str::to_owned);
                let step = |current: &Value| self.rescaled(current, &change);
                let (namespace, locked) = (&self.namespace, locked.as_deref());
                self.api.change(&self.target, namespace, name, Part::Main, &options, locked, step)?;
            }
            _ => return Err(ApiError::method_not_allowed()),
        }
        let entry = self.api.get(&self.target, &self.namespace, name)?;
        Ok(json_response(StatusCode::OK, &self.view_scale(&self.target.present(&entry))))
    }

    /// The object with the number of replicas that a change of its scale asks for.
    fn rescaled(&self, current: &Value, change: &Change) -> Result<Value, ApiError> {
        let scale = self.view_scale(current);
        let wanted = match change {
            Change::Replace(wanted) => wanted.clone(),
            Change::Patch(patch) => patch.apply(&scale, &self.target, "")?,
        };
        let replicas = &wanted["spec"]["replicas"];
        if !replicas.as_i64().is_some_and(|count| (0..=i64::from(i32::MAX)).contains(&count)) {
            let name = current["metadata"]["name"].as_str().unwrap_or_default();
            let error = FieldError::invalid("spec.replicas", replicas, "must be greater than or equal to 0");
            return Err(ApiError::invalid("autoscaling", "Scale", name, &[error]));
        }
        let mut object = current.clone();
        if let Some(paths) = &self.target.version().scale {
            set(&mut object, &paths.spec, replicas.clone());
        }
        Ok(object)
    }

    fn view_scale(&self, object: &Value) -> Value {
        let meta = &object["metadata"];
        let mut metadata = json!({});
        for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
            if !meta[field].is_null() {
                metadata[field] = meta[field].clone();
            }
        }
        let number = |path: &str| find(object, path).as_i64().unwrap_or(0);
        let (mut spec, mut status) = (json!({}), json!({ "replicas": 0 }));
        if let Some(paths) = &self.target.version().scale {
            spec["replicas"] = number(&paths.spec).into();
            status["replicas"] = number(&paths.status).into();
            if let Some(selector) = paths.selector.as_deref().and_then(|path| find(object, path).as_str()) {
                status["selector"] = selector.into();
            }
        }
        json!({ "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": spec, "status": status })
    }
}

enum Change {
    Replace(Value),
    Patch(Patch),
}

impl Change {
    fn locked_to(&self) -> Option<&str> {
        match self {
            Change::Replace(scale) => scale["metadata"]["resourceVersion"].as_str().filter(|v| !v.is_empty()),
            Change::Patch(patch) => patch.locked_to(),
        }
    }
}

fn steps(path: &str) -> impl Iterator<Item = &str> {
    path.split('.').filter(|part| !part.is_empty())
}

fn find<'a>(object: &'a Value, path: &str) -> &'a Value {
    steps(path).fold(object, |at, part| &at[part])
}

fn set(object: &mut Value, path: &str, value: Value) {
    let place = steps(path).fold(object, |at, part| {
        if !at.is_object() {
            *at = json!({});
        }
        &mut at[part]
    });
    *place = value;
}
