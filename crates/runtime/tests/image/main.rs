//! Images from archives, directories and a registry of the test's own, in a store that must hold nothing else at the end.
//! Needs root: layers hold files of many users.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod import;
mod pull;
mod store;
