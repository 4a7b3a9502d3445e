//! Round trips of arbitrary objects.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::tests::{CLAIM_STATE, SANDBOX_STATE, object, to_alpha, to_beta};
use super::*;

/// Some JSON that no version knows, as a field of an object.
fn anything() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from)
    ]
}

fn name() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!("it")),
        Just(json!("none")),
        Just(json!("default")),
        Just(json!("")),
        "[a-c]{1,2}".prop_map(Value::from),
        "[a-c]-[a-c]{1,2}".prop_map(Value::from),
        "shadow-pool-[a-c]?".prop_map(Value::from),
    ]
}

/// Sets some of `fields`, each with its own chance of being there.
fn some(fields: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    let each: Vec<_> = fields
        .into_iter()
        .map(|(name, values)| {
            prop::option::of(values).prop_map(move |value| value.map(|value| (name.to_owned(), value)))
        })
        .collect();
    each.prop_map(|fields| Value::Object(fields.into_iter().flatten().collect::<Map<_, _>>())).boxed()
}

fn status() -> BoxedStrategy<Value> {
    some(vec![("unknown", anything().boxed()), ("conditions", Just(json!([{"type": "Ready"}])).boxed())])
}

fn volumes() -> BoxedStrategy<Value> {
    prop_oneof![Just(json!([])), Just(json!([{"metadata": {"name": "data"}, "spec": {"x": 1}}]))].boxed()
}

fn reference() -> BoxedStrategy<Value> {
    name().prop_map(|name| json!({"name": name})).boxed()
}

fn count() -> BoxedStrategy<Value> {
    (0..3).prop_map(Value::from).boxed()
}

/// An object with these fields in spec and status.
fn arbitrary(
    version: &'static str,
    kind: &'static str,
    spec: BoxedStrategy<Value>,
    more: BoxedStrategy<Value>,
) -> BoxedStrategy<Value> {
    let annotations = prop::option::of("[a-z]{0,4}");
    (spec, status(), more, annotations, any::<bool>())
        .prop_map(move |(spec, mut status, more, note, has_status)| {
            let mut object = object(version, kind, "it", spec);
            if let (Value::Object(status), Value::Object(more)) = (&mut status, more) {
                status.extend(more);
            }
            if has_status && status != json!({}) {
                object["status"] = status;
            }
            if let Some(note) = note {
                object["metadata"]["annotations"] = json!({"mine": note});
            }
            object
        })
        .boxed()
}

fn beta_objects() -> BoxedStrategy<Value> {
    let bound = || {
        prop::option::of(reference())
            .prop_map(|sandbox| sandbox.map_or(json!({}), |it| json!({"sandbox": it})))
    };
    let mode = prop_oneof![Just(json!("Running")), Just(json!("Suspended"))].boxed();
    let policy = prop_oneof![Just(json!("Allowed")), Just(json!("Disallowed"))].boxed();
    let with = |field: &'static str, values: BoxedStrategy<Value>, rest: BoxedStrategy<Value>| {
        (values, rest)
            .prop_map(move |(value, mut rest)| {
                rest[field] = value;
                rest
            })
            .boxed()
    };
    let extra = || ("unknown", anything().boxed());
    prop_oneof![
        arbitrary(
            VERSION,
            "Sandbox",
            with("operatingMode", mode, some(vec![extra(), ("volumeClaimTemplates", volumes())])),
            some(vec![("nodeName", Just(json!("n")).boxed())])
        ),
        arbitrary(
            VERSION,
            "SandboxClaim",
            with("warmPoolRef", reference(), some(vec![extra(), ("volumeClaimTemplates", volumes())])),
            bound().boxed()
        ),
        arbitrary(
            VERSION,
            "SandboxTemplate",
            some(vec![extra(), ("volumeClaimTemplatesPolicy", policy)]),
            Just(json!({})).boxed()
        ),
        arbitrary(
            VERSION,
            "SandboxWarmPool",
            with("replicas", count(), some(vec![extra()])),
            some(vec![("observedGeneration", count()), ("replicas", count())])
        ),
    ]
    .boxed()
}

fn alpha_objects() -> BoxedStrategy<Value> {
    let bound = || {
        prop::option::of(reference())
            .prop_map(|sandbox| sandbox.map_or(json!({}), |it| json!({"sandbox": it})))
    };
    let extra = || ("unknown", anything().boxed());
    let with_replicas = count().prop_map(|count| json!({"replicas": count})).boxed();
    prop_oneof![
        arbitrary(V1ALPHA1, "Sandbox", some(vec![extra(), ("replicas", count())]), with_replicas),
        arbitrary(
            V1ALPHA1,
            "SandboxClaim",
            (reference(), some(vec![extra(), ("warmpool", name().boxed())]))
                .prop_map(|(template, mut spec)| {
                    spec["sandboxTemplateRef"] = template;
                    spec
                })
                .boxed(),
            bound().boxed()
        ),
        arbitrary(V1ALPHA1, "SandboxTemplate", some(vec![extra()]), Just(json!({})).boxed()),
        arbitrary(
            V1ALPHA1,
            "SandboxWarmPool",
            (count(), some(vec![extra()]))
                .prop_map(|(count, mut spec)| {
                    spec["replicas"] = count;
                    spec
                })
                .boxed(),
            some(vec![("replicas", count())])
        ),
    ]
    .boxed()
}

/// What a round trip may add: the state annotation.
fn without_states(mut object: Value) -> Value {
    note::take(&mut object, SANDBOX_STATE);
    note::take(&mut object, CLAIM_STATE);
    object
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn an_object_of_v1beta1_survives_a_visit_to_v1alpha1(object in beta_objects()) {
        let once = to_beta(&to_alpha(&object));
        prop_assert_eq!(&without_states(once.clone()), &object);
        prop_assert_eq!(to_beta(&to_alpha(&once)), once, "and a second visit changes nothing");
    }

    #[test]
    fn an_object_of_v1alpha1_survives_being_stored(object in alpha_objects()) {
        let back = to_alpha(&to_beta(&object));
        let mut expected = object.clone();
        if object["kind"] == "Sandbox" && object["status"].is_null() {
            let suspended = object["spec"]["replicas"] == 0;
            expected["status"] = json!({"replicas": u8::from(!suspended)});
        }
        prop_assert_eq!(back, expected);
    }
}
