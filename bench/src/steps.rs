//! What can be seen of a start from outside: objects by watches, files of the sandbox by inotify.
//!
//! One sample is taken at a time, so everything that is seen meanwhile belongs to it.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use asb_types::{Sandbox, condition};
use futures::StreamExt;
use inotify::{EventMask, Inotify, WatchMask};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, ResourceExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::engine::Engine;

/// The longest that a step may take.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    PodThere,
    /// Its container runs or has ended.
    PodStarted,
    PodGone,
    SandboxReady,
    /// A slot was taken: its directory has become the sandbox's.
    Directory,
    /// A file of that name is there and complete.
    File(String),
}

#[derive(Debug, Clone)]
pub struct Step {
    pub at: Instant,
    pub seen: Seen,
    /// Of the object; empty for files.
    pub name: String,
}

/// Watches that stand for the whole run, so that opening them is in no sample.
pub struct Steps {
    receiver: mpsc::UnboundedReceiver<Step>,
    log: Vec<Step>,
    _tasks: JoinSet<()>,
}

impl Steps {
    pub async fn watch(engine: &Engine) -> anyhow::Result<Self> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(pods(engine.pods(), sender.clone()));
        tasks.spawn(sandboxes(engine.sandboxes(), sender.clone()));
        let inotify = Inotify::init().context("failed to use inotify")?;
        let places = engine.sandboxes_dir().join("sandbox");
        inotify
            .watches()
            .add(&places, WatchMask::MOVED_TO | WatchMask::ONLYDIR)
            .context("failed to watch sandboxes")?;
        tasks.spawn(async move {
            let _ = files(inotify, places.as_path(), sender).await;
        });
        Ok(Self { receiver, log: Vec::new(), _tasks: tasks })
    }

    /// Forgets what was seen before.
    pub fn begin(&mut self) {
        while self.receiver.try_recv().is_ok() {}
        self.log.clear();
    }

    /// Waits until something was seen of an object; answers with when that was.
    pub async fn wait(&mut self, name: &str, seen: Seen) -> anyhow::Result<Instant> {
        let found =
            |log: &[Step]| log.iter().find(|step| step.name == name && step.seen == seen).map(|step| step.at);
        let wait = async {
            loop {
                if let Some(at) = found(&self.log) {
                    return Some(at);
                }
                self.log.push(self.receiver.recv().await?);
            }
        };
        let waited = tokio::time::timeout(PATIENCE, wait).await;
        waited.ok().flatten().with_context(|| format!("never saw {seen:?} of {name}"))
    }

    /// When something was first seen since [`Steps::begin`].
    pub fn first(&mut self, seen: &Seen) -> Option<Instant> {
        while let Ok(step) = self.receiver.try_recv() {
            self.log.push(step);
        }
        self.log.iter().find(|step| step.seen == *seen).map(|step| step.at)
    }
}

async fn pods(api: Api<Pod>, sender: mpsc::UnboundedSender<Step>) {
    let mut events = watcher(api, watcher::Config::default()).boxed();
    while let Some(event) = events.next().await {
        let at = Instant::now();
        let (pod, gone) = match event {
            Ok(watcher::Event::Apply(pod)) => (pod, false),
            Ok(watcher::Event::Delete(pod)) => (pod, true),
            _ => continue,
        };
        let send = |seen| _ = sender.send(Step { at, seen, name: pod.name_any() });
        match gone {
            true => send(Seen::PodGone),
            false => send(Seen::PodThere),
        }
        if started(&pod) {
            send(Seen::PodStarted);
        }
    }
}

fn started(pod: &Pod) -> bool {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let mut states = statuses.filter_map(|status| status.state.as_ref());
    states.any(|state| state.running.is_some() || state.terminated.is_some())
}

async fn sandboxes(api: Api<Sandbox>, sender: mpsc::UnboundedSender<Step>) {
    let mut events = watcher(api, watcher::Config::default()).boxed();
    while let Some(event) = events.next().await {
        let at = Instant::now();
        let Ok(watcher::Event::Apply(sandbox)) = event else { continue };
        let conditions = sandbox.status.as_ref().map_or(&[][..], |status| &status.conditions);
        if condition::get(conditions, condition::READY).is_some_and(|ready| ready.status == "True") {
            let _ = sender.send(Step { at, seen: Seen::SandboxReady, name: sandbox.name_any() });
        }
    }
}

/// A sandbox's files appear by being closed after writing, or by being renamed into place.
async fn files(inotify: Inotify, places: &Path, sender: mpsc::UnboundedSender<Step>) -> anyhow::Result<()> {
    let mut watches = inotify.watches();
    let mut sandboxes = HashSet::new();
    let mut events = inotify.into_event_stream([0; 4096])?;
    while let Some(event) = events.next().await {
        let (at, event) = (Instant::now(), event?);
        let Some(name) = event.name else { continue };
        let seen = match sandboxes.contains(&event.wd) {
            true => Seen::File(name.to_string_lossy().into_owned()),
            false if event.mask.contains(EventMask::ISDIR) => {
                let mask = WatchMask::CLOSE_WRITE | WatchMask::MOVED_TO | WatchMask::ONLYDIR;
                // It may be gone already; then nothing of it was to be seen.
                if let Ok(watch) = watches.add(places.join(&name), mask) {
                    sandboxes.insert(watch);
                }
                Seen::Directory
            }
            false => continue,
        };
        if sender.send(Step { at, seen, name: String::new() }).is_err() {
            break;
        }
    }
    Ok(())
}
