//! A local copy of one kind, kept by a watch, that also remembers what this process wrote.
//!
//! A watch lags. Without the second half a controller would act on its own past: create a Pod twice,
//! or stamp a condition with a new time. The newer of watched and written wins, by resourceVersion; an
//! object that we deleted stays away while the watch still tells of its life.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};
use tokio::sync::watch;

use crate::object::Key;

/// Picks the value by which [`Cache::find`] finds an object.
type Index<K> = fn(&K) -> Option<String>;

pub struct Cache<K> {
    index: Index<K>,
    state: RwLock<State<K>>,
    synced: watch::Sender<bool>,
}

struct State<K> {
    objects: HashMap<Key, Arc<K>>,
    by_index: HashMap<String, BTreeSet<Key>>,
    /// Keys seen or written since a relist began; `None` between relists.
    relisting: Option<BTreeSet<Key>>,
    /// The revision up to which the watch has told everything.
    told: u64,
    /// UIDs that this process deleted and whose end the watch has not told yet.
    gone: HashSet<String>,
}

impl<K: Resource + Clone> Cache<K> {
    pub fn new(index: Index<K>) -> Self {
        let state = State {
            objects: HashMap::new(),
            by_index: HashMap::new(),
            relisting: None,
            told: 0,
            gone: HashSet::new(),
        };
        Self { index, state: RwLock::new(state), synced: watch::Sender::new(false) }
    }

    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.read().objects.get(key).cloned()
    }

    /// The objects that the index puts under `value`, in the order of their keys.
    pub fn find(&self, value: &str) -> Vec<Arc<K>> {
        let state = self.read();
        let keys = state.by_index.get(value).into_iter().flatten();
        keys.filter_map(|key| state.objects.get(key).cloned()).collect()
    }

    /// Waits until the first list is complete.
    pub async fn synced(&self) {
        // The sender lives in `self`: waiting cannot fail while we are borrowed.
        let _ = self.synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// Takes in an object that this process got as the answer to a write.
    ///
    /// An answer that the watch has overtaken says nothing new, and may be about an object that is gone.
    pub fn wrote(&self, object: K) {
        let mut state = self.write();
        if revision(&object) <= state.told {
            return;
        }
        if let Some(kept) = state.relisting.as_mut() {
            kept.insert(Key::of(&object)); // the list may have been taken before this write
        }
        state.upsert(object, self.index);
    }

    /// Forgets an object that this process deleted: a lagging watch cannot bring it back.
    pub fn deleted(&self, key: &Key, uid: &str) {
        let mut state = self.write();
        if state.objects.get(key).is_some_and(|known| known.meta().uid.as_deref() == Some(uid)) {
            state.gone.insert(uid.to_owned());
            state.remove(key, self.index);
        }
    }

    /// Takes in one watch event; returns the objects that changed, before and after: who lost an object
    /// wants to know as well as who has it now.
    pub fn observe(&self, event: Event<K>) -> Vec<Arc<K>> {
        let mut state = self.write();
        match event {
            Event::Init => {
                // The list is taken after this, so it cannot hold what was deleted before.
                state.gone.clear();
                state.relisting = Some(BTreeSet::new());
                Vec::new()
            }
            Event::InitApply(object) => {
                let key = Key::of(&object);
                if let Some(seen) = state.relisting.as_mut() {
                    seen.insert(key);
                }
                state.upsert(object, self.index)
            }
            Event::InitDone => {
                let seen = state.relisting.take().unwrap_or_default();
                let gone: Vec<Key> =
                    state.objects.keys().filter(|key| !seen.contains(key)).cloned().collect();
                let removed = gone.iter().filter_map(|key| state.remove(key, self.index)).collect();
                self.synced.send_replace(true);
                removed
            }
            Event::Apply(object) => {
                state.told = state.told.max(revision(&object));
                state.upsert(object, self.index)
            }
            Event::Delete(object) => {
                let key = Key::of(&object);
                state.told = state.told.max(revision(&object));
                if let Some(uid) = &object.meta().uid {
                    state.gone.remove(uid);
                }
                // A newer object of the same name may have been written by us since.
                let same = state.objects.get(&key).is_some_and(|known| known.meta().uid == object.meta().uid);
                if same {
                    state.remove(&key, self.index);
                }
                vec![Arc::new(object)]
            }
        }
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, State<K>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, State<K>> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Resource + Clone> State<K> {
    /// Stores the object unless a newer form of it is known; returns what was known and what is now.
    fn upsert(&mut self, mut object: K, index: Index<K>) -> Vec<Arc<K>> {
        object.meta_mut().managed_fields = None;
        let key = Key::of(&object);
        let outdated = self.objects.get(&key).is_some_and(|known| revision(&**known) > revision(&object));
        if outdated || object.meta().uid.as_ref().is_some_and(|uid| self.gone.contains(uid)) {
            return Vec::new();
        }
        let before = self.remove(&key, index);
        if let Some(value) = index(&object) {
            self.by_index.entry(value).or_default().insert(key.clone());
        }
        let object = Arc::new(object);
        self.objects.insert(key, object.clone());
        before.into_iter().chain([object]).collect()
    }

    fn remove(&mut self, key: &Key, index: Index<K>) -> Option<Arc<K>> {
        let object = self.objects.remove(key)?;
        if let Some(value) = index(&object)
            && let Some(keys) = self.by_index.get_mut(&value)
        {
            keys.remove(key);
            if keys.is_empty() {
                self.by_index.remove(&value);
            }
        }
        Some(object)
    }
}

/// Kubernetes promises that resourceVersions of one resource can be compared as numbers.
fn revision(object: &impl Resource) -> u64 {
    object.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{Pod, controller_of};

    fn cache() -> Cache<Pod> {
        Cache::new(|pod| controller_of(pod).map(|owner| owner.uid.clone()))
    }

    fn pod(name: &str, uid: &str, revision: u64) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.namespace = Some("ns".into());
        pod.metadata.name = Some(name.into());
        pod.metadata.uid = Some(uid.into());
        pod.metadata.resource_version = Some(revision.to_string());
        pod.metadata.owner_references = Some(vec![
            serde_json::from_value(serde_json::json!(
                {"apiVersion": "v1", "kind": "Sandbox", "name": "s", "uid": "owner", "controller": true}
            ))
            .unwrap(),
        ]);
        pod
    }

    /// WP-60, WP-70: what was created counts at once, so nothing has to be expected
    #[test]
    fn own_write_is_seen_before_the_watch_tells() {
        let cache = cache();
        cache.wrote(pod("a", "1", 7));
        assert_eq!(cache.find("owner").len(), 1);
        cache.observe(Event::Apply(pod("a", "1", 5)));
        assert_eq!(cache.get(&Key::new("ns", "a")).unwrap().resource_version().as_deref(), Some("7"));
        cache.observe(Event::Apply(pod("a", "1", 9)));
        assert_eq!(cache.get(&Key::new("ns", "a")).unwrap().resource_version().as_deref(), Some("9"));
    }

    #[test]
    fn late_delete_of_an_earlier_incarnation_spares_the_new_one() {
        let cache = cache();
        cache.wrote(pod("a", "new", 7));
        cache.observe(Event::Delete(pod("a", "old", 6)));
        assert!(cache.get(&Key::new("ns", "a")).is_some());
        cache.observe(Event::Delete(pod("a", "new", 8)));
        assert!(cache.get(&Key::new("ns", "a")).is_none());
        assert!(cache.find("owner").is_empty());
    }

    /// WP-62, WP-73, WP-75: no timeout is needed, only the watch's word
    #[test]
    fn own_deletion_is_not_undone_by_a_lagging_watch() {
        let cache = cache();
        cache.observe(Event::Apply(pod("a", "1", 5)));
        cache.deleted(&Key::new("ns", "a"), "1");
        cache.observe(Event::Apply(pod("a", "1", 6)));
        assert!(cache.find("owner").is_empty(), "what the watch tells now happened before the end");
        cache.observe(Event::Delete(pod("a", "1", 7)));
        assert!(cache.read().gone.is_empty(), "nothing is remembered longer than needed");
        cache.observe(Event::Apply(pod("a", "2", 8)));
        assert_eq!(cache.find("owner").len(), 1, "another one of that name is another one");
    }

    /// WP-73: unknown UIDs are ignored; WP-74
    #[test]
    fn deletion_of_something_unknown_leaves_no_trace() {
        let cache = cache();
        cache.observe(Event::Apply(pod("a", "2", 5)));
        for uid in ["1", ""] {
            cache.deleted(&Key::new("ns", "a"), uid);
            cache.deleted(&Key::new("ns", "b"), uid);
        }
        assert!(cache.read().gone.is_empty());
        assert_eq!(cache.find("owner").len(), 1);
    }

    #[test]
    fn late_answer_does_not_bring_back_what_the_watch_saw_die() {
        let cache = cache();
        cache.observe(Event::Apply(pod("a", "1", 5)));
        cache.observe(Event::Delete(pod("a", "1", 6)));
        cache.wrote(pod("a", "1", 5));
        assert!(cache.find("owner").is_empty());
    }

    #[test]
    fn write_during_a_relist_survives_it() {
        let cache = cache();
        cache.observe(Event::Init);
        cache.wrote(pod("a", "1", 5));
        cache.observe(Event::InitDone);
        assert_eq!(cache.find("owner").len(), 1);
    }

    #[test]
    fn change_is_told_with_what_was_before() {
        let cache = cache();
        cache.observe(Event::Apply(pod("a", "1", 5)));
        let mut moved = pod("a", "1", 6);
        moved.metadata.owner_references = None;
        let told = cache.observe(Event::Apply(moved));
        let owners: Vec<_> = told.iter().map(|pod| controller_of(&**pod).is_some()).collect();
        assert_eq!(owners, [true, false]);
        assert!(cache.find("owner").is_empty());
    }

    #[test]
    fn relist_removes_what_is_gone_and_reports_it() {
        let cache = cache();
        for event in [
            Event::Init,
            Event::InitApply(pod("a", "1", 1)),
            Event::InitApply(pod("b", "2", 2)),
            Event::InitDone,
        ] {
            cache.observe(event);
        }
        cache.observe(Event::Init);
        cache.observe(Event::InitApply(pod("b", "2", 2)));
        let gone = cache.observe(Event::InitDone);
        assert_eq!(gone.iter().map(|pod| pod.name_any()).collect::<Vec<_>>(), ["a"]);
        assert_eq!(cache.find("owner").len(), 1);
    }
}
