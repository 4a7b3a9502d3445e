//! Objects as rows for `kubectl get`.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::columns;
use crate::registry::Target;

/// What `includeObject` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Include {
    Nothing,
    Metadata,
    Object,
}

pub(super) struct Table<'a> {
    target: &'a Target,
    include: Include,
    now: Timestamp,
}

impl Include {
    pub fn parse(text: &str) -> Self {
        match text {
            "None" => Include::Nothing,
            "Object" => Include::Object,
            _ => Include::Metadata,
        }
    }
}

impl<'a> Table<'a> {
    pub fn new(target: &'a Target, include: Include) -> Self {
        Self { target, include, now: Timestamp::now() }
    }

    /// A table with a row for each object. Watches leave the columns out after the first one.
    pub fn render(&self, metadata: Value, objects: impl Iterator<Item = Value>, with_columns: bool) -> Value {
        let rows: Vec<Value> = objects.map(|object| self.row(object)).collect();
        let columns = if with_columns { self.columns() } else { Value::Null };
        json!({
            "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
            "columnDefinitions": columns, "rows": rows,
        })
    }

    fn columns(&self) -> Value {
        if let Some(builtin) = columns::builtin(&self.target.resource) {
            let definitions = builtin.iter().map(|column| {
                definition(
                    column.name,
                    column.kind,
                    if column.name == "Name" { "name" } else { "" },
                    column.name,
                    i64::from(column.wide),
                )
            });
            return definitions.collect();
        }
        let mut list =
            vec![definition("Name", "string", "name", "Name must be unique within a namespace.", 0)];
        let custom = &self.target.version().columns;
        list.extend(custom.iter().map(|column| {
            definition(&column.name, &column.kind, &column.format, &column.description, column.priority)
        }));
        if custom.is_empty() {
            list.push(definition("Age", "date", "", "Time since the object was created.", 0));
        }
        list.into()
    }

    fn row(&self, object: Value) -> Value {
        let cells = self.cells(&object);
        let mut row = json!({ "cells": cells });
        match self.include {
            Include::Nothing => {}
            Include::Object => row["object"] = object,
            Include::Metadata => row["object"] = metadata_only(&object),
        }
        row
    }

    fn cells(&self, object: &Value) -> Vec<Value> {
        if let Some(builtin) = columns::builtin(&self.target.resource) {
            return columns::cells(builtin, object, self.now);
        }
        let mut cells = vec![object["metadata"]["name"].clone()];
        let custom = &self.target.version().columns;
        cells.extend(custom.iter().map(|column| {
            let found = column.path.find(object);
            match (found.first(), &*column.kind) {
                (None | Some(Value::Null), _) => Value::Null,
                (Some(value), "date") => columns::age(value, self.now),
                (Some(value), "string") => match (found.len(), value) {
                    (1, Value::String(_)) => (*value).clone(),
                    _ => found.iter().map(|value| plain(value)).collect::<Vec<_>>().join(",").into(),
                },
                (Some(value), _) => (*value).clone(),
            }
        }));
        if custom.is_empty() {
            cells.push(columns::age(&object["metadata"]["creationTimestamp"], self.now));
        }
        cells
    }
}

/// The object's metadata as a `PartialObjectMetadata`.
pub(super) fn metadata_only(object: &Value) -> Value {
    json!({ "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"] })
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn definition(name: &str, kind: &str, format: &str, description: &str, priority: i64) -> Value {
    json!({ "name": name, "type": kind, "format": format, "description": description, "priority": priority })
}
