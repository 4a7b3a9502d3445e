//! The planner and the judge against a world in memory: no API server, no clock.
//!
//! `world` simulates the API; `conditions`, `children`, `expiry`, `defer` and `retry` are tables of cases, `properties`
//! holds what must be true of every case.

mod children;
mod conditions;
mod defer;
mod expiry;
mod properties;
mod retry;
mod world;
