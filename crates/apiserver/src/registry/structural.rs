//! Whether the schema of a CustomResourceDefinition is structural, and whether its CEL rules compile.
//!
//! A schema that is not structural says nothing about some fields; a rule that does not compile refuses every object.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::field::{Errors, Field};
use crate::schema::{Schema, rule_problem};
use crate::status::FieldError;

/// Where in the schema a node is: an object's field, a list's item, or the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Field,
    Item,
}

/// Keywords that Kubernetes does not support, with its reasons.
const UNSUPPORTED: [(&str, &str); 6] = [
    ("$ref", "$ref is not supported"),
    ("additionalItems", "additionalItems is not supported"),
    ("definitions", "definitions is not supported"),
    ("dependencies", "dependencies is not supported"),
    ("id", "id is not supported"),
    ("patternProperties", "patternProperties is not supported"),
];
const MOST_SELECTABLE: usize = 8;
const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
const EMBEDDED: &str = "x-kubernetes-embedded-resource";
const INT_OR_STRING: &str = "x-kubernetes-int-or-string";
const KEEP: &str = "x-kubernetes-preserve-unknown-fields";
const RULES: &str = "x-kubernetes-validations";
/// What the branches of `anyOf`, `allOf`, `oneOf` and `not` may not say.
const NOT_IN_BRANCHES: [(&str, &str); 11] = [
    ("type", "must be empty to be structural"),
    ("title", "must be empty to be structural"),
    ("description", "must be empty to be structural"),
    ("default", "must be undefined to be structural"),
    ("additionalProperties", "must be undefined to be structural"),
    ("nullable", "must be false to be structural"),
    (KEEP, "must be false to be structural"),
    (EMBEDDED, "must be false to be structural"),
    (INT_OR_STRING, "must be false to be structural"),
    ("x-kubernetes-list-type", "must be undefined to be structural"),
    (RULES, "must be empty to be structural"),
];

pub(super) fn check(schema: &Field<'_, '_>, errors: &mut Errors) {
    if !schema.value.is_object() {
        return schema.missing("schemas are required", errors);
    }
    if schema.get("nullable").value == true {
        let why = "nullable cannot be true at the root";
        errors.push(FieldError::forbidden(format!("{}.nullable", schema.path()), why));
    }
    node(schema, Level::Root, errors);
}

/// Checks the fields that a version makes selectable: texts, numbers and flags that its schema has.
pub(super) fn check_selectable(fields: &Field<'_, '_>, schema: &Value, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for field in fields.items() {
        let path = field.get("jsonPath");
        if !path.required(errors) {
            continue;
        }
        let steps = path.text().strip_prefix('.').unwrap_or_default();
        let found = steps.split('.').fold(schema, |at, name| &at["properties"][name]);
        match found["type"].as_str() {
            None => path.invalid("is an invalid path: does not refer to a valid field", errors),
            Some(_) if steps.split('.').next() == Some("metadata") => {
                path.invalid("must not point to fields in metadata", errors);
            }
            Some("string" | "boolean" | "integer") => {}
            Some(_) => path.invalid(
                "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.",
                errors,
            ),
        }
        if !seen.insert(steps) {
            path.duplicate(errors);
        }
    }
    if seen.len() > MOST_SELECTABLE {
        errors.push(FieldError::too_many(fields.path(), seen.len(), MOST_SELECTABLE));
    }
}

