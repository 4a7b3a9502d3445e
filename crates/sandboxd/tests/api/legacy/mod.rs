//! The API that every client speaks by default.

mod execute;
mod files;
