//! The columns of built-in kinds, as kubectl users know them.

mod endpoints;
mod pod;

use std::cell::LazyCell;

use jiff::Timestamp;
use serde_json::Value;

use crate::registry::{Form, Resource};

pub(super) struct Column {
    pub name: &'static str,
    pub kind: &'static str,
    /// Shown with `-o wide` only.
    pub wide: bool,
    cell: Cell,
}

enum Cell {
    Of(fn(&Value, Timestamp) -> Value),
    /// From the row of a Pod, which is computed once for all its cells.
    OfPod(fn(&pod::Row) -> &str),
}

/// The cells of an object.
pub(super) fn cells(columns: &[Column], object: &Value, now: Timestamp) -> Vec<Value> {
    let row = LazyCell::new(|| pod::row(object, now));
    let cell = |column: &Column| match column.cell {
        Cell::Of(cell) => cell(object, now),
        Cell::OfPod(cell) => cell(&row).into(),
    };
    columns.iter().map(cell).collect()
}

const fn column(name: &'static str, cell: fn(&Value, Timestamp) -> Value) -> Column {
    Column { name, kind: "string", wide: false, cell: Cell::Of(cell) }
}

const fn wide(name: &'static str, cell: fn(&Value, Timestamp) -> Value) -> Column {
    Column { name, kind: "string", wide: true, cell: Cell::Of(cell) }
}

const fn of_pod(name: &'static str, cell: fn(&pod::Row) -> &str) -> Column {
    Column { name, kind: "string", wide: false, cell: Cell::OfPod(cell) }
}

const NAME: Column = column("Name", |o, _| o["metadata"]["name"].clone());
const AGE: Column = column("Age", |o, now| age(&o["metadata"]["creationTimestamp"], now));

