//! The rules in a real kernel, on a machine of their own: a network namespace that only this test's thread is in.
//!
//! Needs root.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod machine;
mod reuse;
mod services;
mod six;
mod stories;
