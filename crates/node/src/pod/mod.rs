//! One Pod: what it asks for, what is seen of it, and the task that brings the two together.
//!
//! | files | what |
//! |---|---|
//! | `worker`, `hand` | the task: what it knows and waits for; what it does with each container |
//! | `plan`, `status` | what to do next, what to tell (pure) |
//! | `start`, `watch`, `stop`, `care` | a container begins, runs, ends; hooks and probes (effects) |
//! | `adopt`, `archive`, `report`, `trouble`, `keeper`, `message` | what is found, kept and told |
//! | `replace` | a container is stopped to be started again |
//! | `evict` | a Pod goes because of what it takes of the disk |
//! | the rest | from the Pod's fields to what the runtime starts (pure) |

pub mod adopt;
pub mod archive;
mod capabilities;
pub mod care;
pub mod common;
pub mod container;
mod dns;
pub mod downward;
pub mod env;
mod evict;
pub mod expand;
pub mod groups;
mod hand;
mod hosts;
mod ids;
mod keeper;
mod kernel;
pub mod links;
mod lost;
mod message;
pub mod named;
mod plan;
mod prewarm;
mod process;
pub mod quantity;
mod replace;
mod report;
pub mod spec;
mod start;
pub mod status;
mod stop;
pub mod support;
mod trouble;
pub mod volumes;
mod watch;
mod weaker;
pub mod worker;

pub use start::is_wired;
