//! Which store a data directory has, and whether it is as far as the directory knows: asked before anything relies on it.

use std::path::Path;

use redb::{Builder, DatabaseError, ReadableDatabase, TableError};

use super::disk::{self, NUMBERS, REVISION, STORE};
use super::journal::Journal;
use super::mark::Mark;

/// Why a store is not the one that its directory had last.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    #[error("it is at revision {has}, and was at revision {reached} before")]
    Behind { has: u64, reached: u64 },
    #[error("it goes up to revision {has}, and its journal goes on at {next}")]
    Gap { has: u64, next: u64 },
}

/// Checks a database that goes up to `saved` against what its journal has after that, and against the highest revision
/// that was noted.
///
/// A journal begins where the database ends, and no revision is left out: a gap is what an older copy of the database has.
pub(super) fn check(saved: u64, journal: &[u64], reached: Option<u64>) -> Result<u64, Unfit> {
    let mut has = saved;
    for &next in journal {
        if next != has + 1 {
            return Err(Unfit::Gap { has, next });
        }
        has = next;
    }
    match reached.filter(|reached| *reached > has) {
        Some(reached) => Err(Unfit::Behind { has, reached }),
        None => Ok(has),
    }
}

/// The number of the store at `path`, which is made if there is none, and whether it went back.
pub(crate) fn identify(path: &Path) -> Result<(u64, Result<u64, Unfit>), redb::Error> {
    let known = match Builder::new().open_read_only(path) {
        Ok(database) => numbers(&database)?,
        // Not there, empty, or not closed by the engine before.
        Err(DatabaseError::RepairAborted) => (None, 0),
        Err(DatabaseError::Storage(redb::StorageError::Io(_))) => (None, 0),
        Err(error) => return Err(error.into()),
    };
    let (store, saved) = match known {
        (Some(store), saved) => (store, saved),
        (None, _) => {
            let database = disk::open_or_make(path)?;
            (disk::identify(&database)?, numbers(&database)?.1)
        }
    };
    let journal =
        Journal::revisions(&path.with_extension("journal"), store, saved).map_err(redb::StorageError::Io)?;
    let reached = Mark::read(&path.with_extension("mark"), store);
    Ok((store, check(saved, &journal, reached)))
}

/// The number of a store, if it has one by now, and the revision up to which it has everything.
fn numbers(database: &impl ReadableDatabase) -> Result<(Option<u64>, u64), redb::Error> {
    let table = match database.begin_read()?.open_table(NUMBERS) {
        Err(TableError::TableDoesNotExist(_)) => return Ok((None, 0)),
        table => table?,
    };
    let number = |name: &str| Ok::<_, redb::Error>(table.get(name)?.map(|value| value.value()));
    Ok((number(STORE)?, number(REVISION)?.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_as_far_as_its_journal_and_never_behind_what_was_noted() {
        for (saved, journal, reached, expected) in [
            (0, &[][..], None, Ok(0)),
            (5, &[], Some(5), Ok(5)),
            (5, &[6, 7], Some(5), Ok(7)),
            (5, &[6, 7], Some(7), Ok(7)),
            (5, &[7], None, Err(Unfit::Gap { has: 5, next: 7 })),
            (5, &[6, 8], None, Err(Unfit::Gap { has: 6, next: 8 })),
            (5, &[], Some(6), Err(Unfit::Behind { has: 5, reached: 6 })),
            (5, &[6], Some(9), Err(Unfit::Behind { has: 6, reached: 9 })),
        ] {
            assert_eq!(check(saved, journal, reached), expected, "{saved} {journal:?} {reached:?}");
        }
    }
}
