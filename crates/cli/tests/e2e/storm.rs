//! kill -9 of the engine at random points of a storm of creates, execs and deletes, of sandboxes, of Pods with claims of
//! their own, clones and retained volumes among them: nothing is lost, nothing is left.
//!
//! `ASB_STORM_KILLS=100` makes it long. The points and what the clients do follow from a seed, which a test that fails
//! has printed; `ASB_STORM_SEED` takes it again. What the engine was doing at such a point differs from run to run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use crate::engine::{Engine, stdout};
use crate::sandboxes::{Sandboxes, number};

/// So many clients at once.
const CLIENTS: u64 = 4;
/// So many sandboxes has each of them at most.
const MOST: usize = 3;
/// The engine lives no longer than this. A start of it with a dozen sandboxes is over long before.
const LONGEST: Duration = Duration::from_millis(1500);

/// The class of volumes that outlive their claims.
const RETAINED: &str = "retained";
/// How long volumes may take to go after their claims.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a client makes: its name says which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// With a claim from a template.
    Sandbox,
    /// With a claim of its own.
    Pod,
    /// The same, which began as a copy of another.
    Clone,
    /// The same, whose volume stays.
    Retained,
}

impl Kind {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Sandbox, "sandbox"),
        (Self::Pod, "pod"),
        (Self::Clone, "clone"),
        (Self::Retained, "retained"),
    ];

    fn of(name: &str) -> Self {
        let found = Self::ALL.into_iter().find(|(_, suffix)| name.ends_with(suffix));
        found.expect("every name says what it is").0
    }
}

/// One who uses sandboxes and remembers what was acknowledged.
struct Client {
    dice: StdRng,
    name: String,
    next: usize,
    /// Those that are there, with the numbers that were written inside.
    kept: BTreeMap<String, Vec<usize>>,
    /// Created or deleted without an answer: they may be there.
    doubtful: Vec<String>,
    gone: BTreeSet<String>,
    /// Claims with volumes that stay.
    retained: BTreeMap<String, Volume>,
}

/// A volume that outlives its claim, with what was written to it.
#[derive(Default)]
struct Volume {
    name: String,
    numbers: Vec<usize>,
}

impl Client {
    fn new(number: u64, seed: u64) -> Self {
        Self {
            dice: StdRng::seed_from_u64(seed.wrapping_add(number)),
            name: format!("storm-{number}"),
            next: 0,
            kept: BTreeMap::new(),
            doubtful: Vec::new(),
            gone: BTreeSet::new(),
            retained: BTreeMap::new(),
        }
    }

    /// Goes on until the engine is killed. Nothing may fail before.
    async fn work(mut self, sandboxes: Sandboxes, killed: Arc<AtomicBool>) -> Self {
        while !killed.load(Ordering::SeqCst) {
            if let Err(error) = self.step(&sandboxes).await {
                assert!(killed.load(Ordering::SeqCst), "failed with a living engine: {error:?}");
            }
        }
        self
    }

    async fn step(&mut self, sandboxes: &Sandboxes) -> anyhow::Result<()> {
        if let Some(name) = self.doubtful.last().cloned() {
            delete(sandboxes, &name).await?;
            self.doubtful.pop();
            self.gone.insert(name);
            return Ok(());
        }
        self.next += 1;
        let choice = self.dice.random_range(0..10);
        let one = self.dice.random_range(0..MOST);
        let Some(name) = self.kept.keys().nth(one).cloned() else { return self.make(sandboxes).await };
        if choice < 4 {
            // The next step deletes what is in doubt.
            self.kept.remove(&name);
            self.doubtful.push(name);
            return Ok(());
        }
        ready(sandboxes, &name).await?;
        if choice == 4 && Kind::of(&name) == Kind::Sandbox {
            return sandboxes.delete_claim(&name).await;
        }
        let script = format!("echo {} | tee -a /srv/numbers >> /data/numbers; hostname", self.next);
        let printed = sandboxes.run(&name, &script).await?;
        ensure!(printed == format!("{name}\n"), "{name} answered {printed:?}");
        if let Some(volume) = self.retained.get_mut(&name) {
            volume.numbers.push(self.next);
        }
        self.kept.entry(name).or_default().push(self.next);
        Ok(())
    }

