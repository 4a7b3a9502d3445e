//! Names of sandboxes and services for whoever is in a sandbox; every other name is asked of the machine's resolvers.
//!
//! ```text
//! question ─► pace (per sandbox) ─► message ─┬─ ours ─────► zone ─► answer
//!                                            └─ else ─► forward ─► the machine's resolver ─► answer
//! ```
//!
//! Nothing is kept: what is ours is known, and the machine's resolver has a cache if anybody wants one.

mod forward;
mod message;
mod pace;
mod serve;
mod zone;

pub use self::serve::{Resolver, serve};
pub use self::zone::{DOMAIN, Zone};
