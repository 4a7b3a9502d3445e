//! The Pods behind a Service, and the EndpointSlices and Endpoints that say so, as kube-controller-manager writes them.
//!
//! ```text
//! store change ─► which Services it concerns ─ a quiet moment ─► plan (pure) ─► what differs is written
//! ```
//!
//! Nothing waits for these objects: the node and `services/proxy` look at the Pods themselves. So they are written when
//! there has been a pause, once for all that came before it. Without a Service that has a selector there is nothing to do.

pub(crate) mod backend;
mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::Instant;

use crate::background;
use crate::ops::{Api, DeleteOptions, Part, WriteOptions};
use crate::registry::{PODS, Target};
use crate::status::ApiError;
use crate::store::{Change, Entry};
use plan::Step;

const SERVICES: &str = "services";
const ENDPOINTS: &str = "endpoints";
const SLICES: &str = "endpointslices.discovery.k8s.io";
/// Nothing has changed for this long: what was begun is through.
const QUIET: Duration = Duration::from_millis(250);
/// The longest that a change waits while others go on.
const LONGEST: Duration = Duration::from_secs(3);
/// The pause before Endpoints are written again after a write that failed.
const AGAIN: Duration = Duration::from_secs(1);

/// Sends every change that may concern the endpoints of a Service.
pub(crate) fn tap(changes: UnboundedSender<Arc<Change>>) -> impl Fn(&Arc<Change>) {
    move |change: &Arc<Change>| {
        if matches!(&*change.key.collection, PODS | SERVICES | ENDPOINTS | SLICES) {
            let _ = changes.send(change.clone());
        }
    }
}

/// Works until the server stops. Starts by looking at every Service: changes of an earlier run may not have been answered.
pub(crate) async fn run(api: Arc<Api>, mut changes: UnboundedReceiver<Arc<Change>>) {
    let mut services = Services::default();
    for entry in api.store.list(SERVICES, "").entries {
        services.learn(&entry);
    }
    for entry in api.store.list(ENDPOINTS, "").entries {
        if plan::keeps_endpoints(label(&entry)) {
            services.touch(&entry.meta.namespace, &entry.meta.name);
        }
    }
    loop {
        let due = services.due();
        let pause = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = api.stopping.cancelled() => return,
            change = changes.recv() => match change {
                Some(change) => services.note(&change),
                None => return,
            },
            () = pause => {
                let mut again = Vec::new();
                for (namespace, name) in services.take() {
                    let written = background::step("endpoints", async { write(&api, &namespace, &name) });
                    if let Some(Err(error)) = written.await {
                        tracing::debug!(namespace, service = name, error = error.message, "endpoints not written");
                        // After another error, another change follows: the namespace is deleted, or there was a conflict.
                        if error.code >= 500 {
                            again.push((namespace, name));
                        }
                    }
                    // What people and Pods ask for comes first.
                    tokio::task::yield_now().await;
                }
                if !again.is_empty() {
                    tokio::time::sleep(AGAIN).await;
                    again.iter().for_each(|(namespace, name)| services.touch(namespace, name));
                }
            }
        }
    }
}

/// A namespaced name.
type Name = (Box<str>, Box<str>);
/// Labels by the name of a Service.
type Selectors = BTreeMap<Box<str>, Map<String, Value>>;

/// The Services that select Pods, and those whose endpoints have to be looked at.
#[derive(Default)]
struct Services {
    selectors: BTreeMap<Box<str>, Selectors>,
    touched: BTreeSet<Name>,
    /// When the first of these was touched, and the last.
    since: Option<(Instant, Instant)>,
}

impl Services {
    fn note(&mut self, change: &Change) {
        let meta = &change.entry.meta;
        match &*change.key.collection {
            SERVICES if change.deleted => {
                self.forget(&meta.namespace, &meta.name);
                self.touch(&meta.namespace, &meta.name);
            }
            SERVICES => self.learn(&change.entry),
            PODS => {
                let before = change.previous.iter().map(|previous| &previous.meta.labels);
                let labels: Vec<_> = before.chain([&meta.labels]).collect();
                let Some(of) = self.selectors.get(&meta.namespace) else { return };
                let concerned =
                    of.iter().filter(|(_, selector)| labels.iter().any(|labels| selects(selector, labels)));
                let names: Vec<_> = concerned.map(|(name, _)| name.clone()).collect();
                names.into_iter().for_each(|name| self.touch(&meta.namespace, &name));
            }
            ENDPOINTS => self.touch_if_known(&meta.namespace, &meta.name),
            _ => {
                if let Some(service) = label(&change.entry)(plan::SERVICE_NAME)
                    && let Some(service) = service.as_str()
                {
                    self.touch_if_known(&meta.namespace, service);
                }
            }
        }
    }

    fn learn(&mut self, entry: &Entry) {
        let (namespace, name, service) = (&entry.meta.namespace, &entry.meta.name, entry.parse());
        let Some(selector) = backend::selector(&service) else { return self.forget(namespace, name) };
        let of = self.selectors.entry(namespace.clone()).or_default();
        of.insert(name.clone(), selector.clone());
        self.touch(namespace, name);
    }

