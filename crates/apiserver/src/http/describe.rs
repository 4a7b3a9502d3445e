//! What `kubectl explain` says about built-in kinds and their fields, in our words.
//!
//! Fields of a kind are listed by path; types with many places (`Container`, `Probe`) are listed once, in the modules.

mod container;
mod pod;
mod volume;

use serde_json::{Value, json};

/// The path of a field, its type, and a sentence about it. A type in CamelCase is one of [`types`].
type Described = (&'static str, &'static str, &'static str);
/// The name of a type and its fields: name, type if it has fields of its own, and a sentence.
type Type = (&'static str, &'static [Described]);

/// Where our kinds embed types of Kubernetes. Their definitions do not repeat the descriptions, for size.
const EMBEDDED: [(&str, &str); 3] = [
    ("spec.podTemplate.spec", "PodSpec"),
    ("spec.volumeClaimTemplates.spec", "ClaimSpec"),
    ("spec.networkPolicy", "NetworkPolicySpec"),
];

const KINDS: &[(&str, &str, &str, &[Described])] = &[
    (
        "",
        "Pod",
        "Containers that run together in one sandbox: they share an address, volumes and a lifetime.",
        &[
            ("spec", "PodSpec", "What to run, and how."),
            ("status", "object", "What the node has observed."),
            ("status.phase", "string", "Pending, Running, Succeeded, Failed or Unknown."),
            (
                "status.conditions",
                "[]object",
                "Whether the Pod is scheduled, initialised and Ready, with reasons.",
            ),
            ("status.containerStatuses", "[]object", "State, restarts and image of each container."),
            ("status.podIP", "string", "The Pod's address."),
            ("status.qosClass", "string", "Guaranteed, Burstable or BestEffort, as limits and requests say."),
            ("status.reason", "string", "Why the Pod is in this phase, in a word."),
            ("status.message", "string", "Why the Pod is in this phase, in a sentence."),
        ],
    ),
    (
        "",
        "Service",
        "A name and an address that lead to the Pods that a selector chooses.",
        &[
            ("spec", "object", "The Pods behind the Service, its ports and its address."),
            ("spec.selector", "object", "Labels of the Pods behind the Service."),
            ("spec.ports", "[]object", "Ports of the Service, and where they lead."),
            ("spec.ports.name", "string", "The name of the port; required if there are several."),
            ("spec.ports.port", "integer", "The port of the Service."),
            (
                "spec.ports.targetPort",
                "",
                "The port of the Pods, by number or by name. The same number unless set.",
            ),
            ("spec.ports.protocol", "string", "TCP, UDP or SCTP."),
            (
                "spec.ports.nodePort",
                "integer",
                "The port of the node, for type NodePort. This machine opens none.",
            ),
            ("spec.ports.appProtocol", "string", "The protocol spoken on the port, for programs that care."),
            ("spec.type", "string", "ClusterIP, NodePort, LoadBalancer or ExternalName."),
            ("spec.clusterIP", "string", "The address. None makes the name lead to the Pods' own addresses."),
            ("spec.clusterIPs", "[]string", "The address as a list, as clusters with IPv4 and IPv6 have it."),
            (
                "spec.externalName",
                "string",
                "The DNS name that this one is an alias of, for type ExternalName.",
            ),
            ("spec.sessionAffinity", "string", "ClientIP keeps a client with one Pod; None does not."),
            ("spec.publishNotReadyAddresses", "boolean", "Also leads to Pods that are not Ready."),
            ("status", "object", "What is known of load balancers: nothing on one machine."),
        ],
    ),
    (
        "",
        "Namespace",
        "A scope for names: objects in different namespaces may have the same name.",
        &[
            ("spec", "object", "What must happen before the namespace can go."),
            ("spec.finalizers", "[]string", "Kept until everything in the namespace is gone."),
            ("status", "object", "Whether the namespace is in use."),
            ("status.phase", "string", "Active, or Terminating while its content is being deleted."),
            ("status.conditions", "[]object", "What keeps a namespace from going."),
        ],
    ),
    (
        "",
        "ConfigMap",
        "Settings that Pods read as files or environment variables. No more than 1 MiB.",
        &[
            ("data", "object", "Texts by key."),
            ("binaryData", "object", "Bytes by key, in base64."),
            ("immutable", "boolean", "With true the data can never change."),
        ],
    ),
    (
        "",
        "Secret",
        "Passwords, keys and the like, which Pods read as files or environment variables. No more than 1 MiB.",
        &[
            ("data", "object", "Values by key, in base64."),
            ("stringData", "object", "Values by key as plain text: written into data, never shown."),
            ("type", "string", "What the Secret is for. Some types must have certain keys."),
            ("immutable", "boolean", "With true the data can never change."),
        ],
    ),
    (
        "",
        "PersistentVolumeClaim",
        "A request for a directory that outlives the Pods which use it.",
        &[
            ("spec", "ClaimSpec", "The size and kind of volume that is requested."),
            ("status", "object", "What the claim was given."),
            ("status.phase", "string", "Pending, Bound or Lost."),
            ("status.capacity", "object", "The size of the volume."),
        ],
    ),
    (
        "",
        "PersistentVolume",
        "A directory for claims, with its size and its place.",
        &[
            ("spec", "object", "Where the volume is, and what may be done with it."),
            ("spec.capacity", "object", "The size: storage."),
            ("spec.accessModes", "[]string", "How the volume can be mounted."),
            ("spec.claimRef", "object", "The claim that has the volume."),
            (
                "spec.persistentVolumeReclaimPolicy",
                "string",
                "What becomes of the data when the claim goes: Delete or Retain.",
            ),
            ("spec.storageClassName", "string", "The StorageClass that the volume belongs to."),
            ("spec.volumeMode", "string", "Filesystem or Block."),
            ("status", "object", "Whether the volume is in use."),
            ("status.phase", "string", "Available, Bound, Released or Failed."),
        ],
    ),
    (
        "",
        "Node",
        "A machine that runs Pods. Here there is one: this machine.",
        &[
            ("spec", "object", "What the node is for."),
            ("spec.unschedulable", "boolean", "With true no new Pods are started."),
            ("spec.taints", "[]object", "Keep Pods away that do not tolerate them."),
            ("status", "object", "What the node is, and how it is."),
            ("status.capacity", "object", "What the machine has."),
            ("status.allocatable", "object", "What of it Pods may have."),
            ("status.conditions", "[]object", "Whether the node is Ready, or short of something."),
            ("status.addresses", "[]object", "Addresses and names of the node."),
            ("status.nodeInfo", "object", "Versions of the system and its programs."),
        ],
    ),
    (
        "",
        "Event",
        "Something that happened to an object. Kept for an hour.",
        &[
            ("involvedObject", "object", "The object that the event is about."),
            ("reason", "string", "What happened, in a word."),
            ("message", "string", "What happened, in a sentence."),
            ("type", "string", "Normal or Warning."),
            ("count", "integer", "How often it happened."),
            ("firstTimestamp", "string", "When it happened first."),
            ("lastTimestamp", "string", "When it happened last."),
            ("source", "object", "The component that reported it."),
        ],
    ),
    (
        "events.k8s.io",
        "Event",
        "Something that happened to an object. Kept for an hour.",
        &[
            ("regarding", "object", "The object that the event is about."),
            ("reason", "string", "What happened, in a word."),
            ("note", "string", "What happened, in a sentence."),
            ("type", "string", "Normal or Warning."),
            ("eventTime", "string", "When it happened."),
            ("reportingController", "string", "The component that reported it."),
        ],
    ),
    (
        "",
        "ServiceAccount",
        "An identity for Pods. On one machine it gives no rights: Pods do not reach the API.",
        &[
            ("imagePullSecrets", "[]object", "Secrets with logins for registries."),
            ("secrets", "[]object", "Secrets that Pods of the account may mount."),
            ("automountServiceAccountToken", "boolean", "Whether Pods get a token."),
        ],
    ),
    (
        "",
        "Endpoints",
        "Addresses behind a Service, in the older form.",
        &[("subsets", "[]object", "Groups of addresses with the same ports.")],
    ),
    (
        "discovery.k8s.io",
        "EndpointSlice",
        "A part of the addresses behind a Service.",
        &[
            ("addressType", "string", "IPv4, IPv6 or FQDN."),
            ("endpoints", "[]object", "Addresses, whether they are ready, and the Pods that have them."),
            ("ports", "[]object", "The ports of all these addresses."),
        ],
    ),
    (
        "coordination.k8s.io",
        "Lease",
        "A claim to be the only one that does something, which ends unless it is renewed.",
        &[
            ("spec", "object", "Who holds the lease, and since when."),
            ("spec.holderIdentity", "string", "The process that holds the lease."),
            ("spec.leaseDurationSeconds", "integer", "How long it is held without being renewed."),
            ("spec.acquireTime", "string", "When it was taken."),
            ("spec.renewTime", "string", "When it was renewed last."),
            ("spec.leaseTransitions", "integer", "How often it has changed hands."),
        ],
    ),
    (
        "storage.k8s.io",
        "StorageClass",
        "A way of getting volumes.",
        &[
            ("provisioner", "string", "Makes the volumes."),
            ("parameters", "object", "Settings for the provisioner."),
            ("reclaimPolicy", "string", "What becomes of the data when a claim goes: Delete or Retain."),
            ("volumeBindingMode", "string", "Whether a claim is bound at once or when a Pod first uses it."),
            ("allowVolumeExpansion", "boolean", "Whether claims may grow."),
        ],
    ),
    (
        "node.k8s.io",
        "RuntimeClass",
        "A way of isolating sandboxes, such as native or gVisor.",
        &[
            ("handler", "string", "The driver of the node that makes such sandboxes."),
            ("overhead", "object", "What a sandbox costs beside its containers."),
            ("scheduling", "object", "Which nodes can run such Pods."),
        ],
    ),
    (
        "networking.k8s.io",
        "NetworkPolicy",
        "Which connections some Pods may accept and open. A connection that no policy allows is refused.",
        &[
            ("spec", "NetworkPolicySpec", "The Pods, and the connections that are allowed."),
            ("status", "object", "Not used."),
        ],
    ),
    (
        "metrics.k8s.io",
        "NodeMetrics",
        "What the machine uses at the moment.",
        &[
            ("usage", "object", "Processor and memory."),
            ("timestamp", "string", "When it was measured."),
            ("window", "string", "The time over which it was measured."),
        ],
    ),
    (
        "metrics.k8s.io",
        "PodMetrics",
        "What the containers of a Pod use at the moment.",
        &[
            ("containers", "[]object", "Processor and memory of each container."),
            ("timestamp", "string", "When it was measured."),
            ("window", "string", "The time over which it was measured."),
        ],
    ),
    (
        "authorization.k8s.io",
        "SelfSubjectAccessReview",
        "Asks whether the caller may do something.",
        &[("spec", "object", "What the caller wants to do."), ("status", "object", "Whether it may.")],
    ),
    (
        "authorization.k8s.io",
        "SelfSubjectRulesReview",
        "Asks for everything that the caller may do in a namespace.",
        &[("spec", "object", "The namespace."), ("status", "object", "The rules.")],
    ),
    (
        "authentication.k8s.io",
        "SelfSubjectReview",
        "Asks who the caller is.",
        &[("status", "object", "The name and groups of the caller.")],
    ),
    (
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        "Adds a kind to the API.",
        &[
            ("spec", "object", "The names, versions and schemas of the kind."),
            ("spec.group", "string", "The group, as in apiVersion: GROUP/VERSION."),
            ("spec.names", "object", "What the kind is called."),
            ("spec.scope", "string", "Namespaced or Cluster."),
            ("spec.versions", "[]object", "The versions, each with a schema."),
            ("spec.conversion", "object", "How objects get from one version to another."),
            ("status", "object", "Whether the kind is served."),
        ],
    ),
];

/// Adds descriptions to the schema of a built-in kind, and the fields that the schema leaves open.
pub(super) fn describe(group: &str, kind: &str, schema: &mut Value) {
    let Some((_, _, about, fields)) = KINDS.iter().find(|(g, k, ..)| *g == group && *k == kind) else {
        return;
    };
    schema["description"] = (*about).into();
    for (path, type_name, text) in *fields {
        let mut node = &mut *schema;
        for name in path.split('.') {
            if node["items"].is_object() {
                node = &mut node["items"];
            }
            if node["type"].is_null() {
                node["type"] = "object".into();
            }
            node = &mut node["properties"][name];
        }
        if !node.is_object() {
            *node = of_type(type_name);
        }
        node["description"] = (*text).into();
        describe_fields(type_name, node);
    }
}

/// Adds descriptions to the types of Kubernetes in the schema of one of our kinds.
pub(super) fn describe_embedded(schema: &mut Value) {
    for (path, type_name) in EMBEDDED {
        let found = path.split('.').try_fold(&mut *schema, |node, name| {
            let node = if node["items"].is_object() { &mut node["items"] } else { node };
            node["properties"].get_mut(name)
        });
        if let Some(node) = found {
            describe_fields(type_name, node);
        }
    }
}

fn describe_fields(type_name: &str, schema: &mut Value) {
    let Some((_, fields)) = types().find(|(name, _)| *name == type_name) else { return };
    let schema = if schema["items"].is_object() { &mut schema["items"] } else { schema };
    for (name, type_name, text) in *fields {
        if let Some(field) = schema["properties"].get_mut(*name) {
            field["description"] = (*text).into();
            describe_fields(type_name, field);
        }
    }
}

fn types() -> impl Iterator<Item = &'static Type> {
    [pod::TYPES, container::TYPES, volume::TYPES].into_iter().flatten()
}