const PODS: &[Column] = &[
    NAME,
    of_pod("Ready", |row| &row.ready),
    of_pod("Status", |row| &row.status),
    of_pod("Restarts", |row| &row.restarts),
    AGE,
    wide("IP", |pod, _| or_none(&pod["status"]["podIP"])),
    wide("Node", |pod, _| or_none(&pod["spec"]["nodeName"])),
    wide("Nominated Node", |pod, _| or_none(&pod["status"]["nominatedNodeName"])),
    wide("Readiness Gates", |pod, _| pod::gates(pod).into()),
];
const METRICS: &[Column] = &[
    NAME,
    column("CPU", |o, _| usage(o, "cpu")),
    column("Memory", |o, _| usage(o, "memory")),
    column("Window", |o, _| text(&o["window"])),
];
const SERVICES: &[Column] = &[
    NAME,
    column("Type", |o, _| o["spec"]["type"].clone()),
    column("Cluster-IP", |o, _| or_none(&o["spec"]["clusterIP"])),
    column("External-IP", |o, _| or_none(&o["spec"]["externalIPs"][0])),
    column("Port(s)", |o, _| {
        let ports: Vec<String> = list(&o["spec"]["ports"])
            .iter()
            .map(|port| format!("{}/{}", port["port"], port["protocol"].as_str().unwrap_or("TCP")))
            .collect();
        if ports.is_empty() { "<none>".into() } else { ports.join(",").into() }
    }),
    AGE,
    wide("Selector", |o, _| pairs(&o["spec"]["selector"])),
];
const ENDPOINTS: &[Column] = &[NAME, column("Endpoints", |o, _| endpoints::of_endpoints(o).into()), AGE];
const SLICES: &[Column] = &[
    NAME,
    column("AddressType", |o, _| text(&o["addressType"])),
    column("Ports", |o, _| endpoints::ports_of_slice(o).into()),
    column("Endpoints", |o, _| endpoints::addresses_of_slice(o).into()),
    AGE,
];
const CLAIMS: &[Column] = &[
    NAME,
    column("Status", |o, _| phase(o)),
    column("Volume", |o, _| text(&o["spec"]["volumeName"])),
    column("Capacity", |o, _| text(&o["status"]["capacity"]["storage"])),
    column("Access Modes", |o, _| modes(&o["status"]["accessModes"])),
    column("StorageClass", |o, _| text(&o["spec"]["storageClassName"])),
    AGE,
    wide("VolumeMode", |o, _| text(&o["spec"]["volumeMode"])),
];
const VOLUMES: &[Column] = &[
    NAME,
    column("Capacity", |o, _| text(&o["spec"]["capacity"]["storage"])),
    column("Access Modes", |o, _| modes(&o["spec"]["accessModes"])),
    column("Reclaim Policy", |o, _| text(&o["spec"]["persistentVolumeReclaimPolicy"])),
    column("Status", |o, _| phase(o)),
    column("Claim", |o, _| {
        let claim = &o["spec"]["claimRef"];
        match (claim["namespace"].as_str(), claim["name"].as_str()) {
            (Some(namespace), Some(name)) => format!("{namespace}/{name}").into(),
            _ => "".into(),
        }
    }),
    column("StorageClass", |o, _| text(&o["spec"]["storageClassName"])),
    AGE,
];
const NODES: &[Column] = &[
    NAME,
    column("Status", |o, _| {
        let ready = list(&o["status"]["conditions"]).iter().find(|c| c["type"] == "Ready");
        let mut status = match ready {
            Some(condition) if condition["status"] == "True" => "Ready",
            Some(_) => "NotReady",
            None => "Unknown",
        }
        .to_owned();
        if o["spec"]["unschedulable"] == true {
            status += ",SchedulingDisabled";
        }
        status.into()
    }),
    column("Roles", |o, _| {
        let labels = o["metadata"]["labels"].as_object();
        let roles: Vec<&str> = labels
            .into_iter()
            .flatten()
            .filter_map(|(key, _)| key.strip_prefix("node-role.kubernetes.io/"))
            .collect();
        if roles.is_empty() { "<none>".into() } else { roles.join(",").into() }
    }),
    AGE,
    column("Version", |o, _| text(&o["status"]["nodeInfo"]["kubeletVersion"])),
    wide("Internal-IP", |o, _| {
        let address = list(&o["status"]["addresses"]).iter().find(|a| a["type"] == "InternalIP");
        address.map_or("<none>".into(), |address| address["address"].clone())
    }),
    wide("External-IP", |o, _| {
        let address = list(&o["status"]["addresses"]).iter().find(|a| a["type"] == "ExternalIP");
        address.map_or("<none>".into(), |address| address["address"].clone())
    }),
    wide("OS-Image", |o, _| text(&o["status"]["nodeInfo"]["osImage"])),
    wide("Kernel-Version", |o, _| text(&o["status"]["nodeInfo"]["kernelVersion"])),
    wide("Container-Runtime", |o, _| text(&o["status"]["nodeInfo"]["containerRuntimeVersion"])),
];
const NAMESPACES: &[Column] = &[NAME, column("Status", |o, _| phase(o)), AGE];
const EVENTS: &[Column] = &[
    column("Last Seen", |o, now| age(last_seen(o), now)),
    column("Type", |o, _| text(&o["type"])),
    column("Reason", |o, _| text(&o["reason"])),
    column("Object", |o, _| {
        let object = if o["regarding"].is_object() { &o["regarding"] } else { &o["involvedObject"] };
        let kind = object["kind"].as_str().unwrap_or_default().to_lowercase();
        format!("{kind}/{}", object["name"].as_str().unwrap_or_default()).into()
    }),
    wide("Subobject", |o, _| {
        let object = if o["regarding"].is_object() { &o["regarding"] } else { &o["involvedObject"] };
        text(&object["fieldPath"])
    }),
    wide("Source", |o, _| source(o).into()),
    column("Message", |o, _| {
        let message = if o["note"].is_string() { &o["note"] } else { &o["message"] };
        message.as_str().unwrap_or_default().trim().into()
    }),
    wide("First Seen", |o, now| age(first_seen(o), now)),
    wide("Count", |o, _| {
        let counts = [&o["series"]["count"], &o["count"], &o["deprecatedCount"]];
        counts.into_iter().find_map(Value::as_i64).unwrap_or(1).to_string().into()
    }),
    wide("Name", |o, _| o["metadata"]["name"].clone()),
];
const CLASSES: &[Column] = &[
    column("Name", |o, _| {
        let name = o["metadata"]["name"].as_str().unwrap_or_default();
        let default = &o["metadata"]["annotations"]["storageclass.kubernetes.io/is-default-class"];
        if default == "true" { format!("{name} (default)").into() } else { name.into() }
    }),
    column("Provisioner", |o, _| text(&o["provisioner"])),
    column("ReclaimPolicy", |o, _| text(&o["reclaimPolicy"])),
    column("VolumeBindingMode", |o, _| text(&o["volumeBindingMode"])),
    column("AllowVolumeExpansion", |o, _| (o["allowVolumeExpansion"] == true).to_string().into()),
    AGE,
];
const RUNTIMES: &[Column] = &[NAME, column("Handler", |o, _| text(&o["handler"])), AGE];
const CONFIGS: &[Column] = &[
    NAME,
    column("Data", |o, _| {
        let count = |field: &str| o[field].as_object().map_or(0, |map| map.len());
        (count("data") + count("binaryData")).to_string().into()
    }),
    AGE,
];
const SECRETS: &[Column] = &[
    NAME,
    column("Type", |o, _| text(&o["type"])),
    column("Data", |o, _| o["data"].as_object().map_or(0, |map| map.len()).to_string().into()),
    AGE,
];
const LEASES: &[Column] = &[NAME, column("Holder", |o, _| text(&o["spec"]["holderIdentity"])), AGE];
const POLICIES: &[Column] =
    &[NAME, column("Pod-Selector", |o, _| pairs(&o["spec"]["podSelector"]["matchLabels"])), AGE];
const DEFINITIONS: &[Column] =
    &[NAME, column("Created At", |o, _| text(&o["metadata"]["creationTimestamp"]))];

