//! What a controller remembers of each object between passes: only what may be lost with the process.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kube::Resource;

use crate::object::Key;

/// By name, and of one incarnation: another object of the same name begins anew.
pub struct Memories<M>(Mutex<HashMap<Key, (String, M)>>);

impl<M> Default for Memories<M> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<M: Clone> Memories<M> {
    pub fn recall(&self, object: &impl Resource) -> Option<M> {
        let memories = self.lock();
        let (uid, memory) = memories.get(&Key::of(object))?;
        (*uid == uid_of(object)).then(|| memory.clone())
    }

    pub fn remember(&self, object: &impl Resource, memory: M) {
        self.lock().insert(Key::of(object), (uid_of(object), memory));
    }

    pub fn forget(&self, key: &Key) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, (String, M)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn uid_of(object: &impl Resource) -> String {
    object.meta().uid.clone().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Pod;

    fn pod(name: &str, uid: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.into());
        pod.metadata.uid = Some(uid.into());
        pod
    }

    /// WP-55, WP-77
    #[test]
    fn memory_is_of_one_incarnation_of_one_object() {
        let memories = Memories::default();
        memories.remember(&pod("a", "1"), 7);
        memories.remember(&pod("b", "1"), 8);
        assert_eq!(memories.recall(&pod("a", "1")), Some(7));
        assert_eq!(memories.recall(&pod("a", "2")), None, "another one of that name");
        memories.forget(&Key::of(&pod("a", "1")));
        assert_eq!((memories.recall(&pod("a", "1")), memories.recall(&pod("b", "1"))), (None, Some(8)));
    }
}
