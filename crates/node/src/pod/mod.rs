//! One Pod: what it asks for, what is seen of it, and the task that brings the two together.

mod dns;
pub mod expand;
pub mod spec;
pub mod status;
pub mod support;
pub mod worker;