pub(super) fn builtin(resource: &Resource) -> Option<&'static [Column]> {
    if resource.custom {
        return None;
    }
    if resource.form == Form::Live {
        return Some(METRICS);
    }
    Some(match &*resource.plural {
        "pods" => PODS,
        "services" => SERVICES,
        "endpoints" => ENDPOINTS,
        "endpointslices" => SLICES,
        "persistentvolumeclaims" => CLAIMS,
        "persistentvolumes" => VOLUMES,
        "nodes" => NODES,
        "namespaces" => NAMESPACES,
        "events" => EVENTS,
        "storageclasses" => CLASSES,
        "runtimeclasses" => RUNTIMES,
        "configmaps" => CONFIGS,
        "secrets" => SECRETS,
        "leases" => LEASES,
        "networkpolicies" => POLICIES,
        "customresourcedefinitions" => DEFINITIONS,
        _ => return None,
    })
}

/// What a node or the containers of a Pod use of a resource.
fn usage(object: &Value, resource: &str) -> Value {
    let own = [&object["usage"]];
    let all = list(&object["containers"]).iter().map(|container| &container["usage"]).chain(own);
    let texts: Vec<&str> = all.filter_map(|usage| usage[resource].as_str()).collect();
    // A node writes all amounts of a resource with the same unit.
    let unit = texts.first().map_or("", |text| text.trim_start_matches(|c: char| c.is_ascii_digit()));
    let amounts = texts.iter().filter_map(|text| text.strip_suffix(unit)?.parse::<u64>().ok());
    format!("{}{unit}", amounts.sum::<u64>()).into()
}

/// How long ago, in the shortest words: `12s`, `3m4s`, `5h`, `2d`.
pub(super) fn age(time: &Value, now: Timestamp) -> Value {
    let Some(then) = time.as_str().and_then(|text| text.parse::<Timestamp>().ok()) else {
        return "<unknown>".into();
    };
    human(now.as_second() - then.as_second()).into()
}

fn human(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    let pair = |big: i64, unit: &str, small: i64, small_unit: &str| match small {
        0 => format!("{big}{unit}"),
        _ => format!("{big}{unit}{small}{small_unit}"),
    };
    match seconds {
        ..0 => "0s".into(),
        0..120 => format!("{seconds}s"),
        120..600 => pair(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => pair(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => pair(days, "d", hours % 24, "h"),
        691_200..63_072_000 => format!("{days}d"),
        _ => pair(days / 365, "y", days % 365, "d"),
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> Value {
    if value.is_null() { "".into() } else { value.clone() }
}

fn or_none(value: &Value) -> Value {
    if value.as_str().unwrap_or_default().is_empty() { "<none>".into() } else { value.clone() }
}

fn pairs(map: &Value) -> Value {
    let pairs: Vec<String> = map
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    if pairs.is_empty() { "<none>".into() } else { pairs.join(",").into() }
}

fn phase(object: &Value) -> Value {
    if object["metadata"]["deletionTimestamp"].is_string() {
        return "Terminating".into();
    }
    text(&object["status"]["phase"])
}

fn modes(list_of_modes: &Value) -> Value {
    let short = list(list_of_modes).iter().map(|mode| match mode.as_str() {
        Some("ReadWriteOnce") => "RWO",
        Some("ReadOnlyMany") => "ROX",
        Some("ReadWriteMany") => "RWX",
        Some("ReadWriteOncePod") => "RWOP",
        _ => "?",
    });
    short.collect::<Vec<_>>().join(",").into()
}

/// Which program an event comes from, and where that runs.
fn source(event: &Value) -> String {
    let source = if event["source"].is_object() { &event["source"] } else { &event["deprecatedSource"] };
    let names = [&source["component"], &event["reportingComponent"], &event["reportingController"]];
    let component = names.into_iter().find_map(Value::as_str).unwrap_or_default();
    match source["host"].as_str() {
        Some(host) if !host.is_empty() => format!("{component}, {host}"),
        _ => component.to_owned(),
    }
}

fn first_seen(event: &Value) -> &Value {
    let times = [&event["firstTimestamp"], &event["deprecatedFirstTimestamp"], &event["eventTime"]];
    times.into_iter().find(|time| time.is_string()).unwrap_or(&event["metadata"]["creationTimestamp"])
}

fn last_seen(event: &Value) -> &Value {
    [
        &event["series"]["lastObservedTime"],
        &event["lastTimestamp"],
        &event["deprecatedLastTimestamp"],
        &event["eventTime"],
        &event["firstTimestamp"],
    ]
    .into_iter()
    .find(|time| time.is_string())
    .unwrap_or(&event["metadata"]["creationTimestamp"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        for (seconds, want) in
            [(5, "5s"), (119, "119s"), (130, "2m10s"), (700, "11m"), (90_000, "25h"), (864_000, "10d")]
        {
            assert_eq!(human(seconds), want);
        }
    }
}
