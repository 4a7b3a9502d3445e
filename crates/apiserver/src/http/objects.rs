//! Requests about one object, and deletion of many.

use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use super::table::{Include, Table, metadata_only};
use super::{Context, View, body};
use crate::ops::{DeleteOptions, Deleted, Part, Propagation, WriteOptions, Written};
use crate::patch::Patch;
use crate::selector::Selector;
use crate::status::{ApiError, FieldError, json_response, raw_response};
use crate::store::Entry;

/// Kinds whose deletion is answered with the object instead of a success message.
const RETURNED: [&str; 5] =
    ["pods", "services", "persistentvolumeclaims", "persistentvolumes", "serviceaccounts"];

impl Context {
    pub(super) fn get(&self, name: &str) -> Result<Response, ApiError> {
        let entry = match self.at {
            Some(revision) => self.api.get_at(&self.target, &self.namespace, name, revision)?,
            None => self.api.get(&self.target, &self.namespace, name)?,
        };
        Ok(raw_response(StatusCode::OK, self.show(&entry)))
    }

    pub(super) async fn create(&self, request: Request) -> Result<Response, ApiError> {
        let (object, options) = self.read_object(request).await?;
        if self.target.resource.namespaced && self.namespace.is_empty() {
            return Err(ApiError::method_not_allowed());
        }
        let written = self.api.create(&self.target, &self.namespace, object, &options)?;
        Ok(self.written(&written))
    }

    pub(super) async fn replace(
        &self,
        name: &str,
        part: Part,
        request: Request,
    ) -> Result<Response, ApiError> {
        let (object, options) = self.read_object(request).await?;
        let written = self.api.replace(&self.target, &self.namespace, name, object, part, &options)?;
        Ok(self.written(&written))
    }

    pub(super) async fn patch(&self, name: &str, part: Part, request: Request) -> Result<Response, ApiError> {
        let options = self.query.write_options(Vec::new())?;
        let media_type = body::media_type(request.headers()).to_owned();
        let raw = body::read(request.into_body()).await?;
        let patch = Patch::parse(&media_type, &raw, self.query.get("fieldManager"), &self.target)?;
        let written = self.api.patch(&self.target, &self.namespace, name, &patch, part, &options)?;
        Ok(self.written(&written))
    }

