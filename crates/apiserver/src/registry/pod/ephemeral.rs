//! Ephemeral containers: added to a Pod that runs, by a subresource of their own, and never changed or taken away.

use serde_json::{Value, json};

use super::MIRROR;
use crate::status::FieldError;

/// A container that has ended stays until its Pod goes, so their number has a limit.
const MOST: usize = 32;

/// The Pod as it was, with the ephemeral containers of `new`. Those that were there keep their places: the node knows them by
/// these, and a patch may put new ones first.
pub(crate) fn added(new: &Value, old: &Value) -> Value {
    let list = |pod: &Value| pod["spec"]["ephemeralContainers"].as_array().cloned().unwrap_or_default();
    let known = list(old);
    let place = |container: &Value| {
        known.iter().position(|it| it["name"] == container["name"]).unwrap_or(known.len())
    };
    let mut all = list(new);
    all.sort_by_key(place);
    let mut pod = old.clone();
    if let Some(spec) =
        pod["spec"].as_object_mut().filter(|spec| !all.is_empty() || spec.contains_key("ephemeralContainers"))
    {
        spec.insert("ephemeralContainers".to_owned(), json!(all));
    }
    pod
}

/// In the words of kube-apiserver, which has no limit.
pub(crate) fn validate_update(pod: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    const PATH: &str = "spec.ephemeralContainers";
    if old["metadata"]["annotations"][MIRROR].is_string() {
        errors.push(FieldError::forbidden("", "static pods do not support ephemeral containers"));
        return;
    }
    let list = |pod: &'_ Value| pod["spec"]["ephemeralContainers"].as_array().cloned().unwrap_or_default();
    let all = list(pod);
    if all.len() > MOST {
        errors.push(FieldError::too_many(PATH, all.len(), MOST));
    }
    for known in list(old) {
        let problem = match all.iter().find(|it| it["name"] == known["name"]) {
            None => "removed",
            Some(same) if *same != known => "changed",
            Some(_) => continue,
        };
        let why = format!("existing ephemeral containers {} may not be {problem}\n", known["name"]);
        errors.push(FieldError::forbidden(PATH, &why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(names: &[&str]) -> Value {
        let containers: Vec<_> = names.iter().map(|name| json!({ "name": name, "image": "x" })).collect();
        json!({ "metadata": {}, "spec": { "ephemeralContainers": containers } })
    }

    fn errors(new: &Value, old: &Value) -> Vec<String> {
        let mut errors = Vec::new();
        validate_update(new, old, &mut errors);
        errors.iter().map(|error| error.to_string().trim_end().to_owned()).collect()
    }

    #[test]
    fn only_the_list_is_taken_and_those_that_were_there_keep_their_places() {
        let mut new = pod(&["c", "a", "b"]);
        new["spec"]["hostname"] = "other".into();
        assert_eq!(added(&new, &pod(&["b", "a"])), pod(&["b", "a", "c"]));
        assert_eq!(
            added(&json!({ "spec": {} }), &json!({ "spec": { "x": 1 } })),
            json!({ "spec": { "x": 1 } })
        );
    }

    #[test]
    fn containers_are_added_and_nothing_else() {
        assert!(errors(&pod(&["a", "b"]), &pod(&["a"])).is_empty());
        let removed =
            r#"spec.ephemeralContainers: Forbidden: existing ephemeral containers "a" may not be removed"#;
        assert_eq!(errors(&pod(&["b"]), &pod(&["a"])), [removed]);
        let mut changed = pod(&["a"]);
        changed["spec"]["ephemeralContainers"][0]["image"] = "y".into();
        assert_eq!(errors(&changed, &pod(&["a"])), [removed.replace("removed", "changed")]);
        let names: Vec<_> = (0..=MOST).map(|at| format!("c{at}")).collect();
        let many = pod(&names.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(
            errors(&many, &pod(&[])),
            ["spec.ephemeralContainers: Too many: 33: must have at most 32 items"]
        );
        let mut mirror = pod(&[]);
        mirror["metadata"]["annotations"] = json!({ MIRROR: "x" });
        assert_eq!(
            errors(&pod(&["a"]), &mirror),
            ["Forbidden: static pods do not support ephemeral containers"]
        );
    }
}
