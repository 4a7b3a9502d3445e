//! The Sandbox that a pool makes.

use asb_types::{key, name};
use serde_json::{Value, json};

use super::world::*;

fn created(spec: Value, safe_to_evict: bool) -> Value {
    let mut world = World::new(json!({}), vec![]);
    world.template = Some(template(spec));
    world.settings.safe_to_evict = safe_to_evict;
    world.plan().create.expect("an empty pool makes one").0
}

/// WP-10, WP-11, WP-12
#[test]
fn member_carries_where_it_comes_from() {
    let claims = json!([{"metadata": {"name": "b"}, "spec": {}}, {"metadata": {"name": "a"}, "spec": {}}]);
    let spec = json!({
        "podTemplate": {"metadata": {"labels": {"app": "x"}, "annotations": {"note": "n"}}},
        "volumeClaimTemplates": claims, "service": true,
    });
    let object = created(spec.clone(), true);
    let metadata = &object["metadata"];
    assert_eq!(metadata["generateName"], "pool-");
    assert_eq!(metadata["ownerReferences"][0]["uid"], UID);
    assert_eq!(metadata["ownerReferences"][0]["controller"], true);
    assert_eq!(metadata["annotations"], json!({key::TEMPLATE_REF: "web"}));
    let labels = metadata["labels"].as_object().unwrap();
    let pod = &object["spec"]["podTemplate"];
    let wanted = [
        (key::WARM_POOL_SANDBOX, pool_hash()),
        (key::TEMPLATE_REF_HASH, name::name_hash("web")),
        (key::TEMPLATE_HASH, hash(&template(spec))),
    ];
    for (label, value) in wanted {
        assert_eq!(labels[label], value);
        assert_eq!(pod["metadata"]["labels"][label], value, "also on the Pod template");
    }
    assert_eq!(labels[key::POD_TEMPLATE_HASH], pod["metadata"]["labels"][key::POD_TEMPLATE_HASH]);
    assert_eq!((&labels[key::LAUNCH_TYPE], &labels[key::CREATED_BY]), (&json!("warm"), &json!("controller")));
    assert_eq!(labels.len(), 6);
    assert_eq!(pod["metadata"]["labels"]["app"], "x");
    assert_eq!(pod["metadata"]["annotations"], json!({"note": "n", key::SAFE_TO_EVICT: "true"}));
    assert_eq!(object["spec"]["volumeClaimTemplates"], claims);
    assert_eq!(object["spec"]["service"], true);
    assert_eq!(pod["spec"]["automountServiceAccountToken"], false);
    assert_eq!(pod["spec"]["dnsPolicy"], "None");
    let fields: Vec<_> = object["spec"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(fields, ["podTemplate", "service", "volumeClaimTemplates"]);
}

/// WP-13
#[test]
fn word_of_the_template_about_eviction_counts() {
    let noted =
        |value: &str| json!({"podTemplate": {"metadata": {"annotations": {key::SAFE_TO_EVICT: value}}}});
    let note =
        |object: Value| object["spec"]["podTemplate"]["metadata"]["annotations"][key::SAFE_TO_EVICT].clone();
    assert_eq!(note(created(json!({}), true)), "true");
    assert_eq!(note(created(json!({}), false)), Value::Null);
    for enabled in [true, false] {
        assert_eq!(note(created(noted("true"), enabled)), "true");
        assert_eq!(note(created(noted("false"), enabled)), "false");
    }
}
