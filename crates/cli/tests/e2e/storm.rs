//! kill -9 of the engine at random points of a storm of creates, execs and deletes, of sandboxes and of the claims that
//! they use: nothing is lost, nothing is left.
//!
//! `ASB_STORM_KILLS=100` makes it long. The points and what the clients do follow from a seed, which a test that fails
//! has printed; `ASB_STORM_SEED` takes it again. What the engine was doing at such a point differs from run to run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::ensure;
use kube::ResourceExt;
use kube::api::ListParams;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::engine::Engine;
use crate::sandboxes::{Sandboxes, number};

/// So many clients at once.
const CLIENTS: u64 = 4;
/// So many sandboxes has each of them at most.
const MOST: usize = 3;
/// The engine lives no longer than this. A start of it with a dozen sandboxes is over long before.
const LONGEST: Duration = Duration::from_millis(1500);

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
            sandboxes.delete(&name).await?;
            self.doubtful.pop();
            self.gone.insert(name);
            return Ok(());
        }
        self.next += 1;
        let choice = self.dice.random_range(0..10);
        let one = self.dice.random_range(0..MOST);
        let Some(name) = self.kept.keys().nth(one).cloned() else {
            let name = format!("{}-{}", self.name, self.next);
            self.doubtful.push(name.clone());
            sandboxes.create_with_volume(&name).await?;
            self.doubtful.pop();
            self.kept.insert(name, Vec::new());
            return Ok(());
        };
        if choice < 4 {
            // The next step deletes what is in doubt.
            self.kept.remove(&name);
            self.doubtful.push(name);
            return Ok(());
        }
        sandboxes.ready(&name).await?;
        if choice == 4 {
            return sandboxes.delete_claim(&name).await;
        }
        let script = format!("echo {} | tee -a /srv/numbers >> /data/numbers; hostname", self.next);
        let printed = sandboxes.run(&name, &script).await?;
        ensure!(printed == format!("{name}\n"), "{name} answered {printed:?}");
        self.kept.entry(name).or_default().push(self.next);
        Ok(())
    }

    /// Everything that was acknowledged is so.
    async fn check(&self, sandboxes: &Sandboxes) -> anyhow::Result<()> {
        for (name, written) in &self.kept {
            sandboxes.ready(name).await?;
            for file in ["/srv/numbers", "/data/numbers"] {
                let numbers = sandboxes.run(name, &format!("touch {file}; cat {file}")).await?;
                let numbers: BTreeSet<usize> = numbers.lines().filter_map(|line| line.parse().ok()).collect();
                let lost: Vec<_> = written.iter().filter(|number| !numbers.contains(number)).collect();
                ensure!(lost.is_empty(), "{name} has lost {lost:?} of {written:?} in {file}");
            }
        }
        for name in &self.gone {
            sandboxes.gone(name).await?;
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_at_random_points_of_a_storm_lose_nothing_and_leave_nothing() {
    let seed = number("ASB_STORM_SEED", rand::random::<u32>() as usize) as u64;
    let kills = number("ASB_STORM_KILLS", 5);
    println!("ASB_STORM_SEED={seed} ASB_STORM_KILLS={kills}");
    let mut dice = StdRng::seed_from_u64(seed);
    let mut engine = Engine::start();
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
            sandboxes.delete(name).await.unwrap();
            sandboxes.gone(name).await.unwrap();
        }
    }
    let kept: BTreeSet<_> = clients.iter().flat_map(|client| client.kept.keys().cloned()).collect();
    let all = ListParams::default();
    let objects = sandboxes.objects.list(&all).await.unwrap();
    assert_eq!(objects.iter().map(ResourceExt::name_any).collect::<BTreeSet<_>>(), kept);
    let pods = sandboxes.pods.list(&all).await.unwrap();
    assert_eq!(pods.iter().map(ResourceExt::name_any).collect::<BTreeSet<_>>(), kept);
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
