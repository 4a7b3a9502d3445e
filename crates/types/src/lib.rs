//! The four kinds of Agent Sandbox, and every name that crosses the Kubernetes API.
//!
//! | file | what |
//! |---|---|
//! | `sandbox`, `template`, `warm_pool`, `claim` | one kind each, at `v1beta1` |
//! | `blueprint` | what a Sandbox and a SandboxTemplate share: Pod template, volume claim templates |
//! | `condition` | condition types and reasons, and the rule by which conditions are updated |
//! | `key`, `name` | labels and annotations; hashes and names of children |
//! | `conversion` | the same objects at `v1alpha1`, without losing anything on the way |
//! | `quantity` | amounts of resources: `500m`, `1.5Gi` |
//! | `volume` | rules about claims and volumes that the API server and the node share |
//! | `crd`, `schemas` | the CustomResourceDefinitions, generated from code |

pub mod blueprint;
pub mod claim;
pub mod condition;
pub mod conversion;
pub mod crd;
pub mod key;
mod kind;
pub mod name;
pub mod quantity;
pub mod sandbox;
pub mod schemas;
pub mod template;
pub mod volume;
pub mod warm_pool;

pub use blueprint::{PodFailurePolicy, PodTemplate, TemplateMetadata, VolumeClaimTemplate};
pub use claim::{Claim, ClaimShutdownPolicy, ClaimSpec, ClaimStatus};
pub use quantity::Quantity;
pub use sandbox::{OperatingMode, Sandbox, SandboxSpec, SandboxStatus, ShutdownPolicy};
pub use template::{Template, TemplateSpec};
pub use warm_pool::{WarmPool, WarmPoolSpec, WarmPoolStatus};

/// The API group of [`Sandbox`].
pub const GROUP: &str = "agents.x-k8s.io";
/// The API group of [`Template`], [`WarmPool`] and [`Claim`].
pub const EXTENSIONS_GROUP: &str = "extensions.agents.x-k8s.io";
/// The version that is stored.
pub const VERSION: &str = "v1beta1";
