//! Where stories are played: one namespace whose Pods and events are watched, and what is done to them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::TryStreamExt;
use k8s_openapi::api::core::v1::{Event, Namespace, Pod, ServiceAccount};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::record::Expected;
use super::seen::{Seen, lines};
use super::story::{Action, Story};

/// Where Pods are.
const NAMESPACE: &str = "stories";
/// The longest that one state of a story may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);
/// How long what is compared may take to come, once its story is at the end: events are written late.
const COMING: Duration = Duration::from_secs(20);
/// How long what was seen must have been the same before it is recorded.
const SETTLED: Duration = Duration::from_secs(5);
/// Stories that are played at the same time.
const AT_ONCE: usize = 32;

pub struct Stage<'a, K> {
    client: Client,
    kubectl: &'a K,
    seen: All,
    /// Changes whenever something was seen.
    news: watch::Sender<u64>,
    places: Semaphore,
    _watches: JoinSet<()>,
}

/// What became of a story: its lines, or why it could not be played to its end.
pub type Played = Result<Vec<String>, String>;

impl<'a, K: Fn() -> Command> Stage<'a, K> {
    pub async fn new(client: Client, kubectl: &'a K) -> Self {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let namespace =
            serde_json::from_value(json!({"metadata": {"name": NAMESPACE}})).expect("a namespace");
        namespaces.create(&PostParams::default(), &namespace).await.expect("the namespace can be made");
        // No Pod is admitted on a cluster before it is there; a controller may have made it by now.
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
        let account = serde_json::from_value(json!({"metadata": {"name": "default"}})).expect("an account");
        match accounts.create(&PostParams::default(), &account).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            made => drop(made.expect("the account can be made")),
        }
        let seen = All::default();
        let news = watch::Sender::new(0);
        let mut watches = JoinSet::new();
        watches.spawn(watch_pods(
            Api::namespaced(client.clone(), NAMESPACE),
            Arc::clone(&seen),
            news.clone(),
        ));
        watches.spawn(watch_events(
            Api::namespaced(client.clone(), NAMESPACE),
            Arc::clone(&seen),
            news.clone(),
        ));
        Self { client, kubectl, seen, news, places: Semaphore::new(AT_ONCE), _watches: watches }
    }

    /// Plays a story until what was seen is what is expected; without that, until it has settled.
    pub async fn play(&self, story: &Story, expected: Option<Expected>) -> Played {
        let _place = self.places.acquire().await.expect("nobody closes it");
        for object in &story.objects {
            self.create(object.clone()).await?;
        }
        self.create(story.manifest()).await?;
        for step in &story.steps {
            self.wait(story, &step.after).await?;
            self.act(&story.name, &step.action)
                .await
                .map_err(|error| format!("{:?}: {error}", step.action))?;
        }
        self.wait(story, &story.until).await?;
        let lines = match expected {
            Some(expected) => self.seen_as(&story.name, COMING, |lines| expected.is_met_by(lines)).await,
            None => self.settled(story).await,
        };
        self.delete(&story.name, Some(0)).await.map_err(|error| error.to_string())?;
        Ok(lines)
    }

    /// Removes what is left.
    pub async fn clear(&self) {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        pods.delete_collection(&DeleteParams::default().grace_period(0), &Default::default())
            .await
            .expect("Pods can be deleted");
        let mut news = self.news.subscribe();
        let until = Instant::now() + PATIENCE;
        while self.locked().values().any(|seen| seen.pod.is_some() && !seen.gone) {
            timeout_at(until, news.changed()).await.expect("the Pods go").expect("the watch lives as long");
        }
    }

    async fn create(&self, mut object: Value) -> Result<(), String> {
        object["metadata"]["namespace"] = NAMESPACE.into();
        let object: DynamicObject = serde_json::from_value(object).map_err(|error| error.to_string())?;
        let kind = object.types.as_ref().map_or("", |it| it.kind.as_str()).to_owned();
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", &kind));
        let objects: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), NAMESPACE, &resource);
        let created = objects.create(&PostParams::default(), &object).await;
        created.map(|_| ()).map_err(|error| format!("{kind} {}: {error}", object.name_any()))
    }

    async fn act(&self, name: &str, action: &Action) -> Result<(), String> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        match action {
            Action::Exec(script) => {
                // Whatever becomes of it: it may end with the container.
                let arguments =
                    ["exec", "--namespace", NAMESPACE, name, "-c", "main", "--", "sh", "-c", script];
                let run = (self.kubectl)().args(arguments).output().await;
                run.map(|_| ()).map_err(|error| error.to_string())
            }
            Action::Delete(grace) => self.delete(name, *grace).await.map_err(|error| error.to_string()),
            Action::Image(image) => {
                let patch = json!({"spec": {"containers": [{"name": "main", "image": image}]}});
                let patched = pods.patch(name, &PatchParams::default(), &Patch::Strategic(patch)).await;
                patched.map(|_| ()).map_err(|error| error.to_string())
            }
            Action::Create(object) => self.create(object.clone()).await,
        }
    }

    async fn delete(&self, name: &str, grace: Option<u32>) -> kube::Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let how = DeleteParams { grace_period_seconds: grace, ..DeleteParams::default() };
        match pods.delete(name, &how).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// Waits until these lines are there.
    async fn wait(&self, story: &Story, wanted: &[String]) -> Result<(), String> {
        let lines = self.seen_as(&story.name, PATIENCE, |lines| missing(wanted, lines).is_empty()).await;
        let missing = missing(wanted, &lines);
        if missing.is_empty() { Ok(()) } else { Err(format!("never came: {missing:#?} in {lines:#?}")) }
    }

    /// What is seen as soon as it is like this, else what is seen in the end.
    async fn seen_as(&self, name: &str, within: Duration, like: impl Fn(&[String]) -> bool) -> Vec<String> {
        let mut news = self.news.subscribe();
        let until = Instant::now() + within;
        loop {
            let lines = self.lines(name);
            if like(&lines) || timeout_at(until, news.changed()).await.is_err() {
                return lines;
            }
        }
    }

    /// The last that is seen of the state in which the story is compared. It may pass: what backs off starts again.
    async fn settled(&self, story: &Story) -> Vec<String> {
        let mut news = self.news.subscribe();
        let (mut known, mut since) = (self.lines(&story.name), Instant::now());
        while since.elapsed() < SETTLED {
            let _ = timeout_at(since + SETTLED, news.changed()).await;
            let lines = self.lines(&story.name);
            if lines != known && missing(&story.until, &lines).is_empty() {
                (known, since) = (lines, Instant::now());
            }
        }
        known
    }

    fn lines(&self, name: &str) -> Vec<String> {
        self.locked().get(name).map(lines).unwrap_or_default()
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<String, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which of the wanted lines are not there, not even as the beginning of one.
fn missing<'a>(wanted: &'a [String], lines: &[String]) -> Vec<&'a String> {
    wanted.iter().filter(|wanted| !lines.iter().any(|line| line.starts_with(wanted.as_str()))).collect()
}