fn node(schema: &Field<'_, '_>, level: Level, errors: &mut Errors) {
    check_type(schema, level, errors);
    let items = schema.get("items");
    if items.value.is_object() {
        node(&items, Level::Item, errors);
    } else if items.is_given() {
        items.forbidden("items must be a schema object and not an array", errors);
    } else if schema.get("type").text() == "array" {
        items.missing("must be specified", errors);
    }
    for (name, property) in schema.get("properties").entries() {
        if name == "metadata" && level == Level::Root {
            check_metadata(&property, errors);
        } else {
            node(&property, Level::Field, errors);
        }
    }
    let others = schema.get("additionalProperties");
    if others.is_given() {
        if level == Level::Root {
            others.forbidden("must not be used at the root", errors);
        }
        if schema.get("properties").entries().next().is_some() && others.value != true {
            others.forbidden("additionalProperties and properties are mutual exclusive", errors);
        }
        if others.value.is_object() {
            node(&others, Level::Field, errors);
        }
    }
    for (keyword, why) in UNSUPPORTED {
        let given = schema.get(keyword);
        if given.is_given() {
            given.forbidden(why, errors);
        }
    }
    let unique = schema.get("uniqueItems");
    if unique.value == true {
        let why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        unique.forbidden(why, errors);
    }
    check_list(schema, errors);
    check_default(schema, errors);
    check_rules(schema, errors);
    branches(schema, errors);
    // As in kube-apiserver, which looks at the branches of the root only.
    if level == Level::Root {
        complete(schema.value, schema, &schema.path(), errors);
    }
}

fn check_type(schema: &Field<'_, '_>, level: Level, errors: &mut Errors) {
    let kind = schema.get("type");
    let untyped = schema.value[INT_OR_STRING] == true || schema.value[KEEP] == true;
    if schema.value[EMBEDDED] == true && kind.text() != "object" {
        const WHY: &str = "must be object if x-kubernetes-embedded-resource is true";
        match kind.text() {
            "" => kind.missing(WHY, errors),
            _ => kind.invalid(WHY, errors),
        }
    } else if kind.text().is_empty() && !untyped {
        let why = match level {
            Level::Root => "must not be empty at the root",
            Level::Field => "must not be empty for specified object fields",
            Level::Item => "must not be empty for specified array items",
        };
        kind.missing(why, errors);
    } else if level == Level::Root && kind.text() != "object" && !kind.text().is_empty() {
        kind.invalid("must be object at the root", errors);
    }
    if !kind.text().is_empty() {
        kind.one_of(&TYPES, errors);
    }
    let pattern = schema.get("pattern");
    if let Err(error) = regex::Regex::new(pattern.text()) {
        pattern.invalid(format!("must be a valid regular expression, but isn't: {error}"), errors);
    }
    let keep = schema.get(KEEP);
    if schema.value[INT_OR_STRING] == true && keep.value == true {
        keep.invalid("must be false if x-kubernetes-int-or-string is true", errors);
    }
    if schema.value[EMBEDDED] == true
        && keep.value != true
        && schema.get("properties").entries().next().is_none()
    {
        let why = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        schema.get("properties").missing(why, errors);
    }
}

/// The metadata of an object is the same for all kinds; only its name can be restricted.
fn check_metadata(metadata: &Field<'_, '_>, errors: &mut Errors) {
    let kind = metadata.get("type");
    if kind.text() != "object" {
        kind.with(&json!(kind.text())).invalid("must be object", errors);
    }
    let names_only =
        metadata.get("properties").entries().all(|(name, _)| matches!(name, "name" | "generateName"));
    let nothing_else = metadata
        .entries()
        .all(|(keyword, value)| matches!(keyword, "type" | "properties" | "default") || value.value == false);
    if !names_only || !nothing_else {
        let why = "must not specify anything other than name and generateName, but metadata is implicitly specified";
        metadata.forbidden(why, errors);
    }
}

