//! The real daemon, spoken to over HTTP.
#![allow(clippy::unwrap_used)]

mod execute;
mod files;
mod start;
mod support;
