//! Label and annotation keys. Other programs read and write them: their spelling is an interface.

/// On Pod, Service and PVC: [`crate::name::name_hash`] of the Sandbox's name.
pub const SANDBOX_NAME_HASH: &str = "agents.x-k8s.io/sandbox-name-hash";
/// On Sandbox and Pod: hash of the pool's name, while the Sandbox waits in a pool.
pub const WARM_POOL_SANDBOX: &str = "agents.x-k8s.io/warm-pool-sandbox";
/// On Template, Sandbox and Pod: hash of the template's name.
pub const TEMPLATE_REF_HASH: &str = "agents.x-k8s.io/sandbox-template-ref-hash";
/// On a pool's Sandbox and its Pod template: hash of the blueprint that it was made from.
pub const TEMPLATE_HASH: &str = "agents.x-k8s.io/sandbox-template-hash";
/// The same for the Pod template alone. Written for older readers, never read.
pub const POD_TEMPLATE_HASH: &str = "agents.x-k8s.io/sandbox-pod-template-hash";
/// On Sandbox: `warm` from a pool, `cold` for a claim.
pub const LAUNCH_TYPE: &str = "agents.x-k8s.io/launch-type";
/// On Sandbox and Pod: which client made it.
pub const CREATED_BY: &str = "agents.x-k8s.io/created-by";
/// On a claimed Sandbox and its Pod: UID of the claim.
pub const CLAIM_UID: &str = "agents.x-k8s.io/claim-uid";
/// `true` on an unowned Pod, Service or PVC lets a Sandbox adopt it.
pub const ADOPTABLE: &str = "agents.x-k8s.io/adoptable";

/// On Sandbox: name of a backing Pod that is not named like the Sandbox. Read, never written.
pub const POD_NAME: &str = "agents.x-k8s.io/pod-name";
/// On Sandbox: name of the template that it was made from.
pub const TEMPLATE_REF: &str = "agents.x-k8s.io/sandbox-template-ref";
/// On the Pod template of a pool's Sandbox: the cluster autoscaler may move the Pod.
pub const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
/// On Pod: sorted, comma-joined label keys copied from the Pod template.
pub const PROPAGATED_LABELS: &str = "agents.x-k8s.io/propagated-labels";
/// On Pod: the same for annotations.
pub const PROPAGATED_ANNOTATIONS: &str = "agents.x-k8s.io/propagated-annotations";
/// On any of our kinds: when `asb migrate` wrote it.
pub const STORAGE_MIGRATED_AT: &str = "agents.x-k8s.io/storage-migrated-at";
/// `true` on a pool that `asb migrate` made for claims that name none.
pub const MIGRATION_SHADOW: &str = "agents.x-k8s.io/migration-shadow";
/// On such a pool: the template of those claims.
pub const MIGRATION_SOURCE_TEMPLATE: &str = "agents.x-k8s.io/migration-source-template";
/// On claim and Sandbox: W3C trace headers as a JSON map.
pub const TRACE_CONTEXT: &str = "opentelemetry.io/trace-context";
/// On claim, as annotation or (older) label: the Sandbox that another controller chose for it. Read, never written.
pub const SANDBOX_NAME: &str = "agents.x-k8s.io/sandbox-name";
/// On claim: when this controller first saw it. Written only if asked for.
pub const CONTROLLER_FIRST_OBSERVED_AT: &str = "agents.x-k8s.io/controller-first-observed-at";
/// On claim: when it was Ready for the first time. Written only if asked for.
pub const CLAIM_FIRST_READY_AT: &str = "agents.x-k8s.io/claim-first-ready-at";
/// On claim: when an admission webhook first saw it. Read, never written.
pub const WEBHOOK_FIRST_OBSERVED_AT: &str = "agents.x-k8s.io/webhook-first-observed-at";
/// On claim: when the client asked for it. Read, never written.
pub const CLIENT_FIRST_REQUESTED_AT: &str = "agents.x-k8s.io/client-first-requested-at";
/// On Pod: it mirrors a part of the engine or of its node, and the node starts no container for it.
pub const MIRROR: &str = "kubernetes.io/config.mirror";

/// Whether a label of a Pod template is ours, so that users cannot set it on a Pod.
pub fn is_reserved_label(key: &str) -> bool {
    key.starts_with("agents.x-k8s.io/") || key.starts_with("extensions.agents.x-k8s.io/")
}

/// Whether an annotation of a Pod template is ours.
pub fn is_reserved_annotation(key: &str) -> bool {
    is_reserved_label(key) || key == TRACE_CONTEXT
}

/// The `created-by` value in the form that may reach Pods and metrics: a known client or `unknown`.
pub fn normalized_creator(value: &str) -> &str {
    match value {
        "go-client" | "python-client" | "controller" => value,
        _ => "unknown",
    }
}
