//! The headless Service of a Sandbox, and the ports it gets from the Pod template.

use std::collections::BTreeSet;

use asb_types::{Sandbox, key};
use serde_json::{Value, json};

use super::child::{self, Adoption};
use super::plan::{Action, Plan, Problem, ProblemKind, Step};
use crate::object::{Ownership, Service, ServicePort, ownership};
use crate::write::Identity;

/// Adds what the Service needs, by what `spec.service` asks for. `rival` is another Sandbox to whose Pod a Service would
/// lead as well.
pub fn plan(sandbox: &Sandbox, found: Option<&Service>, rival: Option<&str>, plan: &mut Plan) {
    match step(sandbox, found, rival) {
        Ok(action) => plan.actions.extend(action),
        Err(message) => {
            plan.problems.push(Problem { step: Step::Service, kind: ProblemKind::Failed, message })
        }
    }
}

/// Whether the Service is part of the Sandbox: asked for, or there and ours.
pub fn required(sandbox: &Sandbox, found: Option<&Service>) -> bool {
    sandbox.spec.service.unwrap_or_else(|| found.is_some_and(|service| owned(sandbox, service)))
}

/// Whether this Service is the Sandbox's own.
pub fn owned(sandbox: &Sandbox, service: &Service) -> bool {
    ownership(service, sandbox.metadata.uid.as_deref().unwrap_or_default()) == Ownership::Owned
}

fn step(sandbox: &Sandbox, found: Option<&Service>, rival: Option<&str>) -> Result<Option<Action>, String> {
    match (sandbox.spec.service, found) {
        (Some(true), None) => match rival {
            None => Ok(Some(Action::CreateService(desired(sandbox)))),
            Some(rival) => Err(format!(
                "a Service would lead to the Pod of Sandbox {rival:?} too: both names have the hash {}; choose another \
                 name",
                child::hash(sandbox)
            )),
        },
        (Some(true), Some(service)) => match child::adoption(sandbox, service)? {
            Adoption::Owned => Ok(repair(sandbox, service, true)),
            Adoption::Adopt(owners) => adopt(sandbox, service, owners).map(Some),
        },
        (None, Some(service)) => {
            match ownership(service, sandbox.metadata.uid.as_deref().unwrap_or_default()) {
                Ownership::Owned => Ok(repair(sandbox, service, false)),
                Ownership::Unowned => Ok(None),
                Ownership::Foreign(_) => child::adoption(sandbox, service).map(|_| None),
            }
        }
        (Some(false), Some(service)) if owned(sandbox, service) => {
            Ok(Some(Action::DeleteService(Identity::of(service))))
        }
        (None | Some(false), _) => Ok(None),
    }
}

fn desired(sandbox: &Sandbox) -> Value {
    let name = sandbox.metadata.name.as_deref().unwrap_or_default();
    let mut spec = json!({"clusterIP": "None", "selector": {key::SANDBOX_NAME_HASH: child::hash(sandbox)}});
    let ports = ports(sandbox);
    if !ports.is_empty() {
        spec["ports"] = json!(ports);
    }
    json!({"apiVersion": "v1", "kind": "Service", "metadata": child::metadata(sandbox, name), "spec": spec})
}

/// Puts label and selector (and ports, when the spec asks for a Service) back.
fn repair(sandbox: &Sandbox, service: &Service, with_ports: bool) -> Option<Action> {
    let hash = child::hash(sandbox);
    let mut patch = json!({});
    let label = service.metadata.labels.as_ref().and_then(|labels| labels.get(key::SANDBOX_NAME_HASH));
    if label != Some(&hash) {
        patch["metadata"] = json!({"labels": {key::SANDBOX_NAME_HASH: hash}});
    }
    let selector = [(key::SANDBOX_NAME_HASH.to_owned(), hash)].into();
    if service.spec.selector != selector {
        // A merge patch keeps keys that it does not name: name the strays.
        let strays = service.spec.selector.keys().map(|key| (key.clone(), Value::Null));
        let wanted = selector.iter().map(|(key, value)| (key.clone(), json!(value)));
        patch["spec"] = json!({"selector": strays.chain(wanted).collect::<serde_json::Map<_, _>>()});
    }
    let ports = ports(sandbox);
    if with_ports && service.spec.ports != ports {
        patch["spec"]["ports"] = json!(ports);
    }
    let name = service.metadata.name.clone().unwrap_or_default();
    (patch != json!({})).then_some(Action::PatchService { name, patch })
}

