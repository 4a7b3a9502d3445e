//! The planner against a pool and its Sandboxes in memory: no API server, no clock.
//!
//! `world` simulates the API; `size`, `rollout`, `stuck` and `created` are tables of cases, `properties`
//! holds what must be true of every case.

mod created;
mod properties;
mod rollout;
mod size;
mod stuck;
pub mod world;
