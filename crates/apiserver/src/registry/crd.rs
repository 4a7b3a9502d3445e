//! CustomResourceDefinitions: reading, checking and completing them.

use std::sync::Arc;

use asb_types::conversion;
use serde_json::{Value, json};

use super::field::{Errors, Field};
use super::resource::{Column, Form, Resource, Scale, Version};
use super::structural;
use crate::http::jsonpath::JsonPath;
use crate::names::Rule;
use crate::status::{FieldError, qualified};

/// Keeps a CRD alive until its objects are gone.
pub(crate) const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";
const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] =
    ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
const STORAGE_MESSAGE: &str = "must have exactly one version marked as storage version";

/// Fills in what may be left out and writes the status: an accepted CRD is served at once.
pub(crate) fn complete(crd: &mut Value, now: &str) {
    // What is not an object is left for validation to refuse.
    if !crd["spec"]["names"].is_object() {
        return;
    }
    let spec = &mut crd["spec"];
    let kind = spec["names"]["kind"].as_str().unwrap_or_default().to_owned();
    if spec["names"]["listKind"].is_null() {
        spec["names"]["listKind"] = format!("{kind}List").into();
    }
    if spec["names"]["singular"].is_null() {
        spec["names"]["singular"] = kind.to_lowercase().into();
    }
    if spec["conversion"].is_null() {
        spec["conversion"] = json!({ "strategy": "None" });
    }
    let names = spec["names"].clone();
    let storage = spec["versions"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|version| version["storage"] == true)
        .map(|version| version["name"].clone());
    let mut stored: Vec<Value> = crd["status"]["storedVersions"].as_array().cloned().unwrap_or_default();
    stored.extend(storage.filter(|version| !stored.contains(version)));
    let since = |kind: &str| {
        let old = crd["status"]["conditions"].as_array().into_iter().flatten().find(|c| c["type"] == kind);
        old.map_or_else(|| now.into(), |condition| condition["lastTransitionTime"].clone())
    };
    let conditions = json!([
        { "type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "message": "no conflicts found",
          "lastTransitionTime": since("NamesAccepted") },
        { "type": "Established", "status": "True", "reason": "InitialNamesAccepted",
          "message": "the initial names have been accepted", "lastTransitionTime": since("Established") },
    ]);
    crd["status"] = json!({ "acceptedNames": names, "conditions": conditions, "storedVersions": stored });
}

/// Whether `wanted` asks for something that `stored` does not have.
pub(crate) fn differs(stored: &Value, wanted: &Value) -> bool {
    let mut completed = wanted.clone();
    complete(&mut completed, "");
    let covered = |field: &str| {
        let have = &stored["metadata"][field];
        wanted["metadata"][field].as_object().into_iter().flatten().all(|(key, value)| have[key] == *value)
    };
    completed["spec"] != stored["spec"] || !covered("labels") || !covered("annotations")
}

/// Checks a CRD, its schemas included.
pub(crate) fn validate(crd: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = &crd["spec"];
    for field in ["group", "names.plural", "names.kind", "scope"] {
        let value = field.split('.').fold(spec, |at, part| &at[part]);
        if value.as_str().unwrap_or_default().is_empty() {
            errors.push(FieldError::required(format!("spec.{field}"), ""));
        }
    }
    let scope = &spec["scope"];
    if scope.is_string() && !matches!(scope.as_str(), Some("Namespaced" | "Cluster")) {
        errors.push(FieldError::unsupported("spec.scope", scope, &["Cluster".into(), "Namespaced".into()]));
    }
    let want = qualified(
        spec["names"]["plural"].as_str().unwrap_or_default(),
        spec["group"].as_str().unwrap_or_default(),
    );
    if crd["metadata"]["name"] != want.as_str() {
        errors.push(FieldError::invalid(
            "metadata.name",
            &crd["metadata"]["name"],
            format!("must be spec.names.plural+\".\"+spec.group, which is {want:?}"),
        ));
    }
    let root = Field::root(crd);
    check_names(&root.get("spec").get("names"), &mut errors);
    check_shown(&root.get("spec"), &mut errors);
    let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    if versions.iter().filter(|version| version["storage"] == true).count() != 1 {
        errors.push(FieldError::invalid("spec.versions", &Value::from(versions.len()), STORAGE_MESSAGE));
    }
    check_schemas(&Field::root(crd).get("spec"), &mut errors);
    for (at, version) in versions.iter().enumerate() {
        let path = format!("spec.versions[{at}]");
        if version["name"].as_str().unwrap_or_default().is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        }
        // What the checks above have found is not reported again.
        if !errors.iter().any(|error| error.field.contains("openAPIV3Schema"))
            && let Err(error) = parse_version(version).compile()
        {
            errors.push(FieldError::invalid(format!("{path}.schema"), &"object".into(), error));
        }
    }
    errors
}

