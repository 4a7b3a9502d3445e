//! One write: what it expects, what it does, and how it takes its place among the others.

use std::sync::Arc;

use super::entry::{Draft, Key};
use super::state::{Change, State};

pub(crate) struct Write {
    pub key: Key,
    pub expect: Expect,
    pub op: Op,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expect {
    Absent,
    Revision(u64),
}

pub(crate) enum Op {
    Put(Draft),
    /// Removes the object; the draft, if any, is its last state as watchers will see it.
    Delete(Option<Draft>),
}

#[derive(Debug, Clone)]
pub(crate) enum WriteError {
    /// The object is not what the writer thought it was.
    Conflict,
    /// The disk refused.
    Storage(Arc<redb::Error>),
    Stopped,
}

impl Write {
    /// The change that this write makes to `state`, which is left as it is.
    pub(super) fn onto(self, state: &State) -> Result<Change, WriteError> {
        let Self { key, expect, op } = self;
        let previous = state.get(&key).cloned();
        let met = match expect {
            Expect::Absent => previous.is_none(),
            Expect::Revision(revision) => previous.as_ref().is_some_and(|entry| entry.revision == revision),
        };
        if !met {
            return Err(WriteError::Conflict);
        }
        let revision = state.revision + 1;
        let deleted = matches!(op, Op::Delete(_));
        let entry = match (op, &previous) {
            (Op::Put(draft) | Op::Delete(Some(draft)), _) => draft.seal(revision),
            (Op::Delete(None), Some(previous)) => previous.reseal(revision),
            (Op::Delete(None), None) => return Err(WriteError::Conflict),
        };
        Ok(Change { revision, key, deleted, entry: Arc::new(entry), previous })
    }
}
