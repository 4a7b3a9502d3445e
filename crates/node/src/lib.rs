//! The kubelet's duties on one machine: Pods in, sandboxes and Pod status out.
//!
//! ```text
//! Pod ─► pod::plan (pure) ─► pod::spec (pure) ─► runtime ─► a sandbox per container
//!  ▲                                                          │
//!  └──── pod::status (pure) ◄─────────────────────────────────┘      one task per Pod: pod::worker
//! ```
//!
//! | file | what |
//! |---|---|
//! | `ground`, `node` | what is opened before there is an API; then, a task for each Pod |
//! | `pod/worker`, `pod/plan` | the life of one Pod, and what is to be done next about its containers |
//! | `pod/spec` | container → what the runtime starts, or a refusal that names the field |
//! | `pod/care` | hooks and probes |
//! | `pod/status` | what was seen of the containers → Pod status |
//! | `engine_pod` | the Pod that the engine serves itself |
//! | `drivers` | which runtimes Pods can ask for here |
//! | `pod/env`, `pod/downward` | variables, and what a Pod may be told about itself |
//! | `references` | ConfigMaps and Secrets that a Pod names |
//! | `image` | the image of a container, found here or pulled |
//! | `pod/volumes`, `pod/groups` | what is in each volume, and who may use it |
//! | `volume` | volumes as directories, files and memory |
//! | `network` | a wire for each Pod, and the rules that NetworkPolicies ask for |
//! | `disk` | what Pods may take of the disk, and who goes when it is low |
//! | `name` | the name of the Node object, kept in the data directory |
//! | `heartbeat` | the Node object, its Lease and the heartbeats of its conditions |
//! | `claim_events` | events about claims: a volume was made, or why there is none |
//! | `event` | what people are told beside the status |
//! | `usage` | how fast processor time is used |
//! | `http` | `pods/log`, `pods/exec`, `pods/attach`, `pods/portforward`, measurements |

mod claim_events;
mod disk;
mod drivers;
mod engine_pod;
mod event;
mod failure;
mod ground;
mod heartbeat;
mod http;
mod image;
mod machine;
mod name;
mod network;
mod node;
mod pod;
mod references;
mod usage;
mod volume;

pub use disk::Floor;
pub use engine_pod::{Connect, EnginePod, MIRROR_ANNOTATION};
pub use ground::Ground;
pub use name::node_name;
pub use node::{Config, Error, Node};
pub use pod::quantity::bytes as quantity_bytes;
pub use pod::spec::LABEL_POD;
pub use volume::is_ours;
