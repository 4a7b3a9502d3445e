//! One layer of an image: how it is read, checked and unpacked.
//!
//! ```text
//! blob ─► compression ─► archive (tar) ─► unpack ─► place (a directory for overlayfs)
//! ```

pub mod archive;
pub mod compression;
pub mod header;
pub mod place;
pub mod unpack;

#[cfg(test)]
mod tests;