    async fn make(&mut self, sandboxes: &Sandboxes) -> anyhow::Result<()> {
        let source = self.kept.iter().find(|(name, _)| Kind::of(name) != Kind::Sandbox);
        let source = source.map(|(name, numbers)| (name.clone(), numbers.clone()));
        let (kind, suffix) = match Kind::ALL[self.dice.random_range(0..Kind::ALL.len())] {
            (Kind::Clone, _) if source.is_none() => Kind::ALL[1],
            other => other,
        };
        let name = format!("{}-{}-{suffix}", self.name, self.next);
        self.doubtful.push(name.clone());
        match kind {
            Kind::Sandbox => sandboxes.create_with_volume(&name).await?,
            Kind::Pod => drop(sandboxes.create_pod(&name, "local", None).await?),
            Kind::Retained => {
                let uid = sandboxes.create_pod(&name, RETAINED, None).await?;
                self.retained
                    .insert(name.clone(), Volume { name: format!("pvc-{uid}"), numbers: Vec::new() });
            }
            Kind::Clone => {
                let (source, numbers) = source.unwrap_or_default();
                sandboxes.pod_ready(&source).await?;
                sandboxes.create_pod(&name, "local", Some(&source)).await?;
                // Its source may go after that.
                sandboxes.pod_ready(&name).await?;
                missing(sandboxes, &name, "/data/numbers", &numbers).await?;
            }
        }
        self.doubtful.pop();
        self.kept.insert(name, Vec::new());
        Ok(())
    }

    /// Everything that was acknowledged is so.
    async fn check(&self, sandboxes: &Sandboxes) -> anyhow::Result<()> {
        for (name, written) in &self.kept {
            ready(sandboxes, name).await?;
            for file in ["/srv/numbers", "/data/numbers"] {
                missing(sandboxes, name, file, written).await?;
            }
        }
        for name in &self.gone {
            gone(sandboxes, name).await?;
        }
        Ok(())
    }
}

async fn ready(sandboxes: &Sandboxes, name: &str) -> anyhow::Result<()> {
    match Kind::of(name) {
        Kind::Sandbox => sandboxes.ready(name).await,
        _ => sandboxes.pod_ready(name).await,
    }
}

async fn delete(sandboxes: &Sandboxes, name: &str) -> anyhow::Result<()> {
    match Kind::of(name) {
        Kind::Sandbox => sandboxes.delete(name).await,
        _ => sandboxes.delete_pod(name).await,
    }
}

async fn gone(sandboxes: &Sandboxes, name: &str) -> anyhow::Result<()> {
    match Kind::of(name) {
        Kind::Sandbox => sandboxes.gone(name).await,
        _ => sandboxes.pod_gone(name).await,
    }
}

/// An error that names the numbers that a file inside does not have.
async fn missing(sandboxes: &Sandboxes, name: &str, file: &str, written: &[usize]) -> anyhow::Result<()> {
    let numbers = sandboxes.run(name, &format!("touch {file}; cat {file}")).await?;
    has_all(&numbers, written).with_context(|| format!("{name} in {file}"))
}

fn has_all(numbers: &str, written: &[usize]) -> anyhow::Result<()> {
    let numbers: BTreeSet<usize> = numbers.lines().filter_map(|line| line.parse().ok()).collect();
    let lost: Vec<_> = written.iter().filter(|number| !numbers.contains(number)).collect();
    ensure!(lost.is_empty(), "lost {lost:?} of {written:?}");
    Ok(())
}

