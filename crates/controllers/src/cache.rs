//! A local copy of one kind, kept by watches, that also remembers what this process wrote.
//!
//! A watch lags. Without the second half a controller would act on its own past: create a Pod twice,
//! or stamp a condition with a new time. The newer of watched and written wins, by resourceVersion; an
//! object that we deleted stays away while the watch still tells of its life.
//!
//! Controllers share one copy and listen to it. A listener hears of every change once, whoever made it,
//! in order, while the copy is locked: it must be quick and must not look into the copy that calls it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};
use tokio::sync::watch;

use crate::object::Key;

/// Picks the value by which [`Cache::find`] finds an object.
type Index<K> = fn(&K) -> Option<String>;

type Listener<K> = Box<dyn Fn(&Change<K>) + Send + Sync>;

/// What was known of one object before, and what is known now. One of the two is there.
pub struct Change<K> {
    pub before: Option<Arc<K>>,
    pub after: Option<Arc<K>>,
}

impl<K> Change<K> {
    /// Both sides: who lost an object wants to know as well as who has it now.
    pub fn sides(&self) -> impl Iterator<Item = &Arc<K>> {
        self.before.iter().chain(&self.after)
    }
}

/// Has a new object share with a known one what is equal in both.
type Share<K> = fn(&mut K, &K);

pub struct Cache<K> {
    /// Only objects with this label are kept.
    label: Option<&'static str>,
    state: RwLock<State<K>>,
    /// How many feeds have not told everything yet.
    incomplete: watch::Sender<usize>,
}

struct State<K> {
    objects: HashMap<Key, Arc<K>>,
    lookups: Vec<Lookup<K>>,
    /// By namespace; the one of all namespaces has the empty name.
    feeds: HashMap<String, Feed>,
    /// UIDs that this process deleted and whose end the watch has not told yet, with their namespaces.
    gone: HashMap<String, String>,
    listeners: Vec<(u64, Listener<K>)>,
    next_listener: u64,
    share: Share<K>,
}

/// All objects by a value of theirs.
struct Lookup<K> {
    name: &'static str,
    index: Index<K>,
    found: HashMap<String, Group<K>>,
}

/// The objects under one value. Nearly always that is one, for which a tree would be ten times as large.
enum Group<K> {
    One(Key, Arc<K>),
    Many(BTreeMap<Key, Arc<K>>),
}

impl<K> Group<K> {
    fn insert(&mut self, key: Key, object: Arc<K>) {
        match self {
            Self::One(known, one) if *known == key => *one = object,
            Self::One(known, one) => {
                *self = Self::Many(BTreeMap::from([(known.clone(), one.clone()), (key, object)]));
            }
            Self::Many(objects) => _ = objects.insert(key, object),
        }
    }

    /// Returns whether nothing is left.
    fn remove(&mut self, key: &Key) -> bool {
        match self {
            Self::One(known, _) => known == key,
            Self::Many(objects) => {
                objects.remove(key);
                objects.is_empty()
            }
        }
    }