fn check_names(names: &Field<'_, '_>, errors: &mut Errors) {
    for field in ["plural", "singular"] {
        names.get(field).named(Rule::Label1035, errors);
    }
    for field in ["kind", "listKind"] {
        let name = names.get(field);
        let lower = Some(name.text().to_lowercase()).filter(|lower| !lower.is_empty());
        if let Some(wrong) = lower.and_then(|lower| Rule::Label1035.check(&lower)) {
            name.invalid(format!("may have mixed case, but should otherwise match: {wrong}"), errors);
        }
    }
    let list = names.get("listKind");
    if !list.text().is_empty() && list.text() == names.get("kind").text() {
        list.invalid("kind and listKind may not be the same", errors);
    }
    for field in ["shortNames", "categories"] {
        for name in names.get(field).items() {
            if let Some(wrong) = Rule::Label1035.check(name.text()) {
                name.invalid(wrong, errors);
            }
        }
    }
}

/// Checks columns and the paths of `scale`. As with schemas, what all versions have in common belongs to `spec`.
fn check_shown(spec: &Field<'_, '_>, errors: &mut Errors) {
    let versions = spec.get("versions");
    let first = &versions.value[0];
    let same = |field: &str| versions.items().all(|version| version.value[field] == first[field]);
    for (field, check) in [
        ("additionalPrinterColumns", check_columns as fn(&Field<'_, '_>, &mut Errors)),
        ("subresources", check_scale),
    ] {
        if same(field) {
            check(&spec.get(field).with(&first[field]), errors);
        } else {
            versions.items().for_each(|version| check(&version.get(field), errors));
        }
    }
}

fn check_columns(columns: &Field<'_, '_>, errors: &mut Errors) {
    for column in columns.items() {
        column.get("name").required(errors);
        let kind = column.get("type");
        let why = format!("must be one of {}", COLUMN_TYPES.join(","));
        match kind.text() {
            "" => kind.missing(&why, errors),
            text if !COLUMN_TYPES.contains(&text) => kind.invalid(why, errors),
            _ => {}
        }
        let format = column.get("format");
        if !format.text().is_empty() && !COLUMN_FORMATS.contains(&format.text()) {
            format.invalid(format!("must be one of {}", COLUMN_FORMATS.join(",")), errors);
        }
        // kube-apiserver names the field like this.
        let path = column.get("JSONPath").with(&column.value["jsonPath"]);
        if path.required(errors) {
            simple_path(&path, &[], errors);
        }
    }
}

fn check_scale(subresources: &Field<'_, '_>, errors: &mut Errors) {
    let scale = subresources.get("scale");
    if !scale.is_given() {
        return;
    }
    for (field, below) in [("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")] {
        let path = scale.get(field);
        if path.required(errors) {
            simple_path(&path, &[below], errors);
        }
    }
    let path = scale.get("labelSelectorPath");
    if !path.text().is_empty() {
        simple_path(&path, &[".spec.", ".status."], errors);
    }
}

/// A path in dots, below one of `places` if there are any.
fn simple_path(path: &Field<'_, '_>, places: &[&str], errors: &mut Errors) {
    if !path.text().starts_with('.') {
        path.invalid("must be a simple json path starting with .", errors);
    } else if !places.is_empty() && !places.iter().any(|place| path.text().starts_with(place)) {
        let places: Vec<&str> = places.iter().map(|place| place.trim_end_matches('.')).collect();
        let one = if places.len() > 1 { "either " } else { "" };
        path.invalid(format!("should be a json path under {one}{}", places.join(" or ")), errors);
    }
}

/// Checks the schemas under the paths that kube-apiserver gives them: what all versions have in common belongs to `spec`.
fn check_schemas(spec: &Field<'_, '_>, errors: &mut Errors) {
    let versions = spec.get("versions");
    let first = &versions.value[0];
    let same = |field: &str| versions.items().all(|version| version.value[field] == first[field]);
    let schema = &first["schema"]["openAPIV3Schema"];
    if same("schema") && schema.is_object() {
        structural::check(&spec.get("validation").get("openAPIV3Schema").with(schema), errors);
    } else {
        for version in versions.items() {
            structural::check(&version.get("schema").get("openAPIV3Schema"), errors);
        }
    }
    if same("schema") && same("selectableFields") {
        let fields = spec.get("selectableFields");
        return structural::check_selectable(&fields.with(&first["selectableFields"]), schema, errors);
    }
    for version in versions.items() {
        let schema = &version.value["schema"]["openAPIV3Schema"];
        structural::check_selectable(&version.get("selectableFields"), schema, errors);
    }
}