type All = Arc<Mutex<BTreeMap<String, Seen>>>;

fn note(all: &All, news: &watch::Sender<u64>, name: &str, change: impl FnOnce(&mut Seen)) {
    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
    change(all.entry(name.to_owned()).or_default());
    drop(all);
    news.send_modify(|count| *count += 1);
}

async fn watch_pods(pods: Api<Pod>, all: All, news: watch::Sender<u64>) {
    let seen = watcher::watcher(pods, watcher::Config::default()).try_for_each(|event| async {
        match event {
            watcher::Event::Apply(pod) | watcher::Event::InitApply(pod) => {
                note(&all, &news, &pod.name_any(), |seen| seen.pod = Some(pod.clone()));
            }
            watcher::Event::Delete(pod) => note(&all, &news, &pod.name_any(), |seen| {
                (seen.pod, seen.gone) = (Some(pod.clone()), true);
            }),
            watcher::Event::Init | watcher::Event::InitDone => {}
        }
        Ok(())
    });
    seen.await.expect("Pods can be watched");
}

async fn watch_events(events: Api<Event>, all: All, news: watch::Sender<u64>) {
    let seen = watcher::watcher(events, watcher::Config::default()).try_for_each(|event| async {
        if let watcher::Event::Apply(event) | watcher::Event::InitApply(event) = event {
            let about = event.involved_object.name.clone().unwrap_or_default();
            note(&all, &news, &about, |seen| seen.events.push(event));
        }
        Ok(())
    });
    seen.await.expect("events can be watched");
}
