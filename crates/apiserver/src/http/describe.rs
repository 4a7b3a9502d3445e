//! What `kubectl explain` says about built-in kinds and their fields, in our words.

use serde_json::{Value, json};

/// A path, the type of what stands there, and a sentence about it.
type Described = (&'static str, &'static str, &'static str);

const LABELS: &str = "object";

const KINDS: &[(&str, &str, &str, &[Described])] = &[
    (
        "",
        "Pod",
        "Containers that run together in one sandbox: they share an address, volumes and a lifetime.",
        &[
            ("spec", "object", "What to run, and how."),
            ("spec.containers", "[]object", "The containers that the Pod is for. At least one."),
            ("spec.containers.name", "string", "Tells the container from the others of the Pod."),
            (
                "spec.containers.image",
                "string",
                "The image with the files and the default command. `host` is this machine's own system.",
            ),
            (
                "spec.containers.imagePullPolicy",
                "string",
                "When the registry is asked for the image: Always, IfNotPresent or Never.",
            ),
            ("spec.containers.command", "[]string", "The program to run instead of the image's entrypoint."),
            ("spec.containers.args", "[]string", "Arguments of the program, instead of the image's."),
            ("spec.containers.workingDir", "string", "The directory in which the program starts."),
            ("spec.containers.env", "[]object", "Environment variables."),
            (
                "spec.containers.envFrom",
                "[]object",
                "ConfigMaps and Secrets whose entries become environment variables.",
            ),
            (
                "spec.containers.ports",
                "[]object",
                "Ports that the program listens on. Services can name them.",
            ),
            (
                "spec.containers.resources",
                "object",
                "How much processor, memory and disk the container needs, and how much it may have.",
            ),
            (
                "spec.containers.volumeMounts",
                "[]object",
                "Where the Pod's volumes are seen in the container.",
            ),
            (
                "spec.containers.livenessProbe",
                "object",
                "A check that, when it fails, restarts the container.",
            ),
            ("spec.containers.readinessProbe", "object", "A check that, while it fails, keeps traffic away."),
            (
                "spec.containers.startupProbe",
                "object",
                "A check that must succeed once before the other two begin.",
            ),
            (
                "spec.containers.lifecycle",
                "object",
                "What to call after the container has started and before it is stopped.",
            ),
            (
                "spec.containers.securityContext",
                "object",
                "The user, capabilities and other rights of the container's processes.",
            ),
            ("spec.containers.stdin", "boolean", "Keeps the standard input open, for `kubectl attach`."),
            ("spec.containers.tty", "boolean", "Gives the program a terminal. Needs stdin."),
            (
                "spec.initContainers",
                "[]object",
                "Containers that run one after the other before the others start. With restartPolicy Always one goes on beside them.",
            ),
            (
                "spec.ephemeralContainers",
                "[]object",
                "Containers that were added to a running Pod to look into it.",
            ),
            ("spec.volumes", "[]object", "Directories and files that containers can mount."),
            (
                "spec.restartPolicy",
                "string",
                "When a container that has ended is started again: Always, OnFailure or Never.",
            ),
            (
                "spec.terminationGracePeriodSeconds",
                "integer",
                "How long programs have between being asked to end and being killed.",
            ),
            ("spec.activeDeadlineSeconds", "integer", "How long the Pod may run before it fails."),
            ("spec.runtimeClassName", "string", "The RuntimeClass that says how the sandbox is isolated."),
            (
                "spec.nodeName",
                "string",
                "The node that runs the Pod. Here it is set when the Pod is created.",
            ),
            ("spec.nodeSelector", LABELS, "Labels that the node must have."),
            ("spec.affinity", "object", "Rules about the node, and about other Pods on it."),
            ("spec.tolerations", "[]object", "Taints of the node that do not keep the Pod away."),
            ("spec.hostname", "string", "The host name inside, instead of the Pod's name."),
            ("spec.subdomain", "string", "The headless Service below whose name the host name is found."),
            ("spec.hostAliases", "[]object", "Entries to add to /etc/hosts."),
            ("spec.dnsPolicy", "string", "Which resolver the containers ask: ClusterFirst, Default or None."),
            ("spec.dnsConfig", "object", "Name servers, search domains and options of the resolver."),
            ("spec.securityContext", "object", "The user, groups and other rights of all containers."),
            ("spec.serviceAccountName", "string", "The ServiceAccount that the Pod acts as."),
            ("spec.imagePullSecrets", "[]object", "Secrets with logins for registries."),
            (
                "spec.readinessGates",
                "[]object",
                "Conditions that must be True, besides the containers', for the Pod to be Ready.",
            ),
            ("spec.schedulingGates", "[]object", "While there is one, the Pod waits and is not started."),
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
            ("spec", "object", "Who is behind the Service, and how it is reached."),
            ("spec.selector", LABELS, "Labels of the Pods behind the Service."),
            ("spec.ports", "[]object", "Ports of the Service, and where they lead."),
            ("spec.ports.name", "string", "Tells the port from the others. Needed when there are several."),
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
            ("spec.externalName", "string", "Another name that this one stands for, for type ExternalName."),
            ("spec.sessionAffinity", "string", "ClientIP keeps a client with one Pod; None does not."),
            ("spec.publishNotReadyAddresses", "boolean", "Also leads to Pods that are not Ready."),
            ("status", "object", "What is known of load balancers: nothing on one machine."),
        ],
    ),
    (
        "",
        "Namespace",
        "A room for names: objects in different namespaces may have the same name.",
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
            ("data", LABELS, "Texts by key."),
            ("binaryData", LABELS, "Bytes by key, in base64."),
            ("immutable", "boolean", "With true the data can never change."),
        ],
    ),
    (
        "",
        "Secret",
        "Passwords, keys and the like, which Pods read as files or environment variables. No more than 1 MiB.",
        &[
            ("data", LABELS, "Values by key, in base64."),
            ("stringData", LABELS, "Values by key as plain text: written into data, never shown."),
            ("type", "string", "What the Secret is for. Some types must have certain keys."),
            ("immutable", "boolean", "With true the data can never change."),
        ],
    ),
    (
        "",
        "PersistentVolumeClaim",
        "A request for a directory that outlives the Pods which use it.",
        &[
            ("spec", "object", "How much is asked for, and of which kind."),
            ("spec.accessModes", "[]string", "How the volume will be mounted, such as ReadWriteOnce."),
            ("spec.resources", "object", "The size: requests.storage."),
            ("spec.storageClassName", "string", "The StorageClass that provides the volume."),
            ("spec.volumeName", "string", "The PersistentVolume that the claim is bound to."),
            ("spec.volumeMode", "string", "Filesystem, or Block for a raw device."),
            ("spec.selector", "object", "Labels that the volume must have."),
            (
                "spec.dataSource",
                "object",
                "Another claim of the namespace that the volume starts as a copy of.",
            ),
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
            ("parameters", LABELS, "Settings for the provisioner."),
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
        "Who may talk to some Pods, and whom these may talk to. What no policy allows is refused.",
        &[
            ("spec", "object", "The Pods, and what they may do."),
            (
                "spec.podSelector",
                "object",
                "The Pods that the policy is for. An empty selector is for all of the namespace.",
            ),
            (
                "spec.policyTypes",
                "[]string",
                "The directions that the policy is about: Ingress, Egress or both.",
            ),
            ("spec.ingress", "[]object", "Who may connect to the Pods. No rule lets nobody in."),
            ("spec.ingress.from", "[]object", "Peers that may connect. Everybody, if there are none."),
            ("spec.ingress.ports", "[]object", "Ports that may be connected to. All, if there are none."),
            ("spec.egress", "[]object", "Where the Pods may connect to. No rule lets nothing out."),
            ("spec.egress.to", "[]object", "Peers that may be connected to. Everybody, if there are none."),
            ("spec.egress.ports", "[]object", "Ports that may be connected to. All, if there are none."),
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
    }
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
}