fn check_list(schema: &Field<'_, '_>, errors: &mut Errors) {
    let (list, keys) = (schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys"));
    list.one_of(&["atomic", "map", "set"], errors);
    let has_keys = keys.items().next().is_some();
    if list.text() == "map" && !has_keys {
        keys.missing("must not be empty if x-kubernetes-list-type is map", errors);
    }
    if list.text() != "map" && has_keys {
        list.missing("must be map if x-kubernetes-list-map-keys is non-empty", errors);
    }
    let items = schema.get("items");
    for key in keys.items() {
        let property = items.get("properties");
        let property = property.get(key.text());
        let required = items.get("required").items().any(|name| name.text() == key.text());
        if !property.is_given() {
            key.invalid("must be the name of a property of the items", errors);
        } else if !required && property.value.get("default").is_none() {
            let why = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            property.get("default").missing(why, errors);
        }
    }
}

/// A default that its own schema refuses would make every object without the field invalid.
fn check_default(schema: &Field<'_, '_>, errors: &mut Errors) {
    let default = schema.get("default");
    let Some(compiled) = Schema::compile(schema.value).ok().filter(|_| default.is_given()) else { return };
    let mut pruned = default.value.clone();
    if !compiled.fill(&mut pruned).is_empty() {
        return default.invalid("must not have unknown fields", errors);
    }
    for mut error in compiled.validate(default.value) {
        let dot = if error.field.is_empty() || error.field.starts_with('[') { "" } else { "." };
        error.field = format!("{}{dot}{}", default.path(), error.field);
        errors.push(error);
    }
}

/// Every field that a branch of `anyOf` and the like restricts must be one that the schema itself has: other fields are
/// removed before the branch is looked at. `branch_path` is where `branch` stands.
fn complete(branch: &Value, schema: &Field<'_, '_>, branch_path: &str, errors: &mut Errors) {
    let not = (!branch["not"].is_null()).then(|| (&branch["not"], format!("{branch_path}.not")));
    let lists = ["allOf", "anyOf", "oneOf"].into_iter().flat_map(|keyword| {
        let list = branch[keyword].as_array().into_iter().flatten().enumerate();
        list.map(move |(at, nested)| (nested, format!("{branch_path}.{keyword}[{at}]")))
    });
    for (nested, path) in not.into_iter().chain(lists) {
        complete_branch(nested, schema, &path, errors);
    }
}

fn complete_branch(branch: &Value, schema: &Field<'_, '_>, branch_path: &str, errors: &mut Errors) {
    complete(branch, schema, branch_path, errors);
    let items = schema.get("items");
    if branch["items"].is_object() {
        let path = format!("{branch_path}.items");
        if items.value.is_object() {
            complete_branch(&branch["items"], &items, &path, errors);
        } else {
            items.missing(&format!("because it is defined in {path}"), errors);
        }
    }
    let properties = schema.get("properties");
    for (name, nested) in branch["properties"].as_object().into_iter().flatten() {
        let (own, path) = (properties.key(name), format!("{branch_path}.properties[{name}]"));
        if own.is_given() {
            complete_branch(nested, &own, &path, errors);
        } else {
            own.missing(&format!("because it is defined in {path}"), errors);
        }
    }
}

fn check_rules(schema: &Field<'_, '_>, errors: &mut Errors) {
    for rule in schema.get(RULES).items() {
        let text = rule.get("rule");
        if text.text().trim().is_empty() {
            text.missing("rule is not specified", errors);
        } else if let Some((field, why)) = rule_problem(rule.value, schema.value) {
            rule.get(field).with(rule.value).invalid(why, errors);
        }
        if text.text().trim().contains('\n') && rule.get("message").text().is_empty() {
            rule.get("message").missing("message must be specified if rule contains line breaks", errors);
        }
    }
}

/// What stands below `anyOf` and the like: it may restrict values, and not describe them.
fn branches(schema: &Field<'_, '_>, errors: &mut Errors) {
    let number_or_text = json!([{ "type": "integer" }, { "type": "string" }]);
    for keyword in ["anyOf", "allOf", "oneOf"] {
        let list = schema.get(keyword);
        if keyword == "anyOf" && *list.value == number_or_text {
            continue;
        }
        for branch in list.items() {
            let usual = keyword == "allOf" && branch.value["anyOf"] == number_or_text;
            if !usual {
                check_branch(&branch, errors);
            }
        }
    }
    let not = schema.get("not");
    if not.is_given() {
        check_branch(&not, errors);
    }
}

fn check_branch(branch: &Field<'_, '_>, errors: &mut Errors) {
    for (keyword, why) in NOT_IN_BRANCHES {
        let given = branch.get(keyword);
        let says = !matches!(given.value, Value::Null | Value::Bool(false)) && *given.value != json!("");
        if says {
            given.forbidden(why, errors);
        }
    }
    let properties = branch.get("properties");
    for (name, property) in properties.entries() {
        if name == "metadata" {
            property.forbidden("must not be specified in a nested context", errors);
        }
        check_branch(&property, errors);
    }
    let items = branch.get("items");
    if items.value.is_object() {
        check_branch(&items, errors);
    }
    branches(branch, errors);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(schema: Value) -> Vec<String> {
        let mut errors = Errors::new();
        check(&Field::root(&json!({ "s": schema })).get("s"), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    fn of_field(field: Value) -> Vec<String> {
        errors(json!({ "type": "object", "properties": { "a": field } }))
    }

    #[test]
    fn schemas_that_are_not_structural_are_named() {
        let at = "s.properties[a]";
        for (field, wanted) in [
            (json!({}), format!("{at}.type: Required value: must not be empty for specified object fields")),
            (json!({ "type": "array" }), format!("{at}.items: Required value: must be specified")),
            (
                json!({ "type": "array", "items": {} }),
                format!("{at}.items.type: Required value: must not be empty for specified array items"),
            ),
            (
                json!({ "type": "array", "items": [{ "type": "string" }] }),
                format!("{at}.items: Forbidden: items must be a schema object and not an array"),
            ),
            (
                json!({ "type": "object", "properties": { "b": { "type": "string" } }, "additionalProperties": { "type": "string" } }),
                format!(
                    "{at}.additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive"
                ),
            ),
            (
                json!({ "type": "string", "anyOf": [{ "type": "string" }] }),
                format!("{at}.anyOf[0].type: Forbidden: must be empty to be structural"),
            ),
            (
                json!({ "type": "object", "properties": { "b": { "type": "integer" } }, "not": { "properties": { "b": { "default": 1 } } } }),
                format!("{at}.not.properties[b].default: Forbidden: must be undefined to be structural"),
            ),
            (
                json!({ "type": "string", "$ref": "x" }),
                format!("{at}.$ref: Forbidden: $ref is not supported"),
            ),
            (
                json!({ "type": "array", "items": { "type": "object" }, "x-kubernetes-list-type": "map" }),
                format!(
                    "{at}.x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map"
                ),
            ),
            (
                json!({ "type": "string", EMBEDDED: true, KEEP: true }),
                format!(
                    "{at}.type: Invalid value: \"string\": must be object if x-kubernetes-embedded-resource is true"
                ),
            ),
        ] {
            assert_eq!(of_field(field.clone()), [wanted], "{field}");
        }
        assert_eq!(
            errors(json!({ "type": "string" })),
            ["s.type: Invalid value: \"string\": must be object at the root"]
        );
        assert_eq!(errors(json!({})), ["s.type: Required value: must not be empty at the root"]);
        let metadata = json!({ "type": "object", "properties": { "metadata": { "type": "object", "properties": { "labels": {} } } } });
        assert_eq!(errors(metadata).len(), 1);
    }

    #[test]
    fn selectable_fields_are_in_the_schema() {
        let schema = json!({ "properties": { "spec": { "type": "object", "properties": { "a": { "type": "string" } } } } });
        let fields = [".spec.a", ".spec", ".spec.b", ".metadata.name", "spec.a", ".spec.a"];
        let version = json!({ "schema": { "openAPIV3Schema": schema },
            "selectableFields": fields.map(|path| json!({ "jsonPath": path })) });
        let mut errors = Errors::new();
        check_selectable(
            &Field::root(&version).get("selectableFields"),
            &version["schema"]["openAPIV3Schema"],
            &mut errors,
        );
        let at: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
        let path = |index: usize| format!("selectableFields[{index}].jsonPath");
        assert_eq!(at, [path(1), path(2), path(3), path(4), path(5)]);
    }

    #[test]
    fn rules_must_compile() {
        let field = |rule: &str| {
            of_field(
                json!({ "type": "object", "properties": { "x": { "type": "integer" } }, RULES: [{ "rule": rule }] }),
            )
        };
        assert!(field("self.x > 1 && has(self.x)").is_empty());
        for (rule, wanted) in [
            ("self.x >", "compilation failed"),
            ("self.y > 1", "undefined field 'y'"),
            ("", "rule is not specified"),
        ] {
            let found = field(rule);
            let at = "s.properties[a].x-kubernetes-validations[0].rule: ";
            assert!(
                found.len() == 1 && found[0].starts_with(at) && found[0].contains(wanted),
                "{rule}: {found:?}"
            );
        }
    }

    #[test]
    fn fields_of_branches_are_fields_of_the_schema() {
        let root = json!({ "type": "object", "properties": { "b": { "type": "object", "properties": {} } },
            "anyOf": [{ "properties": { "b": { "properties": { "c": { "minLength": 1 } } }, "d": {} } }],
            "not": { "items": { "minLength": 1 } },
            "allOf": [{ "oneOf": [{ "properties": { "e": { "minLength": 1 } } }] }] });
        assert_eq!(of_field(root.clone()), Vec::<String>::new(), "only the root is looked at");
        assert_eq!(
            errors(root),
            [
                "s.items: Required value: because it is defined in s.not.items",
                "s.properties[e]: Required value: because it is defined in s.allOf[0].oneOf[0].properties[e]",
                "s.properties[b].properties[c]: Required value: because it is defined in s.anyOf[0].properties[b].properties[c]",
                "s.properties[d]: Required value: because it is defined in s.anyOf[0].properties[d]",
            ]
        );
    }

    #[test]
    fn defaults_fit_their_schema() {
        let at = "s.properties[a].default";
        let object = json!({ "type": "object", "properties": { "n": { "type": "integer", "minimum": 2 } } });
        for (mut schema, default, wanted) in [
            (json!({ "type": "integer" }), json!("x"), vec![at.to_owned()]),
            (json!({ "type": "string", "enum": ["m"] }), json!("o"), vec![at.to_owned()]),
            (object.clone(), json!({ "n": 1 }), vec![format!("{at}.n")]),
            (object.clone(), json!({ "m": 1 }), vec![at.to_owned()]),
            (object, json!({ "n": 2 }), vec![]),
            (json!({ "type": "array", "items": { "type": "string" } }), json!([1]), vec![format!("{at}[0]")]),
        ] {
            schema["default"] = default;
            let mut errors = Errors::new();
            let whole = json!({ "s": { "type": "object", "properties": { "a": schema } } });
            check(&Field::root(&whole).get("s"), &mut errors);
            let fields: Vec<String> = errors.into_iter().map(|error| error.field).collect();
            assert_eq!(fields, wanted, "{whole}");
        }
    }

    #[test]
    fn at_most_eight_fields_are_selectable() {
        let names: Vec<String> = (0..9).map(|at| format!("f{at}")).collect();
        let properties: serde_json::Map<_, _> =
            names.iter().map(|name| (name.clone(), json!({ "type": "string" }))).collect();
        let schema = json!({ "properties": properties });
        for (count, wanted) in [(8, 0), (9, 1)] {
            let fields: Vec<Value> =
                names.iter().take(count).map(|name| json!({ "jsonPath": format!(".{name}") })).collect();
            let version = json!({ "selectableFields": fields });
            let mut errors = Errors::new();
            check_selectable(&Field::root(&version).get("selectableFields"), &schema, &mut errors);
            assert_eq!(errors.len(), wanted, "{errors:?}");
        }
    }

    #[test]
    fn usual_schemas_are_structural() {
        for field in [
            json!({ KEEP: true }),
            json!({ INT_OR_STRING: true, "anyOf": [{ "type": "integer" }, { "type": "string" }] }),
            json!({ INT_OR_STRING: true, "allOf": [{ "anyOf": [{ "type": "integer" }, { "type": "string" }] }, { "pattern": "x" }] }),
            json!({ "type": "object", "additionalProperties": { "type": "string" } }),
            json!({ "type": "object", EMBEDDED: true, KEEP: true }),
            json!({ "type": "object", "properties": { "b": { "type": "string" } }, "oneOf": [{ "required": ["b"] }] }),
            json!({ "type": "array", "items": { "type": "object", "required": ["k"], "properties": { "k": { "type": "string" } } },
                "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"] }),
        ] {
            assert_eq!(of_field(field.clone()), Vec::<String>::new(), "{field}");
        }
        for crd in asb_types::crd::all() {
            for version in crd["spec"]["versions"].as_array().expect("versions") {
                assert_eq!(errors(version["schema"]["openAPIV3Schema"].clone()), Vec::<String>::new());
            }
        }
    }
}
