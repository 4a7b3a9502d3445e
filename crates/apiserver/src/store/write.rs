//! One write: what it expects, what it does, and how it takes its place among the others.

use std::sync::Arc;

use super::entry::{Draft, Key};
use super::state::{Change, State};
use crate::registry::NAMESPACES;

pub(crate) struct Write {
    pub key: Key,
    pub expect: Expect,
    pub op: Op,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expect {
    Absent,
    /// Absent, and its namespace is there and not being deleted.
    AbsentInNamespace,
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
    /// The namespace of the object is gone or being deleted.
    NoNamespace,
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
            Expect::AbsentInNamespace if !has_home(&key, state) => return Err(WriteError::NoNamespace),
            Expect::AbsentInNamespace => previous.is_none(),
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

/// Whether an object with this key may be put into its namespace.
fn has_home(key: &Key, state: &State) -> bool {
    let namespace = key.path.split_once('/').map_or("", |(namespace, _)| namespace);
    let home = state.get(&Key::new(&NAMESPACES.into(), "", namespace));
    home.is_some_and(|home| !home.meta.deleting)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nothing_is_put_into_a_namespace_that_is_gone_or_going() {
        let put = |name: &str, state: &State| {
            let draft = Draft::of(&json!({"metadata": {"namespace": "team", "name": name}}), &[]);
            let key = Key::new(&"configmaps".into(), "team", name);
            Write { key, expect: Expect::AbsentInNamespace, op: Op::Put(draft) }.onto(state).map(Arc::new)
        };
        let namespace = |meta: serde_json::Value| Draft::of(&json!({"metadata": meta}), &[]).preview(1);
        let key = || Key::new(&NAMESPACES.into(), "", "team");
        let mut state = State::default();
        assert!(matches!(put("a", &state), Err(WriteError::NoNamespace)));
        state.load(key(), namespace(json!({"name": "team"})));
        let change = put("a", &state).expect("the namespace is there");
        state.publish(change);
        assert!(matches!(put("a", &state), Err(WriteError::Conflict)));
        state.load(key(), namespace(json!({"name": "team", "deletionTimestamp": "2026-01-01T00:00:00Z"})));
        assert!(matches!(put("b", &state), Err(WriteError::NoNamespace)));
    }
}
