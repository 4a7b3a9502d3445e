//! PersistentVolumeClaims: the checks of a spec, also as a template in a Pod.

use serde_json::Value;

use super::field::{Errors, Field};
use super::pod::check_quantity;
use crate::names::Rule;
use crate::status::FieldError;
use asb_types::Quantity;

pub(super) const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const ALONE: &str = "ReadWriteOncePod";

pub(super) fn validate_spec(spec: &Field<'_, '_>, errors: &mut Errors) {
    let modes = spec.get("accessModes");
    let given: Vec<&Value> = modes.items().map(|mode| mode.value).collect();
    if given.is_empty() {
        modes.missing("at least 1 access mode is required", errors);
    }
    // kube-apiserver leaves the index of the mode out of the path.
    given.iter().for_each(|mode| modes.with(mode).one_of(&MODES, errors));
    if given.iter().any(|mode| **mode == ALONE) && given.iter().any(|mode| **mode != ALONE) {
        modes.forbidden("may not use ReadWriteOncePod with other access modes", errors);
    }
    spec.get("selector").selector(errors);
    check_size(spec, errors);
    spec.get("storageClassName").named(Rule::Subdomain, errors);
    spec.get("volumeAttributesClassName").named(Rule::Subdomain, errors);
    spec.get("volumeMode").one_of(&["Block", "Filesystem"], errors);
    for field in ["dataSource", "dataSourceRef"] {
        let source = spec.get(field);
        if source.is_given() {
            source.get("kind").required(errors);
            source.get("name").required(errors);
        }
    }
    let (old, new) = (spec.get("dataSource"), spec.get("dataSourceRef"));
    let same = ["apiGroup", "kind", "name"].iter().all(|field| old.value[*field] == new.value[*field]);
    if old.is_given() && new.is_given() && !same {
        errors.push(FieldError::invalid(spec.path(), &old.path().into(), "must match dataSourceRef"));
    }
}

/// The size that is asked for, which kube-apiserver reports under a path of its own.
fn check_size(spec: &Field<'_, '_>, errors: &mut Errors) {
    let size = &spec.value["resources"]["requests"]["storage"];
    let path = format!("{}.resources[storage]", spec.path());
    match Quantity::of(size) {
        _ if size.is_null() => errors.push(FieldError::required(path, "")),
        Some(quantity) if !quantity.is_positive() => {
            errors.push(FieldError::invalid(path, size, "must be greater than zero"));
        }
        _ => {}
    }
    for (name, limit) in spec.get("resources").get("limits").entries() {
        check_quantity(name, &limit, errors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn claims_are_checked_by_field() {
        let claim = |fields: Value| {
            let mut spec = json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } });
            for (field, value) in fields.as_object().expect("fields") {
                spec[field] = value.clone();
            }
            let (claim, mut errors) = (json!({ "spec": spec }), Errors::new());
            validate_spec(&Field::root(&claim).get("spec"), &mut errors);
            errors.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert!(claim(json!({})).is_empty());
        let supported =
            "supported values: \"ReadOnlyMany\", \"ReadWriteMany\", \"ReadWriteOnce\", \"ReadWriteOncePod\"";
        for (fields, wanted) in [
            (json!({ "accessModes": [] }), "spec.accessModes: Required value: at least 1 access mode is required".to_owned()),
            (json!({ "accessModes": ["RWO"] }), format!("spec.accessModes: Unsupported value: \"RWO\": {supported}")),
            (
                json!({ "accessModes": ["ReadWriteOncePod", "ReadWriteOnce"] }),
                "spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes".to_owned(),
            ),
            (json!({ "resources": {} }), "spec.resources[storage]: Required value".to_owned()),
            (
                json!({ "resources": { "requests": { "storage": "0" } } }),
                "spec.resources[storage]: Invalid value: \"0\": must be greater than zero".to_owned(),
            ),
            (
                json!({ "resources": { "requests": { "storage": "-1Gi" } } }),
                "spec.resources[storage]: Invalid value: \"-1Gi\": must be greater than zero".to_owned(),
            ),
            (
                json!({ "volumeMode": "filesystem" }),
                "spec.volumeMode: Unsupported value: \"filesystem\": supported values: \"Block\", \"Filesystem\"".to_owned(),
            ),
            (json!({ "dataSource": { "kind": "PersistentVolumeClaim" } }), "spec.dataSource.name: Required value".to_owned()),
        ] {
            assert_eq!(claim(fields.clone()), [wanted], "{fields}");
        }
    }
}