    pub(super) async fn delete(&self, name: &str, request: Request) -> Result<Response, ApiError> {
        let options = self.delete_options(request).await?;
        match self.api.delete(&self.target, &self.namespace, name, &options)? {
            Deleted::Gone(entry) if RETURNED.contains(&&*self.target.resource.collection) => {
                Ok(raw_response(StatusCode::OK, self.show(&entry)))
            }
            Deleted::Marked(entry) => Ok(raw_response(StatusCode::OK, self.show(&entry))),
            Deleted::Gone(entry) => {
                let resource = &self.target.resource;
                let mut details = json!({ "name": name, "kind": &*resource.plural, "uid": &*entry.meta.uid });
                if !resource.group.is_empty() {
                    details["group"] = (&*resource.group).into();
                }
                let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details });
                Ok(json_response(StatusCode::OK, &status))
            }
        }
    }

    pub(super) async fn delete_collection(&self, request: Request) -> Result<Response, ApiError> {
        let selector = self.selector()?;
        let options = self.delete_options(request).await?;
        let prefix = self.prefix();
        let snapshot = self.api.store.list(&self.target.resource.collection, &prefix);
        let chosen = snapshot.entries.into_iter().filter(|entry| selector.matches(entry));
        for entry in chosen {
            match self.api.delete(&self.target, &entry.meta.namespace, &entry.meta.name, &options) {
                Err(error) if error.code != 404 => return Err(error),
                _ => tokio::task::consume_budget().await,
            }
        }
        Ok(json_response(
            StatusCode::OK,
            &json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success" }),
        ))
    }

    pub(super) fn selector(&self) -> Result<Selector, ApiError> {
        let fields = crate::registry::builtin::selectable_fields(&self.target.resource.collection);
        let asked = self.query.text("fieldSelector");
        let asked = match self.target.resource.form {
            crate::registry::Form::NewEvents => asked.replace("regarding.", "involvedObject."),
            _ => asked.to_owned(),
        };
        let own = &self.target.version().selectable;
        Selector::parse(self.query.text("labelSelector"), &asked, fields, own)
    }

    /// The start of the paths that this request covers.
    pub(super) fn prefix(&self) -> String {
        if self.namespace.is_empty() { String::new() } else { format!("{}/", self.namespace) }
    }

    /// An entry in the shape that was asked for.
    pub(super) fn show(&self, entry: &Entry) -> Bytes {
        match self.view {
            View::Full => self.target.render(entry),
            View::Metadata => metadata_only(&self.target.present(entry)).to_string().into(),
            View::Table => {
                let include = Include::parse(self.query.text("includeObject"));
                let metadata = json!({ "resourceVersion": entry.revision.to_string() });
                let objects = std::iter::once(self.target.present(entry));
                Table::new(&self.target, include).render(metadata, objects, true).to_string().into()
            }
        }
    }

    pub(super) fn written(&self, written: &Written) -> Response {
        let code = if written.created { StatusCode::CREATED } else { StatusCode::OK };
        let mut response = raw_response(code, self.show(&written.entry));
        for warning in &written.warnings {
            super::warn(&mut response, warning);
        }
        response
    }

    pub(super) async fn read_object(&self, request: Request) -> Result<(Value, WriteOptions), ApiError> {
        let media_type = body::media_type(request.headers()).to_owned();
        let raw = body::read(request.into_body()).await?;
        let (object, duplicates) = body::parse_object(&media_type, &raw)?;
        Ok((object, self.query.write_options(duplicates)?))
    }

    /// Options come in the body or, from simpler clients, in the query.
    async fn delete_options(&self, request: Request) -> Result<DeleteOptions, ApiError> {
        let media_type = body::media_type(request.headers()).to_owned();
        let raw = body::read(request.into_body()).await?;
        let given = if raw.is_empty() { Value::Null } else { body::parse_object(&media_type, &raw)?.0 };
        self.delete_options_of(&given)
    }

    pub(super) fn delete_options_of(&self, given: &Value) -> Result<DeleteOptions, ApiError> {
        let text = |field: &str| given[field].as_str().or(self.query.get(field));
        let propagation = match text("propagationPolicy") {
            None => None,
            Some("Background") => Some(Propagation::Background),
            Some("Foreground") => Some(Propagation::Foreground),
            Some("Orphan") => Some(Propagation::Orphan),
            Some(other) => {
                let known = ["Foreground", "Background", "Orphan"].map(Value::from);
                let error = FieldError::unsupported("propagationPolicy", &other.into(), &known);
                return Err(ApiError::invalid("meta.k8s.io", "DeleteOptions", "", &[error]));
            }
        };
        let orphan = given["orphanDependents"] == true || self.query.flag("orphanDependents");
        let grace = match &given["gracePeriodSeconds"] {
            Value::Null => self.query.number("gracePeriodSeconds")?.and_then(|n| i64::try_from(n).ok()),
            value => Some(
                value
                    .as_i64()
                    .ok_or_else(|| ApiError::bad_request("gracePeriodSeconds must be a whole number"))?,
            ),
        };
        let precondition = |field: &str| given["preconditions"][field].as_str().map(str::to_owned);
        let dry_run =
            given["dryRun"].as_array().is_some_and(|list| !list.is_empty()) || self.query.dry_run()?;
        Ok(DeleteOptions {
            grace,
            propagation: propagation.or(orphan.then_some(Propagation::Orphan)),
            uid: precondition("uid"),
            revision: precondition("resourceVersion"),
            dry_run,
        })
    }
}