    /// In the order of their keys.
    fn values(&self) -> impl Iterator<Item = &Arc<K>> {
        let (one, many) = match self {
            Self::One(_, one) => (Some(one), None),
            Self::Many(objects) => (None, Some(objects.values())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

/// One watch that feeds a cache.
#[derive(Default)]
struct Feed {
    /// Whether its first list is complete.
    complete: bool,
    /// Keys seen or written since a relist began; `None` between relists.
    relisting: Option<BTreeSet<Key>>,
    /// The revision up to which the watch has told everything.
    told: u64,
}

/// Stops listening when dropped.
pub struct Listening<'a, K: Resource + Clone> {
    cache: &'a Cache<K>,
    id: u64,
}

impl<K: Resource + Clone> Drop for Listening<'_, K> {
    fn drop(&mut self) {
        self.cache.write().listeners.retain(|(id, _)| *id != self.id);
    }
}

impl<K: Resource + Clone> Cache<K> {
    /// A copy fed by one watch per namespace; without namespaces, by one watch of all.
    pub fn new(namespaces: &[String], indexes: &[(&'static str, Index<K>)]) -> Self {
        let everywhere = [String::new()];
        let namespaces = if namespaces.is_empty() { &everywhere } else { namespaces };
        let state = State {
            objects: HashMap::new(),
            lookups: indexes
                .iter()
                .map(|&(name, index)| Lookup { name, index, found: HashMap::new() })
                .collect(),
            feeds: namespaces.iter().map(|namespace| (namespace.clone(), Feed::default())).collect(),
            gone: HashMap::new(),
            listeners: Vec::new(),
            next_listener: 0,
            share: |_, _| {},
        };
        let incomplete = watch::Sender::new(state.feeds.len());
        Self { label: None, state: RwLock::new(state), incomplete }
    }

    /// The same, but only of objects that carry this label.
    pub fn labelled(self, label: Option<&'static str>) -> Self {
        Self { label, ..self }
    }

    /// The same, with objects that share what is equal with their earlier selves, or with others of an index.
    pub fn sharing(self, share: Share<K>) -> Self {
        self.write().share = share;
        self
    }

    /// The label that every object here carries.
    pub fn label(&self) -> Option<&'static str> {
        self.label
    }

    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.read().objects.get(key).cloned()
    }

    /// The objects that an index puts under `value`, in the order of their keys.
    pub fn find(&self, index: &str, value: &str) -> Vec<Arc<K>> {
        let state = self.read();
        let lookup = state.lookups.iter().find(|lookup| lookup.name == index);
        debug_assert!(lookup.is_some(), "no such index");
        let found = lookup.and_then(|lookup| lookup.found.get(value));
        found.into_iter().flat_map(Group::values).cloned().collect()
    }

    /// Whether an index puts anything under `value`.
    pub fn any(&self, index: &str, value: &str) -> bool {
        self.read().lookups.iter().any(|lookup| lookup.name == index && lookup.found.contains_key(value))
    }

    /// Everything there is, in no order.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.read().objects.values().cloned().collect()
    }

    /// Waits until the first lists are complete.
    pub async fn synced(&self) {
        // The sender lives in `self`: waiting cannot fail while we are borrowed.
        let _ = self.incomplete.subscribe().wait_for(|incomplete| *incomplete == 0).await;
    }

    /// The namespaces whose watches feed this copy; an empty name means all of them.
    pub fn namespaces(&self) -> Vec<String> {
        self.read().feeds.keys().cloned().collect()
    }

    /// Tells `listener` of every object that is known, and from then on of every change.
    pub fn listen(&self, listener: impl Fn(&Change<K>) + Send + Sync + 'static) -> Listening<'_, K> {
        let mut state = self.write();
        for object in state.objects.values() {
            listener(&Change { before: None, after: Some(object.clone()) });
        }
        let id = state.next_listener;
        state.next_listener += 1;
        state.listeners.push((id, Box::new(listener)));
        Listening { cache: self, id }
    }

    /// Takes in an object that this process got as the answer to a write.
    ///
    /// An answer that the watch has overtaken says nothing new, and may be about an object that is gone.
    pub fn wrote(&self, object: K) {
        if self.label.is_some_and(|label| !object.labels().contains_key(label)) {
            return; // no watch would tell what becomes of it
        }
        let mut state = self.write();
        let key = Key::of(&object);
        if let Some(feed) = state.feed_of(&key.namespace) {
            if revision(&object) <= feed.told {
                return;
            }
            if let Some(kept) = feed.relisting.as_mut() {
                kept.insert(key); // the list may have been taken before this write
            }
        }
        state.upsert(object);
    }

    /// Forgets an object that this process deleted: a lagging watch cannot bring it back.
    pub fn deleted(&self, key: &Key, uid: &str) {
        let mut state = self.write();
        if state.objects.get(key).is_some_and(|known| known.meta().uid.as_deref() == Some(uid)) {
            state.gone.insert(uid.to_owned(), key.namespace.clone());
            state.remove(key);
        }
    }

    /// Takes in one event of the watch of `namespace`; the empty name is the watch of all.
    pub fn observe(&self, namespace: &str, event: Event<K>) {
        let mut state = self.write();
        match event {
            Event::Init => {
                // The list is taken after this, so it cannot hold what was deleted before.
                state.gone.retain(|_, of| !namespace.is_empty() && of != namespace);
                state.feed(namespace).relisting = Some(BTreeSet::new());
            }
            Event::InitApply(object) => {
                let key = Key::of(&object);
                if let Some(seen) = state.feed(namespace).relisting.as_mut() {
                    seen.insert(key);
                }
                state.upsert(object);
            }
            Event::InitDone => {
                let feed = state.feed(namespace);
                let seen = feed.relisting.take().unwrap_or_default();
                let first = !std::mem::replace(&mut feed.complete, true);
                let fed = |key: &&Key| namespace.is_empty() || key.namespace == namespace;
                let keys = state.objects.keys().filter(fed);
                let gone: Vec<Key> = keys.filter(|key| !seen.contains(key)).cloned().collect();
                gone.iter().for_each(|key| state.remove(key));
                if first {
                    self.incomplete.send_modify(|incomplete| *incomplete = incomplete.saturating_sub(1));
                }
            }
            Event::Apply(object) => {
                state.told(namespace, &object);
                state.upsert(object);
            }
            Event::Delete(object) => {
                state.told(namespace, &object);
                let uid = object.meta().uid.as_deref();
                uid.and_then(|uid| state.gone.remove(uid));
                let key = Key::of(&object);
                // A newer object of the same name may have been written by us since.
                if state.objects.get(&key).is_some_and(|known| known.meta().uid.as_deref() == uid) {
                    state.remove(&key);
                }
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
    fn feed(&mut self, namespace: &str) -> &mut Feed {
        self.feeds.entry(namespace.to_owned()).or_default()
    }

    /// The watch that tells of a namespace.
    fn feed_of(&mut self, namespace: &str) -> Option<&mut Feed> {
        let name = if self.feeds.contains_key("") { "" } else { namespace };
        self.feeds.get_mut(name)
    }

    fn told(&mut self, namespace: &str, object: &K) {
        let feed = self.feed(namespace);
        feed.told = feed.told.max(revision(object));
    }

    /// Stores the object unless this or a newer form of it is known.
    fn upsert(&mut self, mut object: K) {
        object.meta_mut().managed_fields = None;
        let key = Key::of(&object);
        let known = self.objects.get(&key);
        let outdated = known.is_some_and(|known| {
            known.meta().uid == object.meta().uid && revision(&**known) >= revision(&object)
                || revision(&**known) > revision(&object)
        });
        if outdated || object.meta().uid.as_ref().is_some_and(|uid| self.gone.contains_key(uid)) {
            return;
        }
        let before = self.take(&key);
        let kin = || {
            let groups = self.lookups.iter().filter_map(|lookup| lookup.found.get(&(lookup.index)(&object)?));
            groups.flat_map(Group::values).next()
        };
        if let Some(known) = before.as_ref().or_else(kin).cloned() {
            (self.share)(&mut object, &known);
        }
        let after = Arc::new(object);
        for lookup in &mut self.lookups {
            if let Some(value) = (lookup.index)(&after) {
                let new = || Group::One(key.clone(), after.clone());
                let group = lookup.found.entry(value).or_insert_with(new);
                group.insert(key.clone(), after.clone());
            }
        }
        self.objects.insert(key, after.clone());
        self.tell(&Change { before, after: Some(after) });
    }

    fn remove(&mut self, key: &Key) {
        if let Some(before) = self.take(key) {
            self.tell(&Change { before: Some(before), after: None });
        }
    }

    fn take(&mut self, key: &Key) -> Option<Arc<K>> {
        let object = self.objects.remove(key)?;
        for lookup in &mut self.lookups {
            if let Some(value) = (lookup.index)(&object)
                && lookup.found.get_mut(&value).is_some_and(|group| group.remove(key))
            {
                lookup.found.remove(&value);
            }
        }
        Some(object)
    }

    fn tell(&self, change: &Change<K>) {
        self.listeners.iter().for_each(|(_, listener)| listener(change));
    }
}

/// Kubernetes promises that resourceVersions of one resource can be compared as numbers.
fn revision(object: &impl Resource) -> u64 {
    object.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::object::{Pod, controller_of};

    fn cache() -> Cache<Pod> {
        Cache::new(&[], &[("owner", |pod| controller_of(pod).map(|owner| owner.uid.clone()))])
    }

    impl Cache<Pod> {
        fn is_synced(&self) -> bool {
            *self.incomplete.borrow() == 0
        }
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
        assert_eq!(cache.find("owner", "owner").len(), 1);
        cache.observe("", Event::Apply(pod("a", "1", 5)));
        assert_eq!(cache.get(&Key::new("ns", "a")).unwrap().resource_version().as_deref(), Some("7"));
        cache.observe("", Event::Apply(pod("a", "1", 9)));
        assert_eq!(cache.get(&Key::new("ns", "a")).unwrap().resource_version().as_deref(), Some("9"));
    }

    #[test]
    fn objects_of_one_value_are_found_in_order_however_many_they_are() {
        let cache = cache();
        let found = || -> Vec<_> { cache.find("owner", "owner").iter().map(|pod| pod.name_any()).collect() };
        for (name, expected) in [("b", vec!["b"]), ("a", vec!["a", "b"]), ("c", vec!["a", "b", "c"])] {
            cache.observe("", Event::Apply(pod(name, name, 5)));
            assert_eq!(found(), expected);
        }
        for (name, expected) in [("a", vec!["b", "c"]), ("c", vec!["b"]), ("b", vec![])] {
            cache.observe("", Event::Delete(pod(name, name, 6)));
            assert_eq!(found(), expected);
        }
        assert!(cache.read().lookups[0].found.is_empty(), "nothing is remembered longer than needed");
    }

    #[test]
    fn late_delete_of_an_earlier_incarnation_spares_the_new_one() {
        let cache = cache();
        cache.wrote(pod("a", "new", 7));
        cache.observe("", Event::Delete(pod("a", "old", 6)));
        assert!(cache.get(&Key::new("ns", "a")).is_some());
        cache.observe("", Event::Delete(pod("a", "new", 8)));
        assert!(cache.get(&Key::new("ns", "a")).is_none());
        assert!(cache.find("owner", "owner").is_empty());
    }

    /// WP-62, WP-73, WP-75: no timeout is needed, only the watch's word
    #[test]
    fn own_deletion_is_not_undone_by_a_lagging_watch() {
        let cache = cache();
        cache.observe("", Event::Apply(pod("a", "1", 5)));
        cache.deleted(&Key::new("ns", "a"), "1");
        cache.observe("", Event::Apply(pod("a", "1", 6)));
        assert!(cache.find("owner", "owner").is_empty(), "what the watch tells now happened before the end");
        cache.observe("", Event::Delete(pod("a", "1", 7)));
        assert!(cache.read().gone.is_empty(), "nothing is remembered longer than needed");
        cache.observe("", Event::Apply(pod("a", "2", 8)));
        assert_eq!(cache.find("owner", "owner").len(), 1, "another one of that name is another one");
    }

    /// WP-73: unknown UIDs are ignored; WP-74
    #[test]
    fn deletion_of_something_unknown_leaves_no_trace() {
        let cache = cache();
        cache.observe("", Event::Apply(pod("a", "2", 5)));
        for uid in ["1", ""] {
            cache.deleted(&Key::new("ns", "a"), uid);
            cache.deleted(&Key::new("ns", "b"), uid);
        }
        assert!(cache.read().gone.is_empty());
        assert_eq!(cache.find("owner", "owner").len(), 1);
    }

    #[test]
    fn late_answer_does_not_bring_back_what_the_watch_saw_die() {
        let cache = cache();
        cache.observe("", Event::Apply(pod("a", "1", 5)));
        cache.observe("", Event::Delete(pod("a", "1", 6)));
        cache.wrote(pod("a", "1", 5));
        assert!(cache.find("owner", "owner").is_empty());
    }

    #[test]
    fn write_during_a_relist_survives_it() {
        let cache = cache();
        cache.observe("", Event::Init);
        cache.wrote(pod("a", "1", 5));
        cache.observe("", Event::InitDone);
        assert_eq!(cache.find("owner", "owner").len(), 1);
    }

    /// Whether the Pod was owned before, and is now.
    type Heard = Arc<Mutex<Vec<[Option<bool>; 2]>>>;

    fn heard(cache: &Cache<Pod>) -> (Heard, Listening<'_, Pod>) {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let list = heard.clone();
        let listening = cache.listen(move |change| {
            let owned = |pod: &Option<Arc<Pod>>| pod.as_ref().map(|pod| controller_of(&**pod).is_some());
            list.lock().unwrap().push([owned(&change.before), owned(&change.after)]);
        });
        (heard, listening)
    }

    #[test]
    fn change_is_told_once_with_what_was_before() {
        let cache = cache();
        cache.observe("", Event::Apply(pod("a", "1", 5)));
        let (heard, listening) = heard(&cache);
        let mut moved = pod("a", "1", 6);
        moved.metadata.owner_references = None;
        cache.wrote(moved.clone());
        cache.observe("", Event::Apply(moved.clone())); // the watch repeats what we wrote
        cache.observe("", Event::Delete(moved));
        let told = [[None, Some(true)], [Some(true), Some(false)], [Some(false), None]];
        assert_eq!(*heard.lock().unwrap(), told);
        assert!(cache.find("owner", "owner").is_empty());

        drop(listening);
        cache.observe("", Event::Apply(pod("b", "2", 9)));
        assert_eq!(heard.lock().unwrap().len(), told.len(), "who stopped listening hears nothing");
    }

    #[test]
    fn relist_removes_what_is_gone_and_tells() {
        let cache = cache();
        for event in [
            Event::Init,
            Event::InitApply(pod("a", "1", 1)),
            Event::InitApply(pod("b", "2", 2)),
            Event::InitDone,
        ] {
            cache.observe("", event);
        }
        let (heard, _listening) = heard(&cache);
        cache.observe("", Event::Init);
        cache.observe("", Event::InitApply(pod("b", "2", 2)));
        cache.observe("", Event::InitDone);
        assert_eq!(heard.lock().unwrap()[2..], [[Some(true), None]]);
        assert_eq!(cache.find("owner", "owner").len(), 1);
    }

    /// MG-03
    #[test]
    fn managed_fields_are_not_kept() {
        let mut managed = pod("a", "1", 5);
        managed.metadata.managed_fields = Some(Vec::new());
        let cache = cache();
        cache.observe("", Event::Apply(managed));
        assert_eq!(cache.get(&Key::new("ns", "a")).unwrap().metadata.managed_fields, None);
        assert_eq!(cache.label(), None, "everything is watched unless somebody asks for less");
    }

    /// MG-04
    #[test]
    fn what_no_watch_would_tell_of_is_not_remembered() {
        let cache = cache().labelled(Some("ours"));
        cache.wrote(pod("stranger", "1", 7));
        let mut ours = pod("ours", "2", 8);
        ours.labels_mut().insert("ours".to_owned(), String::new());
        cache.wrote(ours);
        assert!(cache.get(&Key::new("ns", "stranger")).is_none());
        assert!(cache.get(&Key::new("ns", "ours")).is_some());
    }

    #[test]
    fn relist_of_one_namespace_leaves_the_others_alone() {
        let cache: Cache<Pod> = Cache::new(&["ns".to_owned(), "other".to_owned()], &[]);
        cache.observe("ns", Event::Init);
        cache.observe("ns", Event::InitApply(pod("a", "1", 1)));
        cache.observe("ns", Event::InitDone);
        assert!(!cache.is_synced(), "the other namespace has told nothing yet");
        cache.observe("other", Event::Init);
        cache.observe("other", Event::InitDone);
        assert!(cache.is_synced());
        assert!(cache.get(&Key::new("ns", "a")).is_some());
        cache.observe("ns", Event::Init);
        cache.observe("ns", Event::InitDone);
        assert!(cache.get(&Key::new("ns", "a")).is_none());
    }
}
