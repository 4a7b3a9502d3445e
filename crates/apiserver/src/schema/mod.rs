//! Structural schemas: what a CustomResourceDefinition says about its objects.
//!
//! An object goes through four steps on its way in: [`fill`](Schema::fill) (prune unknown fields and set defaults),
//! [`validate`](Schema::validate) and the CEL rules ([`Rules`]).

mod cel;
mod fill;
mod format;
mod reads;
mod types;
mod validate;

use std::collections::{BTreeMap, HashMap};
use std::sync::{LazyLock, Mutex};

use regex::Regex;
use serde_json::Value;

pub(crate) use cel::{Rules, rule_problem};

/// Deeper schemas and objects are refused rather than walked.
const MAX_DEPTH: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Schema {
    kind: Option<Kind>,
    properties: BTreeMap<Box<str>, Schema>,
    items: Option<Box<Schema>>,
    additional: Additional,
    required: Vec<Box<str>>,
    default: Option<Value>,
    nullable: bool,
    preserve_unknown: bool,
    embedded: bool,
    int_or_string: bool,
    list: List,
    /// Built-in kinds merge lists by keys without insisting on distinct items: `env` may repeat a name.
    duplicates_allowed: bool,
    checks: Option<Box<Checks>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

#[derive(Debug, Default)]
enum Additional {
    #[default]
    None,
    Any,
    Schema(Box<Schema>),
}

/// How the items of a list are told apart.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum List {
    #[default]
    Atomic,
    Set,
    Map(Vec<Box<str>>),
}

/// The checks that few fields have.
#[derive(Debug, Default)]
struct Checks {
    allowed: Vec<Value>,
    minimum: Option<f64>,
    maximum: Option<f64>,
    exclusive_minimum: bool,
    exclusive_maximum: bool,
    multiple_of: Option<f64>,
    min_length: Option<u64>,
    max_length: Option<u64>,
    pattern: Option<Regex>,
    format: Option<Box<str>>,
    min_items: Option<u64>,
    max_items: Option<u64>,
    unique: bool,
    min_properties: Option<u64>,
    max_properties: Option<u64>,
    all_of: Vec<Schema>,
    any_of: Vec<Schema>,
    one_of: Vec<Schema>,
    not: Option<Schema>,
}

#[derive(Debug, thiserror::Error)]
#[error("{path}: {why}")]
pub(crate) struct SchemaError {
    path: String,
    why: String,
}

impl Kind {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "object" => Kind::Object,
            "array" => Kind::Array,
            "string" => Kind::String,
            "integer" => Kind::Integer,
            "number" => Kind::Number,
            "boolean" => Kind::Boolean,
            _ => return None,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Object => "object",
            Kind::Array => "array",
            Kind::String => "string",
            Kind::Integer => "integer",
            Kind::Number => "number",
            Kind::Boolean => "boolean",
        }
    }
}

impl Schema {
    pub fn compile(schema: &Value) -> Result<Self, SchemaError> {
        Self::node(schema, "openAPIV3Schema", 0)
    }

    /// A schema that knows nothing and keeps everything.
    pub fn open() -> Self {
        Self { preserve_unknown: true, ..Self::default() }
    }

    /// The same schema for a built-in kind, whose own checks decide about duplicates.
    pub fn allowing_duplicates(mut self) -> Self {
        self.duplicates_allowed = true;
        self.properties = self.properties.into_iter().map(|(n, s)| (n, s.allowing_duplicates())).collect();
        self.items = self.items.map(|items| Box::new(items.allowing_duplicates()));
        self
    }

    pub fn property(&self, name: &str) -> Option<&Schema> {
        self.properties.get(name).or(match &self.additional {
            Additional::Schema(schema) => Some(schema),
            _ => None,
        })
    }

    pub fn items(&self) -> Option<&Schema> {
        self.items.as_deref()
    }

    pub fn default_value(&self) -> Option<&Value> {
        self.default.as_ref()
    }

    pub fn list(&self) -> &List {
        &self.list
    }