    fn forget(&mut self, namespace: &str, name: &str) {
        let Some(of) = self.selectors.get_mut(namespace) else { return };
        of.remove(name);
        if of.is_empty() {
            self.selectors.remove(namespace);
        }
    }

    fn touch_if_known(&mut self, namespace: &str, name: &str) {
        if self.selectors.get(namespace).is_some_and(|of| of.contains_key(name)) {
            self.touch(namespace, name);
        }
    }

    fn touch(&mut self, namespace: &str, name: &str) {
        let now = Instant::now();
        self.since = Some((self.since.map_or(now, |(first, _)| first), now));
        self.touched.insert((namespace.into(), name.into()));
    }

    fn due(&self) -> Option<Instant> {
        self.since.map(|(first, last)| (last + QUIET).min(first + LONGEST))
    }

    fn take(&mut self) -> BTreeSet<Name> {
        self.since = None;
        std::mem::take(&mut self.touched)
    }
}

impl Api {
    /// The Pods of a namespace that have these labels.
    pub(crate) fn selected_pods(&self, namespace: &str, labels: &Map<String, Value>) -> Vec<Value> {
        let entries = self.store.list(PODS, &format!("{namespace}/")).entries;
        let selected = entries.iter().filter(|pod| selects(labels, &pod.meta.labels));
        selected.map(|pod| pod.parse()).collect()
    }
}

fn selects(selector: &Map<String, Value>, labels: &[(Box<str>, Box<str>)]) -> bool {
    let has = |(name, value): (&String, &Value)| {
        labels.iter().any(|(known, its)| **known == **name && Some(&**its) == value.as_str())
    };
    selector.iter().all(has)
}

fn label(entry: &Entry) -> impl Fn(&str) -> Option<Value> {
    |name: &str| {
        let found = entry.meta.labels.iter().find(|(known, _)| **known == *name);
        found.map(|(_, value)| Value::from(&**value))
    }
}

/// Brings what is written about a Service up to date.
fn write(api: &Api, namespace: &str, name: &str) -> Result<(), ApiError> {
    let find =
        |group: &str, plural: &str| api.registry.find(group, "v1", plural).ok_or_else(ApiError::no_resource);
    let (services, endpoints) = (find("", SERVICES)?, find("", ENDPOINTS)?);
    let known = api.get(&endpoints, namespace, name).ok();
    let service = match api.get(&services, namespace, name) {
        Ok(service) if service.meta.deleting => return Ok(()),
        Ok(service) => service.parse(),
        // Slices have an owner, and go with it.
        Err(_) => return known.map_or(Ok(()), |known| forget(api, &endpoints, &known)),
    };
    let Some(selector) = backend::selector(&service) else { return Ok(()) };
    let pods = api.selected_pods(namespace, selector);
    let options = WriteOptions::default();

    let slices = find("discovery.k8s.io", "endpointslices")?;
    let there = api.store.list(SLICES, &format!("{namespace}/")).entries;
    let own = |slice: &&Arc<Entry>| {
        let label = label(slice);
        plan::keeps_slice(&label)
            && label(plan::SERVICE_NAME).is_some_and(|of| of == name)
            && !slice.meta.deleting
    };
    let there: Vec<Value> = there.iter().filter(own).map(|slice| slice.parse()).collect();
    for step in plan::steps(plan::slices(&service, &pods), &there) {
        match step {
            Step::Create(mut slice) => {
                slice["metadata"]["generateName"] = format!("{name}-").into();
                drop(api.create(&slices, namespace, slice, &options)?);
            }
            Step::Change(slice, wanted) => {
                let step = |current: &Value| Ok(plan::merged(current, &wanted));
                drop(api.change(&slices, namespace, &slice, Part::Main, &options, None, step)?);
            }
            Step::Delete(slice) => drop(api.delete(&slices, namespace, &slice, &DeleteOptions::default())?),
        }
    }

    let wanted = plan::endpoints(&service, &pods);
    match known {
        None => api.create(&endpoints, namespace, wanted, &options).map(drop),
        Some(known) if plan::is_current(&known.parse(), &wanted) => Ok(()),
        Some(_) => {
            let step = |current: &Value| Ok(plan::merged(current, &wanted));
            api.change(&endpoints, namespace, name, Part::Main, &options, None, step).map(drop)
        }
    }
}

/// Removes the Endpoints of a Service that is gone. Those that a user wrote stay.
fn forget(api: &Api, target: &Target, known: &Entry) -> Result<(), ApiError> {
    if !plan::keeps_endpoints(label(known)) {
        return Ok(());
    }
    let options = DeleteOptions { uid: Some(known.meta.uid.to_string()), ..DeleteOptions::default() };
    api.delete(target, &known.meta.namespace, &known.meta.name, &options).map(drop)
}
