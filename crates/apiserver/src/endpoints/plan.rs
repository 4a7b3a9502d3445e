//! What the EndpointSlices and the Endpoints of a Service say, as kube-controller-manager writes them. Pure.

use serde_json::{Map, Value, json};

use super::backend::{self, condition, protocol};

/// The most Pods in one slice.
const SLICE: usize = 100;
/// The most addresses in an Endpoints object.
const ENDPOINTS: usize = 1000;
const TRUNCATED: &str = "endpoints.kubernetes.io/over-capacity";
const HEADLESS: &str = "service.kubernetes.io/headless";
pub(super) const SERVICE_NAME: &str = "kubernetes.io/service-name";
const SLICE_MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const SLICE_CONTROLLER: &str = "endpointslice-controller.k8s.io";
const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const CONTROLLER: &str = "endpoint-controller";

/// Whether an EndpointSlice is kept here, and not by a user or another controller.
pub(super) fn keeps_slice(label: impl Fn(&str) -> Option<Value>) -> bool {
    label(SLICE_MANAGED_BY).is_some_and(|by| by == SLICE_CONTROLLER)
}

/// The same of an Endpoints object.
pub(super) fn keeps_endpoints(label: impl Fn(&str) -> Option<Value>) -> bool {
    label(MANAGED_BY).is_some_and(|by| by == CONTROLLER)
}

