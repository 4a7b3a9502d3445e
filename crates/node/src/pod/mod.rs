//! One Pod: what it asks for, what is seen of it, and the task that brings the two together.

mod dns;
pub mod downward;
pub mod env;
pub mod expand;
pub mod groups;
pub mod named;
mod quantity;
pub mod spec;
pub mod status;
pub mod support;
pub mod volumes;
pub mod worker;
