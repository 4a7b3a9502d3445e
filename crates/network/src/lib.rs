//! The network of sandboxes on one machine: an address and a wire for each, and rules for who may talk to whom.
//!
//! Knows nothing of Kubernetes: facts come as plain data.
//!
//! ```text
//! Network::take ─► Namespace (a namespace with one interface) ─► runtime
//! Network::update(facts) ─► policy::compile (pure) ─► rules ─► apply ─► kernel
//! ```
//!
//! | file | what |
//! |---|---|
//! | `network` | the handle: opens, parks namespaces, keeps rules in force |
//! | `namespace` | one sandbox's interface, both ends |
//! | `place` | names and addresses that nobody else on the machine uses |
//! | `address`, `address6` | an address for each sandbox, and one beside it |
//! | `policy` | facts → rules (pure) |
//! | `rules` | what may pass, as plain data |
//! | `apply` | rules → packet filter, by differences |
//! | `services` | addresses of services → packet filter |
//! | `dns` | names of sandboxes for sandboxes, and the way to all other names |
//! | `tracking` | connections of sandboxes that are gone, forgotten |
//! | `forwarding` | lets the machine pass packets on for sandboxes only |
//! | `machine` | keeps a network that is not in the machine's own namespace off the machine |
//! | `nft`, `link`, `netlink` | the kernel's languages |
//! | `leak`, `testing` | for tests: what was left behind, and a machine of their own |

mod address;
mod address6;
mod apply;
mod cidr;
pub mod dns;
mod forwarding;
pub mod leak;
mod link;
pub mod machine;
mod namespace;
mod netlink;
mod network;
mod nft;
mod place;
pub mod policy;
mod rules;
mod services;
pub mod testing;
mod tracking;

pub use address::Addresses;
pub use cidr::Cidr;
pub use namespace::Namespace;
pub use network::{Error, Network};
pub use nft::Removals;
pub use place::SERVICES;
pub use rules::Protocol;