/// The EndpointSlices of a Service, without names.
pub(super) fn slices(service: &Value, pods: &[Value]) -> Vec<Value> {
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for pod in in_order(pods) {
        let (Some(address), Some(condition)) = (address(pod), condition(service, pod)) else { continue };
        let mut endpoint = json!({
            "addresses": [address],
            "conditions": {
                "ready": condition.ready, "serving": condition.serving, "terminating": condition.terminating,
            },
            "targetRef": target(pod),
        });
        fill(&mut endpoint, pod, service);
        let ports = ports(service, pod);
        match groups.iter_mut().find(|(of, _)| *of == ports) {
            Some((_, endpoints)) => endpoints.push(endpoint),
            None => groups.push((ports, vec![endpoint])),
        }
    }
    if groups.is_empty() {
        // As on a cluster, a Service without Pods has one slice without endpoints.
        groups.push((json!([]), Vec::new()));
    }
    let slice = |ports: &Value, endpoints: &[Value]| {
        json!({
            "metadata": {
                "labels": slice_labels(service),
                "ownerReferences": [{
                    "apiVersion": "v1", "kind": "Service", "name": service["metadata"]["name"],
                    "uid": service["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true,
                }],
            },
            "addressType": "IPv4", "ports": ports, "endpoints": endpoints,
        })
    };
    let parts = |(ports, endpoints): &(Value, Vec<Value>)| match endpoints.is_empty() {
        true => vec![slice(ports, &[])],
        false => endpoints.chunks(SLICE).map(|part| slice(ports, part)).collect(),
    };
    groups.iter().flat_map(parts).collect()
}

/// The Endpoints object of a Service.
pub(super) fn endpoints(service: &Value, pods: &[Value]) -> Value {
    let published = service["spec"]["publishNotReadyAddresses"] == true;
    let mut count = 0;
    let mut all = Vec::new();
    for pod in in_order(pods) {
        let (Some(ip), Some(condition)) = (address(pod), condition(service, pod)) else { continue };
        if condition.terminating && !published {
            continue;
        }
        count += 1;
        let mut address = json!({ "ip": ip, "targetRef": target(pod) });
        fill(&mut address, pod, service);
        all.push((pod, address, condition.serving || published));
    }
    let truncated = count > ENDPOINTS;
    // Those that are ready first: what is left out is what helps least.
    all.sort_by_key(|(_, _, ready)| !ready);
    all.truncate(ENDPOINTS);
    let mut labels = service_labels(service, &[HEADLESS]);
    labels.insert(MANAGED_BY.into(), CONTROLLER.into());
    let mut metadata = json!({ "name": service["metadata"]["name"], "labels": labels });
    if truncated {
        metadata["annotations"] = json!({ TRUNCATED: "truncated" });
    }
    json!({ "metadata": metadata, "subsets": subsets(service, &all) })
}

/// Each port with the addresses that have it; ports with the same addresses share a subset.
fn subsets(service: &Value, all: &[(&Value, Value, bool)]) -> Vec<Value> {
    let mut by_port: Vec<(Option<Value>, Vec<usize>)> = Vec::new();
    let mut add = |port: Option<Value>, at: usize| match by_port.iter_mut().find(|(of, _)| *of == port) {
        Some((_, list)) => list.push(at),
        None => by_port.push((port, vec![at])),
    };
    for (at, (pod, _, _)) in all.iter().enumerate() {
        let ports = ports(service, pod);
        let mut ports = ports.as_array().into_iter().flatten().cloned().peekable();
        if ports.peek().is_none() && allows_no_ports(service) {
            add(None, at);
        }
        ports.for_each(|port| add(Some(port), at));
    }
    let mut merged: Vec<(Vec<usize>, Vec<Value>)> = Vec::new();
    for (port, list) in by_port {
        match merged.iter_mut().find(|(of, _)| *of == list) {
            Some((_, ports)) => ports.extend(port),
            None => merged.push((list, port.into_iter().collect())),
        }
    }
    let subset = |(list, ports): (Vec<usize>, Vec<Value>)| {
        let of = |wanted: bool| -> Vec<&Value> {
            let some = list.iter().filter_map(|at| all.get(*at)).filter(|(_, _, ready)| *ready == wanted);
            some.map(|(_, address, _)| address).collect()
        };
        let mut subset = json!({});
        let parts = [
            ("addresses", json!(of(true))),
            ("notReadyAddresses", json!(of(false))),
            ("ports", json!(ports)),
        ];
        for (field, list) in parts {
            if list.as_array().is_some_and(|list| !list.is_empty()) {
                subset[field] = list;
            }
        }
        if let Some(ports) = subset["ports"].as_array_mut() {
            // Only slices have a name where there is none.
            let unnamed = ports.iter_mut().filter(|port| port["name"] == "").filter_map(Value::as_object_mut);
            unnamed.for_each(|port| drop(port.remove("name")));
        }
        subset
    };
    merged.into_iter().map(subset).collect()
}

/// By name, so that nothing is written because of a different order.
fn in_order(pods: &[Value]) -> Vec<&Value> {
    let mut pods: Vec<_> = pods.iter().collect();
    pods.sort_by(|a, b| a["metadata"]["name"].as_str().cmp(&b["metadata"]["name"].as_str()));
    pods
}

fn address(pod: &Value) -> Option<&str> {
    pod["status"]["podIP"].as_str().filter(|address| !address.is_empty())
}

fn target(pod: &Value) -> Value {
    let meta = &pod["metadata"];
    json!({ "kind": "Pod", "namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"] })
}

/// Where the Pod is, and what it is called below the Service's name.
fn fill(address: &mut Value, pod: &Value, service: &Value) {
    let spec = &pod["spec"];
    let text = |field: &str| spec[field].as_str().filter(|text| !text.is_empty());
    if let Some(node) = text("nodeName") {
        address["nodeName"] = node.into();
    }
    if let Some(hostname) = text("hostname").filter(|_| spec["subdomain"] == service["metadata"]["name"]) {
        address["hostname"] = hostname.into();
    }
}

fn allows_no_ports(service: &Value) -> bool {
    is_headless(service) && service["spec"]["ports"].as_array().is_none_or(Vec::is_empty)
}

/// The ports of a Service as this Pod has them.
fn ports(service: &Value, pod: &Value) -> Value {
    let ports = service["spec"]["ports"].as_array().into_iter().flatten().filter_map(|port| {
        let mut known = json!({
            "name": port["name"].as_str().unwrap_or_default(), "port": backend::port(port, pod)?, "protocol": protocol(port),
        });
        if port["appProtocol"].is_string() {
            known["appProtocol"] = port["appProtocol"].clone();
        }
        Some(known)
    });
    ports.collect()
}

