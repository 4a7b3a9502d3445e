//! A value of an object with its path, and the checks that several kinds share.
//!
//! Messages are kube-apiserver's: clients and users look for them.

use serde_json::Value;

use crate::names;
use crate::path::Path;
use crate::status::FieldError;

pub(super) type Errors = Vec<FieldError>;

/// A value and where it stands. A field that is not given is null.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field<'p, 'v> {
    path: Path<'p>,
    pub value: &'v Value,
}

/// The operators that a requirement may have: those for nodes also compare numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operators {
    Labels,
    Nodes,
}

impl<'p, 'v> Field<'p, 'v> {
    pub fn root(object: &'v Value) -> Self {
        Self { path: Path::Root, value: object }
    }

    pub fn get<'s>(&'s self, name: &'s str) -> Field<'s, 'v> {
        Field { path: Path::Field(&self.path, name), value: &self.value[name] }
    }

    /// An entry of a map, with the path that [`Field::entries`] gives it.
    pub fn key<'s>(&'s self, key: &'s str) -> Field<'s, 'v> {
        Field { path: Path::Key(&self.path, key), value: &self.value[key] }
    }

    /// The items of a list; none for any other value.
    pub fn items(&self) -> impl Iterator<Item = Field<'_, 'v>> {
        let items = self.value.as_array().map(Vec::as_slice).unwrap_or_default();
        items.iter().enumerate().map(move |(at, value)| Field { path: Path::Item(&self.path, at), value })
    }

    /// The entries of a map; none for any other value.
    pub fn entries(&self) -> impl Iterator<Item = (&'v str, Field<'_, 'v>)> {
        let entries = self.value.as_object().into_iter().flatten();
        entries.map(move |(key, value)| (key.as_str(), Field { path: Path::Key(&self.path, key), value }))
    }

    /// Another value, reported under this path.
    pub fn with<'w>(&self, value: &'w Value) -> Field<'p, 'w> {
        Field { path: self.path, value }
    }

    pub fn is_given(&self) -> bool {
        !self.value.is_null()
    }

    /// The text, empty when there is none.
    pub fn text(&self) -> &'v str {
        self.value.as_str().unwrap_or_default()
    }

    pub fn path(&self) -> String {
        self.path.to_string()
    }

    pub fn invalid(&self, why: impl std::fmt::Display, errors: &mut Errors) {
        errors.push(FieldError::invalid(self.path, self.value, why));
    }

    pub fn forbidden(&self, why: &str, errors: &mut Errors) {
        errors.push(FieldError::forbidden(self.path, why));
    }

    pub fn missing(&self, why: &str, errors: &mut Errors) {
        errors.push(FieldError::required(self.path, why));
    }

    pub fn duplicate(&self, errors: &mut Errors) {
        errors.push(FieldError::duplicate(self.path, self.value));
    }

    /// Whether there is a text; reports a missing one.
    pub fn required(&self, errors: &mut Errors) -> bool {
        let given = !self.text().is_empty();
        if !given {
            self.missing("", errors);
        }
        given
    }

    /// Reports a value that is given and none of `allowed`.
    pub fn one_of(&self, allowed: &[&str], errors: &mut Errors) {
        if self.is_given() && !allowed.contains(&self.text()) {
            let allowed: Vec<Value> = allowed.iter().map(|value| (*value).into()).collect();
            errors.push(FieldError::unsupported(self.path, self.value, &allowed));
        }
    }

    pub fn not_negative(&self, errors: &mut Errors) {
        if self.value.as_i64().is_some_and(|number| number < 0) {
            self.invalid("must be greater than or equal to 0", errors);
        }
    }

    pub fn between(&self, low: i64, high: i64, errors: &mut Errors) {
        if self.value.as_i64().is_some_and(|number| !(low..=high).contains(&number)) {
            self.invalid(format!("must be between {low} and {high}, inclusive"), errors);
        }
    }

    /// The mode of a file.
    pub fn mode(&self, errors: &mut Errors) {
        if self.value.as_i64().is_some_and(|mode| !(0..=0o777).contains(&mode)) {
            self.invalid("must be a number between 0 and 0777 (octal), both inclusive", errors);
        }
    }

    /// A user or group of a Unix system.
    pub fn id(&self, errors: &mut Errors) {
        self.between(0, i64::from(i32::MAX), errors);
    }

    /// A port by number or by name.
    pub fn port(&self, errors: &mut Errors) {
        match self.value {
            Value::String(name) => names::port(name).into_iter().for_each(|why| self.invalid(why, errors)),
            _ => self.between(1, 65535, errors),
        }
    }

    /// A name that follows `rule`. An empty one is left to [`Field::required`].
    pub fn named(&self, rule: names::Rule, errors: &mut Errors) {
        if let Some(wrong) = Some(self.text()).filter(|name| !name.is_empty()).and_then(|it| rule.check(it)) {
            self.invalid(wrong, errors);
        }
    }

    /// A path below a directory: relative, and never leading out of it.
    pub fn descending_path(&self, errors: &mut Errors) {
        if self.text().starts_with('/') {
            self.invalid("must be a relative path", errors);
        }
        self.no_backsteps(errors);
    }

    /// A path below a directory in which names that start with two dots are the kubelet's own.
    pub fn own_path(&self, errors: &mut Errors) {
        self.descending_path(errors);
        let reserved = self.text().starts_with("..") && !self.text().split('/').any(|part| part == "..");
        if reserved {
            self.invalid("must not start with '..'", errors);
        }
    }

    pub fn no_backsteps(&self, errors: &mut Errors) {
        if self.text().split('/').any(|part| part == "..") {
            self.invalid("must not contain '..'", errors);
        }
    }

    /// A key of a ConfigMap or Secret.
    pub fn config_key(&self, errors: &mut Errors) {
        if self.required(errors) {
            names::config_key(self.text()).into_iter().for_each(|why| self.invalid(why, errors));
        }
    }

    /// A label selector.
    pub fn selector(&self, errors: &mut Errors) {
        let labels = self.get("matchLabels");
        for (key, value) in labels.entries() {
            if let Some(wrong) = names::label_key(key) {
                errors.push(FieldError::invalid(labels.path(), &key.into(), wrong));
            }
            if let Some(wrong) = names::label_value(value.text()) {
                errors.push(FieldError::invalid(labels.path(), value.value, wrong));
            }
        }
        for requirement in self.get("matchExpressions").items() {
            requirement.requirement(Operators::Labels, errors);
            requirement.get("values").items().for_each(|value| value.label_value(errors));
        }
    }

    /// A requirement for a label. The values are left to [`Field::label_value`].
    pub fn requirement(&self, operators: Operators, errors: &mut Errors) {
        let (operator, values) = (self.get("operator"), self.get("values"));
        let count = values.items().count();
        match operator.text() {
            "In" | "NotIn" if count == 0 => {
                values.missing("must be specified when `operator` is 'In' or 'NotIn'", errors);
            }
            "Exists" | "DoesNotExist" if count > 0 => {
                values
                    .forbidden("may not be specified when `operator` is 'Exists' or 'DoesNotExist'", errors);
            }
            "Gt" | "Lt" if operators == Operators::Nodes => {
                if count != 1 {
                    let why = "must be specified single value when `operator` is 'Lt' or 'Gt'";
                    values.missing(why, errors);
                }
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => operator.with(&operator.text().into()).invalid("not a valid selector operator", errors),
        }
        self.get("key").label_key(errors);
    }

    /// The key of a label; an empty one is none.
    pub fn label_key(&self, errors: &mut Errors) {
        if let Some(wrong) = names::label_key(self.text()) {
            self.with(&self.text().into()).invalid(wrong, errors);
        }
    }

    pub fn label_value(&self, errors: &mut Errors) {
        if let Some(wrong) = names::label_value(self.text()) {
            self.invalid(wrong, errors);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn errors_carry_the_path_of_the_value() {
        let object = json!({ "spec": { "list": [{ "n": -1 }], "map": { "a": 70000 }, "mode": "x" } });
        let (root, mut errors) = (Field::root(&object), Errors::new());
        let spec = root.get("spec");
        for item in spec.get("list").items() {
            item.get("n").not_negative(&mut errors);
        }
        for (_, value) in spec.get("map").entries() {
            value.port(&mut errors);
        }
        spec.get("mode").one_of(&["A", "B"], &mut errors);
        spec.get("gone").one_of(&["A"], &mut errors);
        let shown: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "spec.list[0].n: Invalid value: -1: must be greater than or equal to 0",
                "spec.map[a]: Invalid value: 70000: must be between 1 and 65535, inclusive",
                "spec.mode: Unsupported value: \"x\": supported values: \"A\", \"B\"",
            ]
        );
    }

    #[test]
    fn selectors_are_checked_by_requirement() {
        let selector = json!({ "matchLabels": { "ok": "not valid!" }, "matchExpressions": [
            { "key": "a", "operator": "in", "values": ["b"] }, { "key": "a", "operator": "In" },
            { "key": "a", "operator": "Exists", "values": ["b"] }, { "key": "", "operator": "Exists" }] });
        let mut errors = Errors::new();
        Field::root(&selector).selector(&mut errors);
        let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
        let list = |field: &str| format!("matchExpressions{field}");
        assert_eq!(
            fields,
            [
                "matchLabels",
                &list("[0].operator"),
                &list("[1].values"),
                &list("[2].values"),
                &list("[3].key")
            ]
        );
    }
}
