//! PersistentVolumes: the checks of a spec, and what an update may not change.

use asb_types::Quantity;
use serde_json::{Value, json};

use super::claim::MODES;
use super::field::{Errors, Field};
use crate::names::Rule;
use crate::status::FieldError;

/// The fields of a spec that are no source of the volume.
const NO_SOURCE: [&str; 9] = [
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
];
const POLICIES: [&str; 3] = ["Delete", "Recycle", "Retain"];

pub(super) fn validate(volume: &Value, old: Option<&Value>, errors: &mut Errors) {
    let root = Field::root(volume);
    let spec = root.get("spec");
    let modes = spec.get("accessModes");
    if modes.items().next().is_none() {
        modes.missing("", errors);
    }
    // kube-apiserver leaves the index of the mode out of the path.
    modes.items().for_each(|mode| modes.with(mode.value).one_of(&MODES, errors));
    check_capacity(&spec.get("capacity"), errors);
    spec.get("persistentVolumeReclaimPolicy").one_of(&POLICIES, errors);
    spec.get("storageClassName").named(Rule::Subdomain, errors);
    spec.get("volumeMode").one_of(&["Block", "Filesystem"], errors);
    let mut given = sources(spec.value);
    if given.next().is_none() {
        spec.missing("must specify a volume type", errors);
    }
    given.for_each(|(name, _)| spec.get(name).forbidden("may not specify more than 1 volume type", errors));
    let spell =
        |volume: &Value| sources(&volume["spec"]).map(|(_, source)| source.clone()).collect::<Vec<_>>();
    if old.is_some_and(|old| spell(old) != spell(volume)) {
        let field = "spec.persistentvolumesource";
        errors.push(FieldError::forbidden(field, "spec.persistentvolumesource is immutable after creation"));
    }
}

fn check_capacity(capacity: &Field<'_, '_>, errors: &mut Errors) {
    let entries = capacity.value.as_object().map(serde_json::Map::len).unwrap_or_default();
    if entries == 0 {
        return capacity.missing("", errors);
    }
    let storage = capacity.key("storage");
    if !storage.is_given() || entries > 1 {
        errors.push(FieldError::unsupported(capacity.path(), capacity.value, &[json!("storage")]));
    }
    if Quantity::of(storage.value).is_some_and(|size| !size.is_positive()) {
        storage.invalid("must be greater than zero", errors);
    }
}

fn sources(spec: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let fields = spec.as_object().into_iter().flatten();
    fields.map(|(name, value)| (name.as_str(), value)).filter(|(name, _)| !NO_SOURCE.contains(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_checked_by_field() {
        let volume = |fields: Value| {
            let mut spec = json!({
                "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" }, "hostPath": { "path": "/data" },
            });
            for (field, value) in fields.as_object().expect("fields") {
                spec[field] = value.clone();
            }
            json!({ "spec": spec })
        };
        let problems = |volume: &Value, old: Option<&Value>| {
            let mut errors = Errors::new();
            validate(volume, old, &mut errors);
            errors.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let right = volume(json!({}));
        assert!(problems(&right, None).is_empty());
        for (fields, wanted) in [
            (json!({ "accessModes": [] }), "spec.accessModes: Required value"),
            (json!({ "accessModes": ["RWO"] }), "spec.accessModes: Unsupported value: \"RWO\""),
            (json!({ "capacity": {} }), "spec.capacity: Required value"),
            (json!({ "capacity": { "cpu": "1" } }), "spec.capacity: Unsupported value"),
            (
                json!({ "capacity": { "storage": "0" } }),
                "spec.capacity[storage]: Invalid value: \"0\": must be greater than zero",
            ),
            (json!({ "hostPath": null }), "spec: Required value: must specify a volume type"),
            (
                json!({ "nfs": { "server": "s", "path": "/" } }),
                "spec.nfs: Forbidden: may not specify more than 1 volume type",
            ),
            (
                json!({ "persistentVolumeReclaimPolicy": "Keep" }),
                "spec.persistentVolumeReclaimPolicy: Unsupported value: \"Keep\"",
            ),
        ] {
            let mut wrong = volume(fields);
            wrong["spec"].as_object_mut().expect("an object").retain(|_, value| !value.is_null());
            let found = problems(&wrong, None);
            assert!(found.len() == 1 && found[0].starts_with(wanted), "{wanted}: {found:?}");
        }
        let moved = volume(json!({ "hostPath": { "path": "/other" } }));
        assert!(problems(&moved, Some(&right))[0].starts_with("spec.persistentvolumesource: Forbidden"));
        assert!(problems(&volume(json!({ "claimRef": { "name": "c" } })), Some(&right)).is_empty());
    }
}
