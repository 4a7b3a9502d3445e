//! Schemas of the Kubernetes types that our kinds embed, at the level of Kubernetes 1.36.
//!
//! They are data, not code: nothing in them is ours to decide. The API server of one machine validates
//! Pods and PVCs with the same files.

/// core/v1 PodSpec.
pub const POD_SPEC: &str = include_str!("../schemas/pod-spec.json");
/// core/v1 PersistentVolumeClaimSpec.
pub const VOLUME_CLAIM_SPEC: &str = include_str!("../schemas/volume-claim-spec.json");
/// `networkPolicy` of a SandboxTemplate: networking/v1 ingress and egress rules.
pub const NETWORK_POLICY: &str = include_str!("../schemas/network-policy.json");
