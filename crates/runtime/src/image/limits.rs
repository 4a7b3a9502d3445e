//! How much an image may be, whoever made it: nobody fills the disk or the memory of this machine with one.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Error;

/// Bounds on one image.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub layers: usize,
    /// Entries of one layer.
    pub entries: u64,
    /// Bytes of one file.
    pub file_bytes: u64,
    /// Bytes of all layers, unpacked.
    pub total_bytes: u64,
    /// How many times larger than its compressed form a layer may be, once it is larger than [`Limits::ratio_from`].
    pub ratio: u64,
    pub ratio_from: u64,
    /// Bytes of one path, and how many directories deep it may be.
    pub path_bytes: usize,
    pub depth: usize,
    /// Bytes of a manifest or config.
    pub document_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            layers: 256,
            entries: 1_000_000,
            file_bytes: 32 << 30,
            total_bytes: 64 << 30,
            ratio: 200,
            ratio_from: 256 << 20,
            path_bytes: 4095,
            depth: 128,
            document_bytes: 4 << 20,
        }
    }
}

/// What is left of [`Limits::total_bytes`] for the layers of one image.
#[derive(Debug)]
pub struct Budget {
    pub limits: Limits,
    left: AtomicU64,
}

impl Budget {
    /// `free` is what the disk still has: some of it is left to others.
    pub fn new(limits: Limits, free: u64) -> Self {
        let usable = free - free / 20;
        Self { limits, left: AtomicU64::new(limits.total_bytes.min(usable)) }
    }

    /// Whether so many more bytes could be written at all.
    pub fn check(&self, bytes: u64) -> Result<(), Error> {
        match bytes <= self.left.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err(self.exceeded()),
        }
    }

    /// Takes bytes that are about to be written.
    pub fn take(&self, bytes: u64) -> Result<(), Error> {
        let taken =
            self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        taken.map(drop).map_err(|_| self.exceeded())
    }

    fn exceeded(&self) -> Error {
        let most = self.limits.total_bytes;
        Error::TooLarge { problem: format!("it is larger than {most} bytes, or than the disk has free") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_is_shared_and_leaves_some_of_the_disk_free() {
        let budget = Budget::new(Limits { total_bytes: 1000, ..Limits::default() }, 100);
        budget.take(90).expect("fits");
        assert!(budget.take(6).is_err(), "five of a hundred bytes stay free");
        budget.take(5).expect("fits exactly");
    }
}
