//! The two static programs that travel inside `asb`, so that one file is the whole product.

/// Process 1 of every sandbox.
pub const SUPERVISOR: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/asb-supervisor"));

/// The daemon that serves a sandbox's commands and files over HTTP.
pub const SANDBOXD: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/asb-sandboxd"));

/// Differs whenever one of the programs does.
pub const VERSION: &str = env!("ASB_EMBEDDED_VERSION");