/// What is wrong with the volumes: each belongs to a claim or is retained, and each directory to a volume.
async fn stray(volumes: &Api<PersistentVolume>, sandboxes: &Sandboxes, data_dir: &Path) -> Vec<String> {
    let all = ListParams::default();
    let claims = sandboxes.claims.list(&all).await.unwrap();
    let claims: BTreeSet<_> = claims.iter().filter_map(|claim| claim.metadata.uid.clone()).collect();
    let volumes = volumes.list(&all).await.unwrap();
    let belongs = |volume: &&PersistentVolume| {
        let spec = volume.spec.clone().unwrap_or_default();
        let claim = spec.claim_ref.and_then(|claim| claim.uid);
        claim.is_some_and(|uid| claims.contains(&uid))
            || spec.persistent_volume_reclaim_policy.as_deref() == Some("Retain")
    };
    let mut stray: Vec<_> = volumes.iter().filter(|it| !belongs(it)).map(ResourceExt::name_any).collect();
    let known: BTreeSet<_> = volumes.iter().map(ResourceExt::name_any).collect();
    let found = std::fs::read_dir(data_dir.join("volumes")).unwrap();
    let found = found.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    stray.extend(found.filter(|name| !known.contains(name)).map(|name| format!("volumes/{name}")));
    stray
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_at_random_points_of_a_storm_lose_nothing_and_leave_nothing() {
    let seed = number("ASB_STORM_SEED", rand::random::<u32>() as usize) as u64;
    let kills = number("ASB_STORM_KILLS", 5);
    println!("ASB_STORM_SEED={seed} ASB_STORM_KILLS={kills}");
    let mut dice = StdRng::seed_from_u64(seed);
    let mut engine = Engine::start();
    let class = format!(
        "{{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {{name: {RETAINED}}}, provisioner: asb/local, \
         reclaimPolicy: Retain}}"
    );
    stdout(&engine.kubectl_apply(&class));
    let mut clients: Vec<_> = (1..=CLIENTS).map(|number| Client::new(number, seed)).collect();
    for kill in 1..=kills {
        let sandboxes = Sandboxes::new(&engine.client().await);
        let killed = Arc::new(AtomicBool::new(false));
        let working: Vec<_> = clients
            .drain(..)
            .map(|client| tokio::spawn(client.work(sandboxes.clone(), killed.clone())))
            .collect();
        let life = dice.random_range(Duration::ZERO..LONGEST);
        // Not waiting for a state: the point is to hit any of them.
        tokio::time::sleep(life).await;
        killed.store(true, Ordering::SeqCst);
        engine.kill();
        for client in working {
            clients.push(client.await.expect("a client does not panic"));
        }
        println!("kill {kill} after {life:?}: {}", summary(&clients));
        engine.restart();
    }
    let sandboxes = Sandboxes::new(&engine.client().await);
    for client in &clients {
        client.check(&sandboxes).await.unwrap_or_else(|error| panic!("{error:?}"));
        for name in &client.doubtful {
            delete(&sandboxes, name).await.unwrap();
            gone(&sandboxes, name).await.unwrap();
        }
    }
    let kept: BTreeSet<_> = clients.iter().flat_map(|client| client.kept.keys().cloned()).collect();
    let all = ListParams::default();
    let objects = sandboxes.objects.list(&all).await.unwrap();
    let sandboxes_kept = kept.iter().filter(|name| Kind::of(name) == Kind::Sandbox).cloned().collect();
    assert_eq!(objects.iter().map(ResourceExt::name_any).collect::<BTreeSet<_>>(), sandboxes_kept);
    let pods = sandboxes.pods.list(&all).await.unwrap();
    assert_eq!(pods.iter().map(ResourceExt::name_any).collect::<BTreeSet<_>>(), kept);
    let data_dir = engine.data_dir.path().to_owned();
    let volumes: Api<PersistentVolume> = Api::all(engine.client().await);
    let until = Instant::now() + PATIENCE;
    loop {
        let stray = stray(&volumes, &sandboxes, &data_dir).await;
        if stray.is_empty() {
            break;
        }
        assert!(Instant::now() < until, "volumes that nothing refers to: {stray:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for Volume { name, numbers } in clients.iter().flat_map(|client| client.retained.values()) {
        if !numbers.is_empty() {
            let file = std::fs::read_to_string(data_dir.join("volumes").join(name).join("numbers"));
            has_all(&file.unwrap_or_default(), numbers).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
    for name in kept.iter().filter(|name| Kind::of(name) != Kind::Sandbox) {
        delete(&sandboxes, name).await.unwrap();
    }
    let delete = Patch::Merge(json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}}));
    for volume in volumes.list(&all).await.unwrap() {
        match volumes.patch(&volume.name_any(), &PatchParams::default(), &delete).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            other => drop(other.unwrap()),
        }
    }
    engine.stop(); // which deletes them all and looks for traces
}

fn summary(clients: &[Client]) -> String {
    let count = |of: fn(&Client) -> usize| clients.iter().map(of).sum::<usize>();
    format!(
        "{} there, {} numbers in them, {} deleted, {} in doubt",
        count(|it| it.kept.len()),
        count(|it| it.kept.values().map(Vec::len).sum()),
        count(|it| it.gone.len()),
        count(|it| it.doubtful.len()),
    )
}
