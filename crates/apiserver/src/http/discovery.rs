//! What the server can do, told in both forms that clients ask for.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};

use crate::ops::Api;
use crate::registry::{Form, Resource, group_version};
use crate::status::json_response;

const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const PROXY: &[&str] = &["create", "delete", "get", "patch", "update"];
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The API level that is spoken, not the version of this program.
pub(super) fn version() -> Value {
    json!({
        "major": "1", "minor": "36", "gitVersion": concat!("v1.36.0+asb-", env!("CARGO_PKG_VERSION")),
        "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "", "compiler": "rustc", "platform": format!("linux/{}", if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }),
    })
}

pub(super) fn answer(api: &Api, parts: &[&str], accept: &str) -> Option<Response> {
    let aggregated = accept.contains("as=APIGroupDiscoveryList") && accept.contains("v=v2;");
    let groups = groups(api);
    let body = match parts {
        ["api"] if aggregated => return Some(aggregate(&groups, true)),
        ["apis"] if aggregated => return Some(aggregate(&groups, false)),
        ["api"] => json!({ "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [] }),
        ["apis"] => {
            let list: Vec<Value> = groups
                .iter()
                .filter(|(name, _)| !name.is_empty())
                .map(|(name, versions)| group(name, versions))
                .collect();
            json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": list })
        }
        ["apis", name] => {
            let mut body = group(name, groups.get(*name)?);
            body["kind"] = "APIGroup".into();
            body["apiVersion"] = "v1".into();
            body
        }
        ["api", version] => resources("", version, groups.get("")?.get(*version)?),
        ["apis", name, version] => resources(name, version, groups.get(*name)?.get(*version)?),
        _ => return None,
    };
    Some(json_response(StatusCode::OK, &body))
}

type Versions = BTreeMap<String, Vec<(Arc<Resource>, usize)>>;

fn groups(api: &Api) -> BTreeMap<String, Versions> {
    let mut groups: BTreeMap<String, Versions> = BTreeMap::new();
    for resource in api.registry.all() {
        for (at, version) in resource.versions.iter().enumerate().filter(|(_, version)| version.served) {
            let versions = groups.entry(resource.group.to_string()).or_default();
            versions.entry(version.name.to_string()).or_default().push((resource.clone(), at));
        }
    }
    groups
}

/// Stable versions first, then beta, then alpha; newer before older.
fn by_preference(versions: &Versions) -> Vec<&String> {
    let rank = |name: &str| {
        let digits = |text: &str| {
            text.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0)
        };
        let major: u32 = digits(name.trim_start_matches('v'));
        let (stage, minor): (u32, u32) = match (name.split_once("beta"), name.split_once("alpha")) {
            (Some((_, minor)), _) => (1, digits(minor)),
            (_, Some((_, minor))) => (0, digits(minor)),
            _ => (2, 0),
        };
        std::cmp::Reverse((stage, major, minor))
    };
    let mut names: Vec<&String> = versions.keys().collect();
    names.sort_by_key(|name| rank(name));
    names
}

fn group(name: &str, versions: &Versions) -> Value {
    let list: Vec<Value> = by_preference(versions)
        .into_iter()
        .map(|version| json!({ "groupVersion": group_version(name, version), "version": version }))
        .collect();
    json!({ "name": name, "versions": list, "preferredVersion": list.first() })
}

fn resources(group: &str, version: &str, members: &[(Arc<Resource>, usize)]) -> Value {
    let mut list = Vec::new();
    for (resource, at) in members {
        let mut entry = json!({
            "name": &*resource.plural, "singularName": &*resource.singular, "namespaced": resource.namespaced,
            "kind": &*resource.kind, "verbs": verbs(resource),
        });
        if !resource.short_names.is_empty() {
            entry["shortNames"] = texts(&resource.short_names);
        }
        if !resource.categories.is_empty() {
            entry["categories"] = texts(&resource.categories);
        }
        list.push(entry);
        for subresource in subresources(resource, *at) {
            let mut entry = json!({
                "name": format!("{}/{}", resource.plural, subresource.name), "singularName": "",
                "namespaced": resource.namespaced, "kind": subresource.kind, "verbs": subresource.verbs,
            });
            if let Some((group, version)) = subresource.foreign() {
                entry["group"] = group.into();
                entry["version"] = version.into();
            }
            list.push(entry);
        }
    }
    json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version(group, version), "resources": list })
}

