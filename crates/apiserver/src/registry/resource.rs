//! A kind that the server serves: its names, versions, schema and the way it is stored.

use std::sync::{Arc, OnceLock};

use asb_types::conversion;
use serde_json::Value;

use super::events;
use crate::http::jsonpath::JsonPath;
use crate::schema::{Rules, Schema, SchemaError};
use crate::status::{ApiError, FieldError, qualified};
use crate::store::Entry;

#[derive(Debug)]
pub(crate) struct Resource {
    pub group: Box<str>,
    pub plural: Box<str>,
    pub singular: Box<str>,
    pub kind: Box<str>,
    pub list_kind: Box<str>,
    pub short_names: Vec<Box<str>>,
    pub categories: Vec<Box<str>>,
    pub namespaced: bool,
    /// Where the objects are kept; two resources may share one.
    pub collection: Arc<str>,
    pub versions: Vec<Version>,
    /// Position of the version that is stored.
    pub storage: usize,
    pub custom: bool,
    /// Served under other field names than stored.
    pub form: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    AsStored,
    /// In versions whose fields differ: one of our own kinds.
    Converted,
    /// `events.k8s.io/v1`, kept as core events.
    NewEvents,
    /// Answered, never stored.
    Review,
    /// Measured by the node when asked for, never stored.
    Live,
    /// Known, but not run here: there is never one.
    Absent,
}

#[derive(Debug)]
pub(crate) struct Version {
    pub name: Box<str>,
    pub served: bool,
    pub built_in: bool,
    /// What users of this version are told.
    pub deprecation: Option<Box<str>>,
    pub status: bool,
    pub scale: Option<Scale>,
    pub columns: Vec<Column>,
    /// Dotted paths of the fields that a definition makes selectable.
    pub selectable: Vec<Box<str>>,
    /// The OpenAPI schema as JSON text; kinds without one accept everything.
    pub schema: Option<Arc<str>>,
    compiled: OnceLock<Compiled>,
}

pub(crate) struct Compiled {
    pub schema: Schema,
    pub rules: Option<Rules>,
}

/// Where the `scale` subresource finds its numbers.
#[derive(Debug, Clone)]
pub(crate) struct Scale {
    pub spec: Box<str>,
    pub status: Box<str>,
    pub selector: Option<Box<str>>,
}

#[derive(Debug)]
pub(crate) struct Column {
    pub name: Box<str>,
    pub kind: Box<str>,
    pub format: Box<str>,
    pub description: Box<str>,
    pub priority: i64,
    pub path: JsonPath,
}

/// A resource in one of its versions: what a request is about.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub resource: Arc<Resource>,
    pub version: usize,
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Compiled")
    }
}

impl Version {
    pub fn new(name: &str, schema: Option<Arc<str>>) -> Self {
        Self {
            name: name.into(),
            served: true,
            built_in: false,
            deprecation: None,
            status: false,
            scale: None,
            columns: Vec::new(),
            selectable: Vec::new(),
            schema,
            compiled: OnceLock::new(),
        }
    }

    /// Compiled when first needed: most kinds of a short-lived server are never written to.
    pub fn compiled(&self) -> &Compiled {
        self.compiled.get_or_init(|| {
            self.compile().unwrap_or_else(|error| {
                tracing::error!(error = &error as &dyn std::error::Error, "a stored schema does not compile");
                Compiled { schema: Schema::open(), rules: None }
            })
        })
    }

    pub fn compile(&self) -> Result<Compiled, SchemaError> {
        let Some(text) = &self.schema else { return Ok(Compiled { schema: Schema::open(), rules: None }) };
        let json: Value = serde_json::from_str(text).unwrap_or_default();
        let schema = Schema::compile(&json)?;
        let schema = if self.built_in { schema.allowing_duplicates() } else { schema };
        Ok(Compiled { schema, rules: Rules::compile(&json) })
    }
}

impl Resource {
    /// `sandboxes.agents.x-k8s.io`.
    pub fn qualified(&self) -> String {
        qualified(&self.plural, &self.group)
    }

    pub fn is(&self, group: &str, plural: &str) -> bool {
        *self.group == *group && *self.plural == *plural
    }

    /// Whether all objects can be deleted in one request: kube-apiserver does not serve that for namespaces.
    pub fn can_empty(&self) -> bool {
        !self.is("", "namespaces")
    }
}

impl Target {
    pub fn version(&self) -> &Version {
        &self.resource.versions[self.version]
    }

    pub fn api_version(&self) -> String {
        group_version(&self.resource.group, &self.version().name)
    }

    /// The same resource in the version that is stored.
    pub fn stored(&self) -> Target {
        Target { resource: self.resource.clone(), version: self.resource.storage }
    }

    /// The bytes of an entry as this version shows them.
    pub fn render(&self, entry: &Entry) -> bytes::Bytes {
        if self.shows_as_stored(entry) {
            return entry.bytes.clone();
        }
        self.present(entry).to_string().into()
    }

    /// The entry as a value of this version.
    pub fn present(&self, entry: &Entry) -> Value {
        let mut object = entry.parse();
        let api_version = self.api_version();
        match self.resource.form {
            // What is stored can be shown at every version.
            Form::Converted if conversion::convert(&mut object, &api_version).is_ok() => return object,
            Form::NewEvents => events::to_new(&mut object),
            Form::AsStored | Form::Converted | Form::Review | Form::Live | Form::Absent => {}
        }
        object["apiVersion"] = api_version.into();
        object
    }

    /// Turns a value of this version into what is stored.
    pub fn to_stored(&self, mut object: Value) -> Result<Value, ApiError> {
        let stored = self.stored();
        match self.resource.form {
            Form::NewEvents => events::to_core(&mut object),
            Form::Converted if self.version != stored.version => {
                conversion::convert(&mut object, &stored.api_version()).map_err(|error| {
                    let name = object["metadata"]["name"].as_str().unwrap_or_default();
                    let error = FieldError::forbidden("metadata.annotations", &error.to_string());
                    ApiError::invalid(&self.resource.group, &self.resource.kind, name, &[error])
                })?;
                // The defaults of the other version have been set; these are the stored version's own.
                stored.version().compiled().schema.fill(&mut object);
            }
            _ => object["apiVersion"] = stored.api_version().into(),
        }
        Ok(object)
    }

    fn shows_as_stored(&self, entry: &Entry) -> bool {
        let shown = entry
            .bytes
            .strip_prefix(b"{\"apiVersion\":\"")
            .and_then(|rest| rest.strip_prefix(self.api_version().as_bytes()))
            .is_some_and(|rest| rest.starts_with(b"\""));
        shown && self.resource.form != Form::NewEvents
    }
}

pub(crate) fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}