fn adopt(
    sandbox: &Sandbox,
    service: &Service,
    owners: Vec<k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference>,
) -> Result<Action, String> {
    let name = service.metadata.name.clone().unwrap_or_default();
    if !matches!(service.spec.cluster_ip.as_str(), "" | "None") {
        return Err(format!(
            "Service {name:?} cannot be adopted: spec.clusterIP is {} and immutable, a Sandbox needs a headless one",
            service.spec.cluster_ip
        ));
    }
    let repaired = repair(sandbox, service, true);
    let mut patch = match repaired {
        Some(Action::PatchService { patch, .. }) => patch,
        _ => json!({}),
    };
    patch["metadata"]["ownerReferences"] = json!(owners);
    Ok(Action::PatchService { name, patch })
}

/// One Service port per container port, sorted by number and protocol.
fn ports(sandbox: &Sandbox) -> Vec<ServicePort> {
    let declared = declared_ports(&sandbox.spec.pod_template.spec);
    let wanted: BTreeSet<(u16, &str)> = declared.iter().map(|port| (port.number, port.protocol)).collect();
    let mut taken = BTreeSet::new();
    let mut ports = Vec::new();
    for (number, protocol) in wanted {
        let explicit = declared
            .iter()
            .filter(|port| (port.number, port.protocol) == (number, protocol))
            .find_map(|port| port.name)
            // A name belongs to the port that declared it first.
            .filter(|name| {
                let first = declared.iter().find(|port| port.name == Some(name));
                first.is_some_and(|first| (first.number, first.protocol) == (number, protocol))
            });
        let name = match explicit {
            Some(name) => name.to_owned(),
            None => free_name(number, protocol, &declared, &taken),
        };
        taken.insert(name.clone());
        ports.push(ServicePort {
            name,
            protocol: protocol.to_owned(),
            port: number,
            target_port: json!(number),
        });
    }
    ports
}

struct DeclaredPort<'a> {
    number: u16,
    protocol: &'a str,
    name: Option<&'a str>,
}

/// Ports of the containers and of the init containers that keep running beside them.
fn declared_ports(pod_spec: &serde_json::Map<String, Value>) -> Vec<DeclaredPort<'_>> {
    let list = |field: &str| pod_spec.get(field).and_then(Value::as_array).into_iter().flatten();
    let sidecars = list("initContainers").filter(|container| container["restartPolicy"] == "Always");
    list("containers")
        .chain(sidecars)
        .flat_map(|container| container["ports"].as_array().into_iter().flatten())
        .filter_map(|port| {
            let number = port["containerPort"].as_u64().and_then(|number| u16::try_from(number).ok())?;
            let name = port["name"].as_str().filter(|name| !name.is_empty());
            (number != 0).then(|| DeclaredPort {
                number,
                protocol: port["protocol"].as_str().unwrap_or("TCP"),
                name,
            })
        })
        .collect()
}

/// `p-<number>-<protocol>`, with a number behind it when somebody chose that name.
fn free_name(number: u16, protocol: &str, declared: &[DeclaredPort<'_>], taken: &BTreeSet<String>) -> String {
    let base = format!("p-{number}-{}", protocol.to_lowercase());
    let is_free =
        |name: &String| !taken.contains(name) && declared.iter().all(|port| port.name != Some(name));
    let mut candidates = std::iter::once(base.clone()).chain((2..).map(|count| format!("{base}-{count}")));
    candidates.find(is_free).expect("there are more numbers than ports")
}