fn aggregate(groups: &BTreeMap<String, Versions>, core: bool) -> Response {
    let items: Vec<Value> = groups
        .iter()
        .filter(|(name, _)| name.is_empty() == core)
        .map(|(name, versions)| {
            let versions: Vec<Value> = by_preference(versions)
                .into_iter()
                .map(|version| {
                    let members = versions[version].iter().map(|(resource, at)| aggregated(resource, version, *at));
                    json!({ "version": version, "freshness": "Current", "resources": members.collect::<Vec<_>>() })
                })
                .collect();
            let metadata = if name.is_empty() { json!({}) } else { json!({ "name": name }) };
            json!({ "metadata": metadata, "versions": versions })
        })
        .collect();
    let body = json!({ "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items });
    let mut response = Response::new(Body::from(body.to_string()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(AGGREGATED));
    response
}

fn aggregated(resource: &Resource, version: &str, at: usize) -> Value {
    let kind = |kind: &str| json!({ "group": &*resource.group, "version": version, "kind": kind });
    let mut entry = json!({
        "resource": &*resource.plural, "responseKind": kind(&resource.kind),
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": &*resource.singular, "verbs": verbs(resource),
    });
    if !resource.short_names.is_empty() {
        entry["shortNames"] = texts(&resource.short_names);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = texts(&resource.categories);
    }
    let below: Vec<Value> = subresources(resource, at)
        .iter()
        .map(|subresource| {
            let shown = match subresource.foreign() {
                Some((group, version)) => {
                    json!({ "group": group, "version": version, "kind": subresource.kind })
                }
                None => kind(subresource.kind),
            };
            json!({ "subresource": subresource.name, "responseKind": shown, "verbs": subresource.verbs })
        })
        .collect();
    if !below.is_empty() {
        entry["subresources"] = below.into();
    }
    entry
}

struct Subresource<'a> {
    name: &'static str,
    kind: &'a str,
    verbs: &'static [&'static str],
}

impl Subresource<'_> {
    /// The group and version of its kind, if they are not those of the resource.
    fn foreign(&self) -> Option<(&'static str, &'static str)> {
        match self.name {
            "scale" => Some(("autoscaling", "v1")),
            "eviction" => Some(("policy", "v1")),
            _ => None,
        }
    }
}

fn subresources(resource: &Resource, at: usize) -> Vec<Subresource<'_>> {
    const CHANGE: &[&str] = &["get", "patch", "update"];
    let version = &resource.versions[at];
    let mut list = Vec::new();
    if version.status {
        list.push(Subresource { name: "status", kind: &resource.kind, verbs: CHANGE });
    }
    if version.scale.is_some() {
        list.push(Subresource { name: "scale", kind: "Scale", verbs: CHANGE });
    }
    if resource.is("", "pods") {
        list.push(Subresource { name: "log", kind: "Pod", verbs: &["get"] });
        for (name, kind) in [
            ("exec", "PodExecOptions"),
            ("attach", "PodAttachOptions"),
            ("portforward", "PodPortForwardOptions"),
        ] {
            list.push(Subresource { name, kind, verbs: &["create", "get"] });
        }
        list.push(Subresource { name: "binding", kind: "Binding", verbs: &["create"] });
        list.push(Subresource { name: "eviction", kind: "Eviction", verbs: &["create"] });
        list.push(Subresource { name: "proxy", kind: "PodProxyOptions", verbs: PROXY });
        list.push(Subresource { name: "ephemeralcontainers", kind: "Pod", verbs: CHANGE });
    }
    if resource.is("", "services") {
        list.push(Subresource { name: "proxy", kind: "ServiceProxyOptions", verbs: PROXY });
    }
    if resource.is("", "nodes") {
        list.push(Subresource { name: "proxy", kind: "NodeProxyOptions", verbs: &["get"] });
    }
    if resource.is("", "namespaces") {
        list.push(Subresource { name: "finalize", kind: "Namespace", verbs: &["update"] });
    }
    list
}

fn verbs(resource: &Resource) -> &'static [&'static str] {
    match resource.form {
        Form::Review => &["create"],
        Form::Live => &["get", "list"],
        Form::Absent => &["get", "list", "watch"],
        _ if !resource.can_empty() => &["create", "delete", "get", "list", "patch", "update", "watch"],
        _ => &VERBS,
    }
}

fn texts(list: &[Box<str>]) -> Value {
    list.iter().map(|text| Value::from(&**text)).collect()
}
