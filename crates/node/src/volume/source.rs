//! What a claimed volume begins with: nothing, or what another claim of the namespace holds. Pure.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use crate::pod::quantity::bytes;

/// The claim that this one begins as a clone of, and the field that names it. The error names the field at fault.
pub fn of(claim: &PersistentVolumeClaim) -> Result<Option<(&str, &'static str)>, String> {
    let Some(spec) = &claim.spec else { return Ok(None) };
    let elsewhere = spec.data_source_ref.as_ref().and_then(|it| it.namespace.as_deref());
    if let Some(namespace) = elsewhere.filter(|it| Some(*it) != claim.metadata.namespace.as_deref()) {
        return Err(format!(
            "spec.dataSourceRef.namespace: {namespace:?} is another namespace; remove the field"
        ));
    }
    let of_ref =
        spec.data_source_ref.as_ref().map(|it| (&it.api_group, &it.kind, &it.name, "spec.dataSourceRef"));
    let plain = spec.data_source.as_ref().map(|it| (&it.api_group, &it.kind, &it.name, "spec.dataSource"));
    let Some((group, kind, name, field)) = plain.or(of_ref) else { return Ok(None) };
    if kind != "PersistentVolumeClaim" || group.as_deref().is_some_and(|group| !group.is_empty()) {
        return Err(format!("{field}.kind: {kind:?} is not available; use \"PersistentVolumeClaim\""));
    }
    Ok(Some((name, field)))
}

/// Whether a claim asks for at least what its source has.
pub fn fits(claim: &PersistentVolumeClaim, source: &PersistentVolumeClaim) -> Result<(), String> {
    let asked = |claim: &PersistentVolumeClaim| {
        let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
        bytes(requests.get("storage")?)
    };
    match (asked(claim), asked(source)) {
        (Some(asked), Some(has)) if asked < has => {
            Err("spec.resources.requests.storage: is less than what the claim to be cloned asks for"
                .to_owned())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn claim(spec: Value) -> PersistentVolumeClaim {
        serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "a"}, "spec": spec})).unwrap()
    }

    #[test]
    fn another_claim_of_the_namespace_can_be_named_in_either_field() {
        let source = json!({"kind": "PersistentVolumeClaim", "name": "first"});
        assert_eq!(of(&claim(json!({}))), Ok(None));
        assert_eq!(of(&claim(json!({"dataSource": source}))), Ok(Some(("first", "spec.dataSource"))));
        assert_eq!(of(&claim(json!({"dataSourceRef": source}))), Ok(Some(("first", "spec.dataSourceRef"))));
    }

    #[test]
    fn everything_else_is_refused_by_the_field() {
        let snapshot = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
        let far = json!({"kind": "PersistentVolumeClaim", "name": "c", "namespace": "b"});
        for (spec, field) in [
            (json!({"dataSource": snapshot}), "spec.dataSource.kind: "),
            (json!({"dataSourceRef": snapshot}), "spec.dataSourceRef.kind: "),
            (json!({"dataSourceRef": far}), "spec.dataSourceRef.namespace: "),
        ] {
            assert!(of(&claim(spec)).unwrap_err().starts_with(field), "{field}");
        }
    }

    #[test]
    fn clone_is_not_smaller_than_what_it_is_cloned_from() {
        let of = |size: &str| claim(json!({"resources": {"requests": {"storage": size}}}));
        assert_eq!(fits(&of("1Gi"), &of("1Gi")), Ok(()));
        assert!(fits(&of("1Mi"), &of("1Gi")).unwrap_err().starts_with("spec.resources.requests.storage: "));
    }
}