/// A schema of which nothing but the type is said.
fn of_type(name: &str) -> Value {
    let open = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    match name {
        "" => json!({ "x-kubernetes-int-or-string": true }),
        "object" => open,
        "[]object" => json!({ "type": "array", "items": open }),
        "[]string" => json!({ "type": "array", "items": { "type": "string" } }),
        plain => json!({ "type": plain }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_described_where_they_are_and_added_where_they_are_not() {
        let mut schema = json!({ "type": "object", "properties": { "data": {
            "type": "object", "additionalProperties": { "type": "string" } } } });
        describe("", "ConfigMap", &mut schema);
        assert_eq!(schema["properties"]["data"]["additionalProperties"]["type"], "string");
        assert_eq!(schema["properties"]["data"]["description"], "Texts by key.");
        assert_eq!(schema["properties"]["immutable"]["type"], "boolean");
        let mut service = json!({ "type": "object" });
        describe("", "Service", &mut service);
        let ports = &service["properties"]["spec"]["properties"]["ports"];
        assert_eq!(ports["items"]["properties"]["port"]["type"], "integer");
    }

    /// Inside volumes of storage systems that no node here has.
    const UNDESCRIBED: [&str; 19] = [
        "iscsi",
        "fc",
        "awsElasticBlockStore",
        "azureDisk",
        "azureFile",
        "cephfs",
        "cinder",
        "flexVolume",
        "flocker",
        "gcePersistentDisk",
        "gitRepo",
        "glusterfs",
        "photonPersistentDisk",
        "portworxVolume",
        "quobyte",
        "rbd",
        "scaleIO",
        "storageos",
        "vsphereVolume",
    ];

    fn missing(schema: &Value, path: &str, found: &mut Vec<String>) {
        let schema = if schema["items"].is_object() { &schema["items"] } else { schema };
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            if !field["description"].as_str().unwrap_or_default().ends_with('.') {
                found.push(path.clone());
            }
            let exotic = path.starts_with(".spec.volumes.") && UNDESCRIBED.contains(&name.as_str());
            if !exotic && !path.ends_with("volumeClaimTemplate.metadata") {
                missing(field, &path, found);
            }
        }
    }

    #[test]
    fn every_field_of_a_kind_with_a_schema_is_described() {
        for (group, plural, kind) in [
            ("", "pods", "Pod"),
            ("", "persistentvolumeclaims", "PersistentVolumeClaim"),
            ("networking.k8s.io", "networkpolicies", "NetworkPolicy"),
            ("", "configmaps", "ConfigMap"),
            ("", "secrets", "Secret"),
        ] {
            let registry = crate::registry::Registry::new().all();
            let resource =
                registry.iter().find(|it| *it.group == *group && *it.plural == *plural).expect("built in");
            let schema = resource.versions[0].schema.as_deref().expect("a schema");
            let mut schema = serde_json::from_str(schema).expect("JSON");
            describe(group, kind, &mut schema);
            let mut found = Vec::new();
            missing(&schema, "", &mut found);
            assert_eq!(found, Vec::<String>::new(), "{kind}");
        }
    }

    #[test]
    fn every_type_is_known_and_used() {
        let used: std::collections::HashSet<&str> = types()
            .flat_map(|(_, fields)| fields.iter())
            .chain(KINDS.iter().flat_map(|(_, _, _, fields)| fields.iter()))
            .map(|(_, type_name, _)| *type_name)
            .collect();
        for (name, _) in types() {
            assert!(used.contains(name), "{name} is used nowhere");
        }
        let is_type = |name: &&&str| name.starts_with(char::is_uppercase);
        for name in used.iter().filter(is_type) {
            assert!(types().any(|(known, _)| known == name), "{name} is listed nowhere");
        }
    }
}