/// The resource that a checked CRD describes.
pub(crate) fn resource(crd: &Value) -> Resource {
    let spec = &crd["spec"];
    let names = &spec["names"];
    let text = |value: &Value| -> Box<str> { value.as_str().unwrap_or_default().into() };
    let texts =
        |value: &Value| -> Vec<Box<str>> { value.as_array().into_iter().flatten().map(text).collect() };
    let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let (plural, group) = (text(&names["plural"]), text(&spec["group"]));
    let kind = text(&names["kind"]);
    // A webhook is never called: our own kinds are converted here, those of others differ in `apiVersion` only.
    let converted =
        spec["conversion"]["strategy"] == "Webhook" && conversion::Kind::of(&group, &kind).is_some();
    let deprecation = |version: &Value| -> Option<Box<str>> {
        let usual = || format!("{group}/{} {kind} is deprecated", text(&version["name"])).into();
        (version["deprecated"] == true)
            .then(|| version["deprecationWarning"].as_str().map_or_else(usual, Into::into))
    };
    let parse = |version: &Value| {
        let mut parsed = parse_version(version);
        parsed.deprecation = deprecation(version);
        parsed
    };
    let parsed = versions.iter().map(parse).collect();
    Resource {
        collection: qualified(&plural, &group).into(),
        group,
        plural,
        singular: text(&names["singular"]),
        kind,
        list_kind: text(&names["listKind"]),
        short_names: texts(&names["shortNames"]),
        categories: texts(&names["categories"]),
        namespaced: spec["scope"] == "Namespaced",
        storage: versions.iter().position(|version| version["storage"] == true).unwrap_or(0),
        versions: parsed,
        custom: true,
        form: if converted { Form::Converted } else { Form::AsStored },
    }
}

fn parse_version(version: &Value) -> Version {
    let schema: Arc<str> = version["schema"]["openAPIV3Schema"].to_string().into();
    let text = |value: &Value| -> Box<str> { value.as_str().unwrap_or_default().into() };
    let mut parsed = Version::new(version["name"].as_str().unwrap_or_default(), Some(schema));
    parsed.served = version["served"] == true;
    let subresources = &version["subresources"];
    parsed.status = subresources["status"].is_object();
    let scale = &subresources["scale"];
    parsed.scale = scale.is_object().then(|| Scale {
        spec: text(&scale["specReplicasPath"]),
        status: text(&scale["statusReplicasPath"]),
        selector: scale["labelSelectorPath"].as_str().map(Into::into),
    });
    let selectable = version["selectableFields"].as_array().into_iter().flatten();
    parsed.selectable = selectable
        .filter_map(|field| field["jsonPath"].as_str()?.strip_prefix('.').map(Into::into))
        .collect();
    parsed.columns = version["additionalPrinterColumns"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|column| Column {
            name: text(&column["name"]),
            kind: text(&column["type"]),
            format: text(&column["format"]),
            description: text(&column["description"]),
            priority: column["priority"].as_i64().unwrap_or(0),
            path: JsonPath::parse(column["jsonPath"].as_str().unwrap_or_default()),
        })
        .collect();
    parsed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crd() -> Value {
        json!({ "metadata": { "name": "gadgets.example.com" }, "spec": {
            "group": "example.com", "scope": "Namespaced", "names": { "plural": "gadgets", "kind": "Gadget" },
            "versions": [{ "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object" } } }] } })
    }

    #[test]
    fn a_minimal_crd_is_completed_and_accepted() {
        let mut crd = crd();
        assert!(validate(&crd).is_empty());
        complete(&mut crd, "2026-01-01T00:00:00Z");
        assert_eq!(crd["spec"]["names"]["listKind"], "GadgetList");
        assert_eq!(crd["status"]["storedVersions"], json!(["v1"]));
        assert_eq!(resource(&crd).qualified(), "gadgets.example.com");
    }

    #[test]
    fn a_wrong_crd_is_refused_by_field() {
        let mut crd = crd();
        crd["metadata"]["name"] = "gadget".into();
        crd["spec"]["versions"][0]["storage"] = false.into();
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = json!({ "type": "string", "pattern": "(" });
        let fields: Vec<String> = validate(&crd).into_iter().map(|e| e.field).collect();
        let at = |field: &str| format!("spec.validation.openAPIV3Schema.{field}");
        assert_eq!(fields, ["metadata.name", "spec.versions", &at("type"), &at("pattern")]);
    }
}
