//! Which ids of the machine belong to which slot, and then sandbox: a range of its own for each, and one more for its supervisor.
//! Without root there are too few for that, and all sandboxes have the same.
//!
//! A range is taken by making a symbolic link `ids/N` that names the slot, which either works or does not, whoever
//! else is trying; so the table on disk is the only truth.

use std::io;
use std::path::{Path, PathBuf};

use asb_supervisor::launch::{EXTRA_IDS, IDS};
use asb_supervisor::powers::Powers;

use crate::SandboxId;

/// Far above any id that people or distributions hand out.
const FIRST: u32 = 0x4000_0000;
/// Supervisors' ids, below the ranges.
const SUPERVISORS: u32 = 0x3fff_0000;
/// Ids that stand for those above 65535 inside, a few for each range; below the supervisors'.
const EXTRAS: u32 = 0x3ff0_0000 - RANGES * EXTRA_IDS as u32;
/// As many ranges as fit below the ids that mean "nobody".
const RANGES: u32 = (u32::MAX - FIRST) / IDS - 1;

/// The ids of one sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Id 0 inside.
    pub first: u32,
    pub supervisor: u32,
    /// The first of [`EXTRA_IDS`] for ids above 65535 inside. Without root there are none.
    pub extra: u32,
}

impl Range {
    fn numbered(number: u32) -> Self {
        let extra = EXTRAS + number * EXTRA_IDS as u32;
        Self { first: FIRST + number * IDS, supervisor: SUPERVISORS + number, extra }
    }

    /// What all sandboxes share that are made without root.
    fn shared(powers: Powers) -> Option<Self> {
        match powers {
            Powers::Machine => None,
            Powers::Range => Some(Self { first: 0, supervisor: IDS, extra: 0 }),
            Powers::One => Some(Self { first: 0, supervisor: 0, extra: 0 }),
        }
    }
}

/// The table of ranges under one directory.
#[derive(Debug, Clone)]
pub struct Ids {
    table: PathBuf,
    shared: Option<Range>,
}

impl Ids {
    pub fn open(directory: &Path, powers: Powers) -> io::Result<Self> {
        let table = directory.join("ids");
        std::fs::create_dir_all(&table)?;
        Ok(Self { table, shared: Range::shared(powers) })
    }

    /// Takes the lowest free range.
    pub fn take(&self, slot: &SandboxId) -> io::Result<Range> {
        if let Some(shared) = self.shared {
            return Ok(shared);
        }
        for number in 0..RANGES {
            match std::os::unix::fs::symlink(slot.as_str(), self.table.join(number.to_string())) {
                Ok(()) => return Ok(Range::numbered(number)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("every range of ids is taken"))
    }

    /// The range that a slot holds.
    pub fn of(&self, slot: &SandboxId) -> io::Result<Range> {
        if let Some(shared) = self.shared {
            return Ok(shared);
        }
        let held = self.taken()?.into_iter().find(|(_, holder)| holder == Path::new(slot.as_str()));
        let number = held.and_then(|(name, _)| name.to_str()?.parse().ok());
        let range = number.filter(|number| *number < RANGES).map(Range::numbered);
        range.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{slot} holds no ids")))
    }

    /// Gives back whatever the slot holds.
    pub fn release(&self, slot: &SandboxId) -> io::Result<()> {
        for (name, holder) in self.taken()? {
            if holder == Path::new(slot.as_str()) {
                remove(&self.table.join(name))?;
            }
        }
        Ok(())
    }

    /// Gives back what is held by nobody any more.
    pub fn sweep(&self, holds: impl Fn(&Path) -> bool) -> io::Result<()> {
        for (name, holder) in self.taken()? {
            if !holds(&holder) {
                remove(&self.table.join(name))?;
            }
        }
        Ok(())
    }

    fn taken(&self) -> io::Result<Vec<(std::ffi::OsString, PathBuf)>> {
        let mut taken = Vec::new();
        for entry in std::fs::read_dir(&self.table)? {
            let name = entry?.file_name();
            // Gone again: somebody else has just given it back.
            if let Ok(holder) = std::fs::read_link(self.table.join(&name)) {
                taken.push((name, holder));
            }
        }
        Ok(taken)
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_free_range_is_taken_and_given_back() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let ids = Ids::open(directory.path(), Powers::Machine).expect("opens");
        let [a, b, c] = ["a", "b", "c"].map(|id| SandboxId::new(id).expect("valid"));
        assert_eq!(ids.take(&a).expect("free").first, FIRST);
        assert_eq!(ids.take(&b).expect("free").first, FIRST + IDS);
        assert_eq!(ids.of(&b).expect("found"), Range::numbered(1));
        ids.release(&a).expect("released");
        assert_eq!(ids.of(&a).expect_err("given back").kind(), io::ErrorKind::NotFound);
        assert_eq!(ids.take(&c).expect("free"), Range::numbered(0));
    }

    #[test]
    fn no_supervisor_has_an_id_of_a_sandbox() {
        let (first, last) = (Range::numbered(0), Range::numbered(RANGES - 1));
        assert!(last.supervisor < first.first && last.extra + EXTRA_IDS as u32 <= first.supervisor);
        assert_eq!(Range::numbered(1).extra, first.extra + EXTRA_IDS as u32);
        assert!(last.first.checked_add(IDS).is_some());
        let shared = Range::shared(Powers::Range).expect("shared");
        assert!(!(shared.first..shared.first + IDS).contains(&shared.supervisor));
    }
}