    fn node(schema: &Value, path: &str, depth: usize) -> Result<Self, SchemaError> {
        let fail = |why: String| SchemaError { path: path.to_owned(), why };
        if depth > MAX_DEPTH {
            return Err(fail(format!("nested more than {MAX_DEPTH} levels deep")));
        }
        let child = |schema: &Value, step: &str| Self::node(schema, &format!("{path}.{step}"), depth + 1);
        let flag = |name: &str| schema[name] == true;
        let kind = match schema["type"].as_str() {
            None | Some("") => None,
            Some(text) => Some(Kind::parse(text).ok_or_else(|| fail(format!("unknown type {text:?}")))?),
        };
        let mut properties = BTreeMap::new();
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            properties.insert(name.as_str().into(), child(property, &format!("properties[{name}]"))?);
        }
        Ok(Self {
            kind,
            properties,
            items: match &schema["items"] {
                Value::Null => None,
                items => Some(Box::new(child(items, "items")?)),
            },
            additional: match &schema["additionalProperties"] {
                Value::Bool(true) => Additional::Any,
                Value::Object(_) => Additional::Schema(Box::new(child(
                    &schema["additionalProperties"],
                    "additionalProperties",
                )?)),
                _ => Additional::None,
            },
            required: strings(&schema["required"]),
            default: schema.get("default").cloned(),
            nullable: flag("nullable"),
            preserve_unknown: flag("x-kubernetes-preserve-unknown-fields"),
            embedded: flag("x-kubernetes-embedded-resource"),
            int_or_string: flag("x-kubernetes-int-or-string"),
            list: match schema["x-kubernetes-list-type"].as_str() {
                Some("set") => List::Set,
                Some("map") => List::Map(strings(&schema["x-kubernetes-list-map-keys"])),
                _ => List::Atomic,
            },
            duplicates_allowed: false,
            checks: Checks::compile(schema, path, depth)?.map(Box::new),
        })
    }
}

impl Checks {
    fn compile(schema: &Value, path: &str, depth: usize) -> Result<Option<Self>, SchemaError> {
        const NAMES: [&str; 19] = [
            "enum",
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "exclusiveMaximum",
            "multipleOf",
            "minLength",
            "maxLength",
            "pattern",
            "format",
            "minItems",
            "maxItems",
            "uniqueItems",
            "minProperties",
            "maxProperties",
            "allOf",
            "anyOf",
            "oneOf",
            "not",
        ];
        if !NAMES.iter().any(|name| schema.get(name).is_some()) {
            return Ok(None);
        }
        let branches = |name: &str| -> Result<Vec<Schema>, SchemaError> {
            schema[name]
                .as_array()
                .into_iter()
                .flatten()
                .map(|branch| Schema::node(branch, &format!("{path}.{name}"), depth + 1))
                .collect()
        };
        let pattern = match schema["pattern"].as_str() {
            None => None,
            Some(text) => Some(pattern(text).map_err(|error| SchemaError {
                path: format!("{path}.pattern"),
                why: format!("not a valid regular expression: {error}"),
            })?),
        };
        Ok(Some(Self {
            allowed: schema["enum"].as_array().cloned().unwrap_or_default(),
            minimum: schema["minimum"].as_f64(),
            maximum: schema["maximum"].as_f64(),
            exclusive_minimum: schema["exclusiveMinimum"] == true,
            exclusive_maximum: schema["exclusiveMaximum"] == true,
            multiple_of: schema["multipleOf"].as_f64(),
            min_length: schema["minLength"].as_u64(),
            max_length: schema["maxLength"].as_u64(),
            pattern,
            format: schema["format"].as_str().map(Into::into),
            min_items: schema["minItems"].as_u64(),
            max_items: schema["maxItems"].as_u64(),
            unique: schema["uniqueItems"] == true,
            min_properties: schema["minProperties"].as_u64(),
            max_properties: schema["maxProperties"].as_u64(),
            all_of: branches("allOf")?,
            any_of: branches("anyOf")?,
            one_of: branches("oneOf")?,
            not: match &schema["not"] {
                Value::Null => None,
                not => Some(Schema::node(not, &format!("{path}.not"), depth + 1)?),
            },
        }))
    }
}

/// One compiled expression per pattern: Pod templates repeat the quantity pattern dozens of times.
fn pattern(text: &str) -> Result<Regex, regex::Error> {
    static KNOWN: LazyLock<Mutex<HashMap<String, Regex>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(regex) = known.get(text) {
        return Ok(regex.clone());
    }
    let regex = regex::RegexBuilder::new(text).size_limit(1 << 20).build()?;
    known.insert(text.to_owned(), regex.clone());
    Ok(regex)
}

fn strings(list: &Value) -> Vec<Box<str>> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(Into::into).collect()
}
