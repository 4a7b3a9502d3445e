//! ConversionReview: the question an API server asks, and our answer. Pure.

use asb_types::conversion::{self, Kind};
use serde_json::{Value, json};

/// The versions of the question that are understood; the answer is in the same one.
const VERSIONS: [&str; 2] = ["apiextensions.k8s.io/v1", "apiextensions.k8s.io/v1beta1"];

/// A body that is no review at all.
#[derive(Debug, thiserror::Error)]
#[error("the body is not a ConversionReview: {0}")]
pub(crate) struct NotAReview(&'static str);

/// Converts all objects of a review, or says which one cannot be converted and why.
pub(crate) fn answer(mut review: Value, extensions: bool) -> Result<Value, NotAReview> {
    let api_version = review["apiVersion"].as_str().unwrap_or_default().to_owned();
    if review["kind"] != "ConversionReview" || !VERSIONS.contains(&&*api_version) {
        return Err(NotAReview(
            "kind must be ConversionReview, apiVersion apiextensions.k8s.io/v1 or v1beta1",
        ));
    }
    let uid = review["request"]["uid"].as_str().ok_or(NotAReview("request.uid is missing"))?.to_owned();
    let to = review["request"]["desiredAPIVersion"].as_str();
    let to = to.ok_or(NotAReview("request.desiredAPIVersion is missing"))?.to_owned();
    let Some(Value::Array(mut objects)) = review["request"].get_mut("objects").map(Value::take) else {
        return Err(NotAReview("request.objects must be a list"));
    };
    let converted = objects.iter_mut().try_for_each(|object| convert(object, &to, extensions));
    let (objects, result) = match converted {
        Ok(()) => (objects, json!({"status": "Success"})),
        Err(message) => (Vec::new(), json!({"status": "Failure", "message": message})),
    };
    Ok(json!({
        "apiVersion": api_version, "kind": "ConversionReview",
        "response": {"uid": uid, "convertedObjects": objects, "result": result},
    }))
}

fn convert(object: &mut Value, to: &str, extensions: bool) -> Result<(), String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (namespace, name) = (text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]));
    let kind = text(&object["kind"]);
    let group =
        object["apiVersion"].as_str().and_then(|it| it.split_once('/')).map_or("", |(group, _)| group);
    if !extensions && Kind::of(group, &kind).is_some_and(|kind| kind != Kind::Sandbox) {
        return Err(format!("{kind} {namespace}/{name}: start this program with --extensions to convert it"));
    }
    conversion::convert(object, to).map_err(|error| format!("{kind} {namespace}/{name}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn review(version: &str, objects: Value) -> Value {
        json!({
            "apiVersion": format!("apiextensions.k8s.io/{version}"), "kind": "ConversionReview",
            "request": {"uid": "u", "desiredAPIVersion": "agents.x-k8s.io/v1beta1", "objects": objects},
        })
    }

    fn sandbox(name: &str) -> Value {
        json!({"apiVersion": "agents.x-k8s.io/v1alpha1", "kind": "Sandbox", "metadata": {"name": name}, "spec": {"replicas": 0}})
    }

    #[test]
    fn every_object_is_converted_in_order_and_answered_in_the_version_of_the_question() {
        for version in ["v1", "v1beta1"] {
            let question = review(version, json!([sandbox("a"), sandbox("b")]));
            let answer = answer(question.clone(), false).unwrap();
            assert_eq!(answer["apiVersion"], question["apiVersion"]);
            assert_eq!(answer["response"]["uid"], "u");
            assert_eq!(answer["response"]["result"]["status"], "Success");
            let names: Vec<_> = answer["response"]["convertedObjects"].as_array().unwrap().iter().collect();
            assert_eq!(names[1]["metadata"]["name"], "b");
            assert_eq!(names[0]["spec"]["operatingMode"], "Suspended");
        }
    }

    #[test]
    fn a_failure_names_the_object() {
        let mut wrong = sandbox("bad");
        wrong["metadata"]["namespace"] = "ns".into();
        wrong["metadata"]["annotations"] = json!({"api.agents.x-k8s.io/v1beta1-sandbox-state": "x"});
        let answer = answer(review("v1", json!([sandbox("a"), wrong])), true).unwrap();
        assert_eq!(answer["response"]["convertedObjects"], json!([]));
        let message = answer["response"]["result"]["message"].as_str().unwrap();
        assert!(message.contains("ns/bad") && message.contains("v1beta1-sandbox-state"), "{message}");
    }

    #[test]
    fn extension_kinds_need_extensions() {
        let mut question = review(
            "v1",
            json!([{
                "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool", "metadata": {"name": "p"},
            }]),
        );
        question["request"]["desiredAPIVersion"] = "extensions.agents.x-k8s.io/v1alpha1".into();
        let status = |extensions| {
            answer(question.clone(), extensions).unwrap()["response"]["result"]["status"].clone()
        };
        assert_eq!((status(false), status(true)), (json!("Failure"), json!("Success")));
    }

    #[test]
    fn what_is_no_review_is_refused() {
        for body in [json!({}), json!([]), review("v2", json!([])), review("v1", json!({}))] {
            assert!(answer(body, true).is_err());
        }
    }
}
