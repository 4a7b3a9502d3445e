//! The kinds that exist without a CustomResourceDefinition.

use std::sync::Arc;

use asb_types::schemas;
use serde_json::{Value, json};

use super::absent::ABSENT;
use super::resource::{Form, Resource, Version};
use crate::status::qualified;

/// The fields of a collection that field selectors may name, besides name and namespace.
pub(crate) fn selectable_fields(collection: &str) -> &'static [&'static str] {
    match collection {
        "pods" => &[
            "spec.nodeName",
            "status.phase",
            "status.podIP",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
        ],
        "events" => &[
            "involvedObject.name",
            "involvedObject.namespace",
            "involvedObject.kind",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "type",
        ],
        "secrets" => &["type"],
        "services" => &["spec.clusterIP", "spec.type"],
        "nodes" => &["spec.unschedulable"],
        "namespaces" => &["status.phase"],
        _ => &[],
    }
}

struct Row {
    group: &'static str,
    plural: &'static str,
    singular: &'static str,
    kind: &'static str,
    short: &'static [&'static str],
    namespaced: bool,
    status: bool,
}

const fn row(group: &'static str, plural: &'static str, singular: &'static str, kind: &'static str) -> Row {
    Row { group, plural, singular, kind, short: &[], namespaced: true, status: false }
}

impl Row {
    const fn short(self, short: &'static [&'static str]) -> Self {
        Self { short, ..self }
    }

    const fn cluster(self) -> Self {
        Self { namespaced: false, ..self }
    }

    const fn status(self) -> Self {
        Self { status: true, ..self }
    }
}

const CORE: &str = "";
const ROWS: &[Row] = &[
    row(CORE, "namespaces", "namespace", "Namespace").short(&["ns"]).cluster().status(),
    row(CORE, "pods", "pod", "Pod").short(&["po"]).status(),
    row(CORE, "services", "service", "Service").short(&["svc"]).status(),
    row(CORE, "persistentvolumeclaims", "persistentvolumeclaim", "PersistentVolumeClaim")
        .short(&["pvc"])
        .status(),
    row(CORE, "persistentvolumes", "persistentvolume", "PersistentVolume").short(&["pv"]).cluster().status(),
    row(CORE, "events", "event", "Event").short(&["ev"]),
    row(CORE, "nodes", "node", "Node").short(&["no"]).cluster().status(),
    row(CORE, "configmaps", "configmap", "ConfigMap").short(&["cm"]),
    row(CORE, "secrets", "secret", "Secret"),
    row(CORE, "serviceaccounts", "serviceaccount", "ServiceAccount").short(&["sa"]),
    row(CORE, "endpoints", "endpoints", "Endpoints").short(&["ep"]),
    row("coordination.k8s.io", "leases", "lease", "Lease"),
    row("events.k8s.io", "events", "event", "Event").short(&["ev"]),
    row("storage.k8s.io", "storageclasses", "storageclass", "StorageClass").short(&["sc"]).cluster(),
    row("node.k8s.io", "runtimeclasses", "runtimeclass", "RuntimeClass").cluster(),
    row("networking.k8s.io", "networkpolicies", "networkpolicy", "NetworkPolicy").short(&["netpol"]),
    row("discovery.k8s.io", "endpointslices", "endpointslice", "EndpointSlice"),
    row("metrics.k8s.io", "nodes", "", "NodeMetrics").cluster(),
    row("metrics.k8s.io", "pods", "", "PodMetrics"),
    row(
        "authorization.k8s.io",
        "selfsubjectaccessreviews",
        "selfsubjectaccessreview",
        "SelfSubjectAccessReview",
    )
    .cluster(),
    row(
        "authorization.k8s.io",
        "selfsubjectrulesreviews",
        "selfsubjectrulesreview",
        "SelfSubjectRulesReview",
    )
    .cluster(),
    row("authentication.k8s.io", "selfsubjectreviews", "selfsubjectreview", "SelfSubjectReview").cluster(),
    row(
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        "customresourcedefinition",
        "CustomResourceDefinition",
    )
    .short(&["crd", "crds"])
    .cluster()
    .status(),
];

pub(super) fn resources() -> Vec<Arc<Resource>> {
    let absent = ABSENT.iter().map(|absent| {
        let row = row(absent.group, absent.plural, absent.singular, absent.kind).short(absent.short);
        Resource { form: Form::Absent, ..resource(&row) }
    });
    ROWS.iter().map(resource).chain(absent).map(Arc::new).collect()
}

fn resource(row: &Row) -> Resource {
    let form = match row.group {
        "events.k8s.io" => Form::NewEvents,
        "authorization.k8s.io" | "authentication.k8s.io" => Form::Review,
        "metrics.k8s.io" => Form::Live,
        _ => Form::AsStored,
    };
    let stored_group = if form == Form::NewEvents { CORE } else { row.group };
    let mut version = Version::new(if form == Form::Live { "v1beta1" } else { "v1" }, schema(row));
    version.status = row.status;
    version.built_in = true;
    Resource {
        group: row.group.into(),
        plural: row.plural.into(),
        singular: row.singular.into(),
        kind: row.kind.into(),
        list_kind: format!("{}List", row.kind).into(),
        short_names: row.short.iter().map(|name| (*name).into()).collect(),
        categories: if row.group.is_empty() && matches!(row.plural, "pods" | "services") {
            vec!["all".into()]
        } else {
            Vec::new()
        },
        namespaced: row.namespaced,
        collection: qualified(row.plural, stored_group).into(),
        versions: vec![version],
        storage: 0,
        custom: false,
        form,
    }
}

/// What is known about a built-in kind's fields. Kinds without a schema accept everything.
fn schema(row: &Row) -> Option<Arc<str>> {
    let parse =
        |text: &str| serde_json::from_str::<Value>(text).expect("the schemas in the repository are JSON");
    let free = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let text_map = json!({ "type": "object", "additionalProperties": { "type": "string" } });
    let bytes_map =
        json!({ "type": "object", "additionalProperties": { "type": "string", "format": "byte" } });
    let properties = match (row.group, row.plural) {
        (CORE, "pods") => json!({ "spec": parse(schemas::POD_SPEC), "status": free }),
        (CORE, "persistentvolumeclaims") => {
            json!({ "spec": parse(schemas::VOLUME_CLAIM_SPEC), "status": free })
        }
        ("networking.k8s.io", "networkpolicies") => {
            let mut spec = parse(schemas::NETWORK_POLICY);
            let peer = &spec["properties"]["ingress"]["items"]["properties"]["from"]["items"];
            spec["properties"]["podSelector"] = peer["properties"]["podSelector"].clone();
            spec["properties"]["policyTypes"] = json!({ "type": "array", "items": { "type": "string" } });
            json!({ "spec": spec, "status": free })
        }
        (CORE, "configmaps") => {
            json!({ "data": text_map, "binaryData": bytes_map, "immutable": { "type": "boolean" } })
        }
        (CORE, "secrets") => json!({
            "data": bytes_map, "stringData": text_map, "type": { "type": "string" }, "immutable": { "type": "boolean" },
        }),
        _ => return None,
    };
    Some(json!({ "type": "object", "properties": properties }).to_string().into())
}
