//! Addresses for Services: chosen and written without anybody else choosing in between.

use std::collections::HashSet;
use std::sync::{MutexGuard, PoisonError};

use serde_json::{Value, json};

use super::{Api, key};
use crate::registry::{Target, service};
use crate::status::{ApiError, FieldError};

impl Api {
    /// Gives a Service that is about to be written the address that it needs. Until what is returned is dropped, nobody
    /// else gets one.
    pub(super) fn assign_address(
        &self,
        target: &Target,
        namespace: &str,
        object: &mut Value,
    ) -> Result<Option<MutexGuard<'_, ()>>, ApiError> {
        if !target.resource.is("", "services") || !service::needs_address(object) {
            return Ok(None);
        }
        let held = self.assigning.lock().unwrap_or_else(PoisonError::into_inner);
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let wanted = object["spec"]["clusterIP"].as_str().filter(|it| !it.is_empty()).map(str::to_owned);
        // The first of the fields that are kept beside each Service.
        let of = |fields: &[Box<str>]| fields.first().cloned().unwrap_or_default();
        let own = self.store.get(&key(target, namespace, &name)).map(|entry| of(&entry.meta.fields));
        if wanted.is_some() && wanted.as_deref() == own.as_deref() {
            return Ok(None);
        }
        let others = self.store.list(&target.resource.collection, "").entries;
        let taken: HashSet<_> =
            others.iter().filter_map(|entry| of(&entry.meta.fields).parse().ok()).collect();
        let invalid = |detail: String| {
            let given = wanted.iter().collect::<Vec<_>>();
            let error = FieldError::invalid("spec.clusterIPs", &json!(given), detail);
            ApiError::invalid("", "Service", &name, &[error])
        };
        let chosen = service::choose(wanted.as_deref(), &taken, rand::random());
        let chosen = chosen.map_err(|error| match (&wanted, error) {
            (Some(wanted), error) => invalid(format!("failed to allocate IP {wanted}: {error}")),
            (None, error) => {
                ApiError::internal(format!("failed to allocate a serviceIP for Service {name:?}: {error}"))
            }
        })?;
        object["spec"]["clusterIP"] = json!(chosen);
        object["spec"]["clusterIPs"] = json!([chosen]);
        Ok(Some(held))
    }
}
