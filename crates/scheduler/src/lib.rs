//! Whether a Pod fits the one node of a machine, and why not: what kube-scheduler, the kubelet's admission and the taint
//! eviction controller decide on a cluster. Everything here is pure: no clock, no I/O.
//!
//! | file | what |
//! |---|---|
//! | `pod`, `node` | what scheduling reads of the objects |
//! | `resources` | requests, and what a node has |
//! | `selector`, `taint`, `affinity`, `neighbours` | one rule each |
//! | `fit` | all rules in the scheduler's order, in its words |
//! | `admission` | the rules for a Pod that was bound by somebody else, in the kubelet's words |
//! | `eviction` | when Pods have to leave because of a taint |
//! | `ledger` | which Pods the node has, what they take, and which Pods wait |

mod admission;
mod affinity;
mod eviction;
mod fit;
mod ledger;
mod neighbours;
mod node;
mod pod;
mod resources;
mod selector;
mod taint;

pub use admission::Rejection;
pub use eviction::{Due, Evictions};
pub use fit::{GATED, GATED_MESSAGE, UNSCHEDULABLE};
pub use ledger::{Decision, Ledger, Offer, Verdict};
pub use node::Node;
pub use pod::{DEFAULT_SCHEDULER, Pod};
pub use resources::Resources;
pub use selector::Labels;
