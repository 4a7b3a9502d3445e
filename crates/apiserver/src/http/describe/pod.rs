//! Descriptions of the spec of a Pod and of what says where it runs: affinity, tolerations, spread, names, resolver.

use super::Type;

pub(super) const TYPES: &[Type] = &[
    (
        "PodSpec",
        &[
            ("containers", "Container", "The main containers of the Pod. At least one."),
            (
                "initContainers",
                "Container",
                "Containers that run one after the other before the main ones. With restartPolicy Always they go on beside them.",
            ),
            (
                "ephemeralContainers",
                "Container",
                "Containers that were added to a running Pod to look into it.",
            ),
            ("volumes", "Volume", "Directories and files that containers can mount."),
            (
                "restartPolicy",
                "",
                "When a container that has ended is started again: Always, OnFailure or Never.",
            ),
            (
                "terminationGracePeriodSeconds",
                "",
                "Seconds that programs have between the stop signal and the kill. 30 unless set.",
            ),
            ("activeDeadlineSeconds", "", "Seconds that the Pod may run before it fails."),
            ("runtimeClassName", "", "The RuntimeClass, which says how the sandbox is isolated."),
            ("nodeName", "", "The node that runs the Pod. Set by the scheduler."),
            ("nodeSelector", "", "Labels that the node must have."),
            ("affinity", "Affinity", "Rules about the node, and about other Pods on it."),
            ("tolerations", "Toleration", "Taints of nodes that do not keep the Pod away."),
            ("topologySpreadConstraints", "Spread", "How evenly Pods are spread over nodes or zones."),
            ("schedulerName", "", "The scheduler that chooses the node. default-scheduler unless set."),
            ("schedulingGates", "Gate", "While there is one, the Pod waits and is not started."),
            ("schedulingGroup", "Group", "A group of Pods that are scheduled together."),
            ("priority", "", "Pods with a higher number are scheduled first."),
            ("priorityClassName", "", "The PriorityClass that gives the priority."),
            (
                "preemptionPolicy",
                "",
                "Whether Pods of lower priority may be evicted for this one: PreemptLowerPriority or Never.",
            ),
            ("hostname", "", "The host name inside, instead of the Pod's name."),
            ("hostnameOverride", "", "The whole host name inside, whatever hostname and subdomain say."),
            ("subdomain", "", "The headless Service below whose name the host name is found."),
            ("setHostnameAsFQDN", "", "With true the host name inside is the full DNS name."),
            ("hostAliases", "HostAlias", "Entries to add to /etc/hosts."),
            (
                "dnsPolicy",
                "",
                "Which resolver the containers ask: ClusterFirst, ClusterFirstWithHostNet, Default or None.",
            ),
            ("dnsConfig", "Dns", "Name servers, search domains and options of the resolver."),
            (
                "enableServiceLinks",
                "",
                "With true (the default) containers get variables with the addresses of Services.",
            ),
            ("securityContext", "PodSecurity", "The user, groups and other rights of all containers."),
            ("serviceAccountName", "", "The ServiceAccount that the Pod acts as."),
            ("serviceAccount", "", "The older name of serviceAccountName."),
            ("automountServiceAccountToken", "", "Whether a token of the ServiceAccount is mounted."),
            ("imagePullSecrets", "Named", "Secrets with logins for registries."),
            (
                "readinessGates",
                "ReadinessGate",
                "Conditions that must be True, besides the containers', for the Pod to be Ready.",
            ),
            (
                "shareProcessNamespace",
                "",
                "With true containers see each other's processes. This node refuses it.",
            ),
            ("hostNetwork", "", "With true the Pod uses the network of the node. This node refuses it."),
            ("hostPID", "", "With true the Pod sees the processes of the node. This node refuses it."),
            ("hostIPC", "", "With true the Pod uses the IPC of the node. This node refuses it."),
            ("hostUsers", "", "With false the Pod has a user namespace of its own. Here it always has one."),
            ("os", "Named", "The operating system that the Pod is for."),
            ("overhead", "", "What the sandbox needs beside its containers. Set by the RuntimeClass."),
            ("resources", "Resources", "Requests and limits for all containers together."),
            ("resourceClaims", "PodClaim", "Devices that containers can use."),
        ],
    ),
    ("Named", &[("name", "", "The name.")]),
    ("Gate", &[("name", "", "Name of the gate. Unique in the Pod.")]),
    ("Group", &[("podGroupName", "", "Name of the PodGroup.")]),
    ("ReadinessGate", &[("conditionType", "", "Type of a condition in status.conditions.")]),
    (
        "PodClaim",
        &[
            ("name", "", "The name that containers use for the claim."),
            ("resourceClaimName", "", "Name of a ResourceClaim in the namespace."),
            ("resourceClaimTemplateName", "", "Name of a template that a ResourceClaim is created from."),
        ],
    ),
    ("HostAlias", &[("ip", "", "The address."), ("hostnames", "", "Names for the address.")]),
    (
        "Dns",
        &[
            ("nameservers", "", "Addresses of name servers. At most 3."),
            ("searches", "", "Domains in which short names are looked up. At most 32."),
            ("options", "NameValue", "Options of the resolver, such as ndots."),
        ],
    ),
    (
        "PodSecurity",
        &[
            ("runAsUser", "", "The user id of all processes, unless the container has one."),
            ("runAsGroup", "", "The group id of all processes, unless the container has one."),
            ("runAsNonRoot", "", "With true no container starts as root."),
            ("fsGroup", "", "A group that owns the files of volumes and that all processes are in."),
            ("fsGroupChangePolicy", "", "When files of a volume get the group: Always or OnRootMismatch."),
            ("supplementalGroups", "", "More groups that all processes are in."),
            (
                "supplementalGroupsPolicy",
                "",
                "Whether groups of the image count: Merge (the default) or Strict.",
            ),
            ("sysctls", "NameValue", "Kernel settings of the Pod."),
            ("appArmorProfile", "Profile", "The AppArmor profile of all processes."),
            ("seccompProfile", "Profile", "The seccomp profile, which restricts system calls."),
            ("seLinuxOptions", "SeLinux", "The SELinux label of all processes."),
            ("seLinuxChangePolicy", "", "How volumes get the label: MountOption or Recursive."),
            ("windowsOptions", "Windows", "Settings for Windows."),
        ],
    ),
    (
        "Toleration",
        &[
            ("key", "", "Key of the taint. If absent, with operator Exists, every taint matches."),
            ("operator", "", "Equal (the default) compares the values; Exists does not."),
            ("value", "", "Value of the taint, for operator Equal."),
            (
                "effect",
                "",
                "Effect of the taint: NoSchedule, PreferNoSchedule or NoExecute. If absent, every effect.",
            ),
            (
                "tolerationSeconds",
                "",
                "Seconds that the Pod stays on a node with a NoExecute taint. If absent, for ever.",
            ),
        ],
    ),
    (
        "Affinity",
        &[
            ("nodeAffinity", "NodeAffinity", "Which nodes the Pod may run on, or would rather run on."),
            ("podAffinity", "PodAffinity", "Pods that this one wants to be near to."),
            ("podAntiAffinity", "PodAffinity", "Pods that this one wants to be away from."),
        ],
    ),
    (
        "NodeAffinity",
        &[
            (
                "requiredDuringSchedulingIgnoredDuringExecution",
                "NodeSelector",
                "What the node must fulfil when the Pod is scheduled.",
            ),
            (
                "preferredDuringSchedulingIgnoredDuringExecution",
                "PreferredNode",
                "What the node should fulfil, with weights.",
            ),
        ],
    ),
    ("NodeSelector", &[("nodeSelectorTerms", "NodeTerm", "Terms of which the node must fulfil one.")]),
    (
        "PreferredNode",
        &[("weight", "", "How much the term counts, 1 to 100."), ("preference", "NodeTerm", "The term.")],
    ),
    (
        "NodeTerm",
        &[
            ("matchExpressions", "Requirement", "Requirements for labels of the node. All must hold."),
            (
                "matchFields",
                "Requirement",
                "Requirements for fields of the node: metadata.name. All must hold.",
            ),
        ],
    ),
    (
        "Requirement",
        &[
            ("key", "", "Key of the label."),
            ("operator", "", "In, NotIn, Exists or DoesNotExist; for nodes also Gt and Lt."),
            ("values", "", "Values to compare with. None for Exists and DoesNotExist."),
        ],
    ),
    (
        "PodAffinity",
        &[
            (
                "requiredDuringSchedulingIgnoredDuringExecution",
                "PodTerm",
                "Terms that must all hold when the Pod is scheduled.",
            ),
            (
                "preferredDuringSchedulingIgnoredDuringExecution",
                "PreferredPod",
                "Terms that should hold, with weights.",
            ),
        ],
    ),
    (
        "PreferredPod",
        &[("weight", "", "How much the term counts, 1 to 100."), ("podAffinityTerm", "PodTerm", "The term.")],
    ),
    (
        "PodTerm",
        &[
            ("labelSelector", "Selector", "Labels of the other Pods. If absent, no Pod matches."),
            ("matchLabelKeys", "", "Keys of labels that must have the same value as on this Pod."),
            ("mismatchLabelKeys", "", "Keys of labels that must have another value than on this Pod."),
            (
                "namespaces",
                "",
                "Namespaces of the other Pods. If absent, with no namespaceSelector, that of this Pod.",
            ),
            ("namespaceSelector", "Selector", "Labels of the namespaces of the other Pods."),
            ("topologyKey", "", "A label of nodes: those with the same value count as one place."),
        ],
    ),
    (
        "Selector",
        &[
            ("matchLabels", "", "Labels with their values. All must match."),
            ("matchExpressions", "Requirement", "Requirements for labels. All must hold."),
        ],
    ),
    (
        "Spread",
        &[
            ("maxSkew", "", "How many more Pods one place may have than the one with the fewest."),
            ("topologyKey", "", "A label of nodes: those with the same value count as one place."),
            ("whenUnsatisfiable", "", "DoNotSchedule, or ScheduleAnyway if the constraint is only a wish."),
            ("labelSelector", "Selector", "Labels of the Pods that are counted."),
            (
                "matchLabelKeys",
                "",
                "Keys of labels that must have the same value as on this Pod to be counted.",
            ),
            ("minDomains", "", "The number of places below which the fewest count as 0 Pods."),
            (
                "nodeAffinityPolicy",
                "",
                "Whether nodes that the Pod's affinity excludes are counted: Honor or Ignore.",
            ),
            (
                "nodeTaintsPolicy",
                "",
                "Whether nodes that the Pod does not tolerate are counted: Honor or Ignore.",
            ),
        ],
    ),
];