fn is_headless(service: &Value) -> bool {
    matches!(service["spec"]["clusterIP"].as_str(), None | Some("" | "None"))
}

/// The labels of the Service, without those that only this program sets.
fn service_labels(service: &Value, reserved: &[&str]) -> Map<String, Value> {
    let mut labels = service["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    labels.retain(|name, _| !reserved.contains(&name.as_str()));
    if is_headless(service) {
        labels.insert(HEADLESS.into(), "".into());
    }
    labels
}

fn slice_labels(service: &Value) -> Map<String, Value> {
    let mut labels = service_labels(service, &[HEADLESS, SERVICE_NAME, SLICE_MANAGED_BY]);
    labels.insert(SERVICE_NAME.into(), service["metadata"]["name"].clone());
    labels.insert(SLICE_MANAGED_BY.into(), SLICE_CONTROLLER.into());
    labels
}

/// What has to be done so that the slices there are say what they should.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    Create(Value),
    /// By name: these fields and labels.
    Change(String, Value),
    Delete(String),
}

/// Slices keep their ports if possible, and are changed rather than made again.
pub(super) fn steps(wanted: Vec<Value>, there: &[Value]) -> Vec<Step> {
    let mut free: Vec<&Value> = there.iter().filter(|slice| slice["addressType"] == "IPv4").collect();
    let name = |slice: &Value| slice["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let mut steps = Vec::new();
    let mut left = Vec::new();
    for slice in wanted {
        match free.iter().position(|known| is_same(known, &slice)) {
            Some(at) => drop(free.remove(at)),
            None => left.push(slice),
        }
    }
    for slice in left {
        let near = free
            .iter()
            .position(|known| known["ports"] == slice["ports"])
            .or((!free.is_empty()).then_some(0));
        steps.push(match near {
            Some(at) => Step::Change(name(free.remove(at)), slice),
            None => Step::Create(slice),
        });
    }
    let foreign = there.iter().filter(|slice| slice["addressType"] != "IPv4");
    steps.extend(free.into_iter().chain(foreign).map(|slice| Step::Delete(name(slice))));
    steps
}

fn is_same(known: &Value, wanted: &Value) -> bool {
    let list = |slice: &Value, field: &str| slice[field].as_array().cloned().unwrap_or_default();
    ["ports", "endpoints"].iter().all(|field| list(known, field) == list(wanted, field))
        && ["labels", "ownerReferences"]
            .iter()
            .all(|field| known["metadata"][*field] == wanted["metadata"][*field])
}

/// Whether an Endpoints object says already what it should.
pub(super) fn is_current(known: &Value, wanted: &Value) -> bool {
    let subsets = |object: &Value| object["subsets"].as_array().cloned().unwrap_or_default();
    subsets(known) == subsets(wanted)
        && known["metadata"]["labels"] == wanted["metadata"]["labels"]
        && known["metadata"]["annotations"][TRUNCATED] == wanted["metadata"]["annotations"][TRUNCATED]
}

/// `known` with what is `wanted` of it; what others wrote beside stays.
pub(super) fn merged(known: &Value, wanted: &Value) -> Value {
    let mut object = known.clone();
    for field in ["ports", "endpoints", "subsets"] {
        if !wanted[field].is_null() {
            object[field] = wanted[field].clone();
        }
    }
    for field in ["labels", "ownerReferences"] {
        if !wanted["metadata"][field].is_null() {
            object["metadata"][field] = wanted["metadata"][field].clone();
        }
    }
    if wanted["subsets"].is_array() {
        match &wanted["metadata"]["annotations"][TRUNCATED] {
            Value::Null => {
                drop(object["metadata"]["annotations"].as_object_mut().map(|all| all.remove(TRUNCATED)))
            }
            truncated => object["metadata"]["annotations"][TRUNCATED] = truncated.clone(),
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service() -> Value {
        json!({
            "metadata": { "name": "web", "uid": "s" },
            "spec": { "clusterIP": "10.127.0.9", "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }] },
        })
    }

    fn pod(at: usize, ready: bool) -> Value {
        json!({
            "metadata": { "name": format!("p-{at:04}"), "namespace": "one", "uid": format!("u{at}") },
            "spec": { "nodeName": "node", "hostname": "h", "subdomain": if at == 0 { "web" } else { "other" } },
            "status": {
                "phase": "Running", "podIP": format!("10.88.{}.{}", at / 250, at % 250 + 2),
                "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }],
            },
        })
    }

    fn pods(count: usize) -> Vec<Value> {
        (0..count).map(|at| pod(at, true)).collect()
    }

    fn named(slices: &[Value]) -> Vec<Value> {
        let name = |(at, slice): (usize, &Value)| {
            let mut slice = slice.clone();
            slice["metadata"]["name"] = format!("web-{at}").into();
            slice
        };
        slices.iter().enumerate().map(name).collect()
    }

    #[test]
    fn the_order_of_pods_changes_nothing() {
        let (forward, mut backward) = (pods(7), pods(7));
        backward.reverse();
        assert_eq!(slices(&service(), &forward), slices(&service(), &backward));
        assert!(is_current(&endpoints(&service(), &forward), &endpoints(&service(), &backward)));
        assert!(steps(slices(&service(), &backward), &named(&slices(&service(), &forward))).is_empty());
    }

    #[test]
    fn many_pods_take_several_slices_and_endpoints_are_cut() {
        let all = slices(&service(), &pods(250));
        let sizes: Vec<_> =
            all.iter().map(|slice| slice["endpoints"].as_array().map_or(0, Vec::len)).collect();
        assert_eq!(sizes, [100, 100, 50]);
        let mut many = pods(1005);
        many[3] = pod(3, false);
        let cut = endpoints(&service(), &many);
        assert_eq!(cut["subsets"][0]["addresses"].as_array().map(Vec::len), Some(1000));
        assert_eq!(cut["subsets"][0]["notReadyAddresses"], Value::Null, "who is ready comes first");
        assert_eq!(cut["metadata"]["annotations"][TRUNCATED], "truncated");
        let fewer = merged(&cut, &endpoints(&service(), &pods(2)));
        assert_eq!(fewer["metadata"]["annotations"], json!({}));
    }

    #[test]
    fn slices_are_changed_before_they_are_made_or_removed() {
        let there = named(&slices(&service(), &pods(250)));
        let step = |steps: Vec<Step>| -> Vec<String> {
            let text = |step: &Step| match step {
                Step::Create(_) => "create".to_owned(),
                Step::Change(name, _) => format!("change {name}"),
                Step::Delete(name) => format!("delete {name}"),
            };
            steps.iter().map(text).collect()
        };
        let of = |pods: &[Value], there: &[Value]| step(steps(slices(&service(), pods), there));
        assert_eq!(of(&pods(250), &there), Vec::<String>::new());
        assert_eq!(of(&pods(260), &there), ["change web-2"]);
        assert_eq!(of(&pods(100), &there), ["delete web-1", "delete web-2"]);
        assert_eq!(of(&pods(99), &[]), ["create"]);
        assert_eq!(of(&[], &there[..1]), ["change web-0"], "an empty one stays");
    }

    #[test]
    fn an_endpoint_is_named_below_its_own_service_only() {
        let all = slices(&service(), &pods(2));
        assert_eq!(all[0]["endpoints"][0]["hostname"], "h");
        assert_eq!(all[0]["endpoints"][1]["hostname"], Value::Null);
    }

    #[test]
    fn what_others_wrote_beside_is_kept() {
        let wanted = endpoints(&service(), &pods(1));
        let mut known = wanted.clone();
        known["metadata"]["annotations"] = json!({ "mine": "1" });
        known["subsets"] = json!([]);
        assert!(!is_current(&known, &wanted));
        let merged = merged(&known, &wanted);
        assert!(is_current(&merged, &wanted) && merged["metadata"]["annotations"]["mine"] == "1");
    }
}
