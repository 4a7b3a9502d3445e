//! `claims`: how soon a claim on a warm pool is Ready: one by one, many at once, at a steady rate, and with many other
//! Sandboxes around. Nodes are pretended, so that only the control plane is measured.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::Context;
use asb_testing::kubelet::{self, Scheduler};
use asb_types::{Claim, Sandbox, Template, WarmPool, condition};
use futures::{StreamExt, TryStreamExt, stream};
use kube::api::{DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::args::Args;
use crate::controllers::Controllers;
use crate::engine::NAMESPACE;
use crate::front::Front;
use crate::report::Report;
use crate::stats::{Samples, milliseconds};
use crate::table::{Table, number};
use crate::target::Target;
use crate::workload;

/// Claims that are created at the same time.
const IN_FLIGHT: usize = 64;
/// The longest that anything here may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// How much is measured.
pub struct Plan {
    pub burst: usize,
    pub rates: Vec<u32>,
    pub seconds: u32,
    pub fleets: Vec<usize>,
    pub rounds: usize,
}

pub async fn run(args: &Args, plan: Plan, kubernetes: bool) -> anyhow::Result<()> {
    let mut report = Report::new("claims", args.json.as_deref());
    let done = tokio::select! {
        done = measure(args, &plan, kubernetes, &mut report) => done,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    };
    done?;
    report.save()
}

async fn measure(args: &Args, plan: &Plan, kubernetes: bool, report: &mut Report) -> anyhow::Result<()> {
    let target = Target::with_node().await?;
    let fleet =
        Fleet::start(&target, Controllers::in_process(target.controller_client()), plan.burst).await?;
    let found = fleet.all(plan, args.pause()).await;
    let curve = fleet.curve(plan, args.pause()).await;
    drop(fleet);
    target.close().await?;
    report.put("ours", found?);
    report.put("curve", curve?);
    if kubernetes {
        let target = Target::kubernetes().await?;
        let controllers = Controllers::process(args, &target)?;
        let fleet = Fleet::start(&target, controllers, plan.burst).await?;
        let found = fleet.all(plan, args.pause()).await;
        drop(fleet);
        target.close().await?;
        report.put("kubernetes", found?);
    }
    Ok(())
}

/// A pool with its controllers and nodes on one API server.
struct Fleet {
    name: &'static str,
    client: Client,
    controllers: Controllers,
    size: usize,
    front: Front,
    ready: tokio::sync::Mutex<mpsc::UnboundedReceiver<Ready>>,
    _tasks: JoinSet<anyhow::Result<()>>,
}

/// A claim that is Ready, as a client with a watch learns it.
struct Ready {
    claim: String,
    sandbox: String,
    at: Instant,
}

/// The Sandbox of a claim, and how long the claim took.
struct Bound {
    sandbox: String,
    took: Duration,
}

impl Fleet {
    async fn start(target: &Target, controllers: Controllers, size: usize) -> anyhow::Result<Self> {
        let client = target.client.clone();
        let mut tasks = JoinSet::new();
        let nodes = kubelet::run(client.clone(), NAMESPACE.to_owned(), Scheduler::Nobody);
        tasks.spawn(async move {
            nodes.await;
            Ok(())
        });
        let (sender, ready) = mpsc::unbounded_channel();
        tasks.spawn(tell_ready(client.clone(), sender));
        create::<Template>(&client, template()).await?;
        create::<WarmPool>(&client, pool(size)).await?;
        let front = Front::open(client.clone()).await?;
        let fleet = Self {
            name: target.name,
            client,
            controllers,
            size,
            front,
            ready: tokio::sync::Mutex::new(ready),
            _tasks: tasks,
        };
        fleet.filled().await?;
        Ok(fleet)
    }

    async fn all(&self, plan: &Plan, pause: Duration) -> anyhow::Result<Value> {
        println!("{}: pool of {}", self.name, self.size);
        let mut table = Table::new([
            "warm claim → Ready",
            "n",
            "p50 ms",
            "p90 ms",
            "p99 ms",
            "all s",
            "claims/s",
            "cpu s",
            "RSS MB",
        ]);
        let mut results = Vec::new();
        let mut row = |what: String, run: Run| {
            let at = |percent| number(run.samples.percentile(percent).map(milliseconds));
            let rate = run.samples.count() as f64 / run.took.as_secs_f64();
            table.row([
                what.clone(),
                run.samples.count().to_string(),
                at(50),
                at(90),
                at(99),
                number(Some(run.took.as_secs_f64())),
                number(Some(rate)),
                number(run.cpu.map(|cpu| cpu.as_secs_f64())),
                number(run.rss.map(|kilobytes| kilobytes as f64 / 1024.0)),
            ]);
            results.push(json!({
                "what": what, "latency": run.samples.json(), "seconds": run.took.as_secs_f64(),
                "cpuSeconds": run.cpu.map(|cpu| cpu.as_secs_f64()), "rssKilobytes": run.rss,
            }));
        };
        row("one by one".to_owned(), self.one_by_one("single", plan.rounds, pause).await?);
        row("→ answer through the router".to_owned(), self.first_answers(plan.rounds, pause).await?);
        row(format!("{} at once", plan.burst), self.burst(plan.burst).await?);
        for rate in &plan.rates {
            row(format!("{rate}/s for {} s", plan.seconds), self.steady(*rate, plan.seconds).await?);
        }
        println!("{table}");
        Ok(json!(results))
    }

    /// Cost of a claim as the number of other Sandboxes grows.
    async fn curve(&self, plan: &Plan, pause: Duration) -> anyhow::Result<Value> {
        let mut table =
            Table::new(["other Sandboxes", "p50 ms", "p99 ms", "cpu ms/claim, all parts", "RSS MB"]);
        let (mut made, mut points) = (0, Vec::new());
        for fleet in &plan.fleets {
            let missing = fleet.saturating_sub(made);
            let sandboxes: Api<Sandbox> = Api::namespaced(self.client.clone(), NAMESPACE);
            stream::iter(made..made + missing)
                .map(anyhow::Ok)
                .try_for_each_concurrent(IN_FLIGHT, |number| {
                    let sandboxes = sandboxes.clone();
                    async move {
                        let sandbox = workload::suspended_sandbox(&format!("other-{number}"))?;
                        sandboxes.create(&PostParams::default(), &sandbox).await?;
                        Ok(())
                    }
                })
                .await?;
            made += missing;
            settled(&sandboxes).await?;
            let run = self.one_by_one(&format!("fleet-{fleet}"), plan.rounds, pause).await?;
            let at = |percent| run.samples.percentile(percent).map(milliseconds);
            let each = run.cpu.map(|cpu| milliseconds(cpu) / run.samples.count() as f64);
            let rss = run.rss.map(|kilobytes| kilobytes as f64 / 1024.0);
            table.row([fleet.to_string(), number(at(50)), number(at(99)), number(each), number(rss)]);
            points.push(
                json!({"sandboxes": fleet, "latency": run.samples.json(), "cpuMillisecondsPerClaim": each}),
            );
        }
        println!("{table}");
        Ok(json!(points))
    }

    async fn one_by_one(&self, prefix: &str, rounds: usize, pause: Duration) -> anyhow::Result<Run> {
        self.in_turn(prefix, rounds, pause, async |bound| Ok(bound.took)).await
    }

    /// From the claim to what its sandbox answers, on a connection to the router that is open already.
    async fn first_answers(&self, rounds: usize, pause: Duration) -> anyhow::Result<Run> {
        let answered = async |bound: Bound| {
            let asked = Instant::now();
            self.front.ask(&bound.sandbox).await?;
            Ok(bound.took + asked.elapsed())
        };
        self.in_turn("answer", rounds, pause, answered).await
    }

    /// Claims one after the other; `sample` says what is measured of one that is Ready.
    async fn in_turn(
        &self,
        prefix: &str,
        rounds: usize,
        pause: Duration,
        sample: impl AsyncFn(Bound) -> anyhow::Result<Duration>,
    ) -> anyhow::Result<Run> {
        let meter = self.controllers.meter()?;
        let (mut samples, mut took) = (Samples::default(), Duration::ZERO);
        for round in 0..rounds {
            tokio::time::sleep(pause).await;
            let name = format!("{prefix}-{round}");
            let begun = Instant::now();
            self.claim(&name).await?;
            for bound in self.wait(HashMap::from([(name.clone(), begun)])).await? {
                samples.push(sample(bound).await?);
            }
            took += begun.elapsed();
            self.release(&name).await?;
        }
        let (cpu, rss) = meter.read()?;
        self.filled().await?;
        Ok(Run { samples, took, cpu, rss })
    }

    async fn burst(&self, count: usize) -> anyhow::Result<Run> {
        let meter = self.controllers.meter()?;
        let names: Vec<_> = (0..count).map(|number| format!("burst-{number}")).collect();
        let begun = Instant::now();
        let created =
            stream::iter(&names).map(anyhow::Ok).try_for_each_concurrent(IN_FLIGHT, |name| self.claim(name));
        let waiting = self.wait(names.iter().map(|name| (name.clone(), begun)).collect());
        let ((), taken) = tokio::try_join!(created, waiting)?;
        let took = begun.elapsed();
        let (cpu, rss) = meter.read()?;
        self.release_all(&names).await?;
        Ok(Run::of(taken, took, cpu, rss))
    }

    async fn steady(&self, rate: u32, seconds: u32) -> anyhow::Result<Run> {
        let meter = self.controllers.meter()?;
        let names: Vec<_> = (0..rate * seconds).map(|number| format!("rate-{rate}-{number}")).collect();
        let begun = Instant::now();
        let due =
            |number: usize| begun + Duration::from_secs(1) * u32::try_from(number).unwrap_or(u32::MAX) / rate;
        let created = stream::iter(names.iter().enumerate()).map(anyhow::Ok).try_for_each_concurrent(
            IN_FLIGHT,
            |(number, name)| async move {
                tokio::time::sleep_until(due(number).into()).await;
                self.claim(name).await
            },
        );
        let waiting =
            self.wait(names.iter().enumerate().map(|(number, name)| (name.clone(), due(number))).collect());
        let ((), taken) = tokio::try_join!(created, waiting)?;
        let took = begun.elapsed();
        let (cpu, rss) = meter.read()?;
        self.release_all(&names).await?;
        Ok(Run::of(taken, took, cpu, rss))
    }

    async fn claim(&self, name: &str) -> anyhow::Result<()> {
        let claim = json!({"metadata": {"name": name}, "spec": {"warmPoolRef": {"name": "pool"}}});
        create::<Claim>(&self.client, claim).await
    }

    /// Waits until all these claims are Ready.
    async fn wait(&self, mut begun: HashMap<String, Instant>) -> anyhow::Result<Vec<Bound>> {
        let mut ready = self.ready.lock().await;
        let mut taken = Vec::new();
        let all = async {
            while !begun.is_empty() {
                let Ready { claim, sandbox, at } = ready.recv().await.context("the watch on claims ended")?;
                let took = begun.remove(&claim).map(|begun| at.saturating_duration_since(begun));
                taken.extend(took.map(|took| Bound { sandbox, took }));
            }
            anyhow::Ok(())
        };
        let waited = tokio::time::timeout(PATIENCE, all).await;
        waited.with_context(|| format!("{} claims are not Ready", begun.len()))??;
        Ok(taken)
    }

    async fn release(&self, name: &str) -> anyhow::Result<()> {
        let claims: Api<Claim> = Api::namespaced(self.client.clone(), NAMESPACE);
        claims.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    async fn release_all(&self, names: &[String]) -> anyhow::Result<()> {
        stream::iter(names)
            .map(anyhow::Ok)
            .try_for_each_concurrent(IN_FLIGHT, |name| self.release(name))
            .await?;
        let sandboxes: Api<Sandbox> = Api::namespaced(self.client.clone(), NAMESPACE);
        let taken = ListParams::default().labels(asb_types::key::CLAIM_UID);
        while !sandboxes.list_metadata(&taken).await?.items.is_empty() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        self.filled().await
    }

    /// Waits until the pool has all its members again.
    async fn filled(&self) -> anyhow::Result<()> {
        let sandboxes: Api<Sandbox> = Api::namespaced(self.client.clone(), NAMESPACE);
        let members = ListParams::default().labels(asb_types::key::WARM_POOL_SANDBOX);
        let begun = Instant::now();
        loop {
            let ready = sandboxes.list(&members).await?.items.into_iter().filter(is_ready_sandbox).count();
            if ready == self.size {
                return Ok(());
            }
            anyhow::ensure!(
                begun.elapsed() < PATIENCE,
                "{ready} of {} members of the pool are Ready",
                self.size
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// What one way of claiming gave.
struct Run {
    samples: Samples,
    took: Duration,
    cpu: Option<Duration>,
    rss: Option<u64>,
}

impl Run {
    fn of(taken: Vec<Bound>, took: Duration, cpu: Option<Duration>, rss: Option<u64>) -> Self {
        let mut samples = Samples::default();
        taken.iter().for_each(|bound| samples.push(bound.took));
        Self { samples, took, cpu, rss }
    }
}

/// Tells when claims are Ready, as a client with a watch learns it.
async fn tell_ready(client: Client, ready: mpsc::UnboundedSender<Ready>) -> anyhow::Result<()> {
    let api: Api<Claim> = Api::namespaced(client, NAMESPACE);
    let mut revision = "0".to_owned();
    loop {
        let mut events = api.watch(&WatchParams::default(), &revision).await?.boxed();
        while let Some(event) = events.try_next().await? {
            if let WatchEvent::Added(claim) | WatchEvent::Modified(claim) = event {
                let at = Instant::now();
                revision = claim.resource_version().unwrap_or_default();
                let Some(status) = &claim.status else { continue };
                if is_ready(Some(&status.conditions)) {
                    let sandbox =
                        status.sandbox.as_ref().map(|sandbox| sandbox.name.clone()).unwrap_or_default();
                    ready.send(Ready { claim: claim.name_any(), sandbox, at })?;
                }
            }
        }
    }
}

fn is_ready(conditions: Option<&[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition]>) -> bool {
    condition::get(conditions.unwrap_or_default(), condition::READY)
        .is_some_and(|ready| ready.status == "True")
}

/// Waits until the controllers have said something about every Sandbox: what they still do for new ones is not a claim's.
async fn settled(sandboxes: &Api<Sandbox>) -> anyhow::Result<()> {
    let all = async {
        loop {
            let found = sandboxes.list(&ListParams::default()).await?;
            if found.items.iter().all(|sandbox| sandbox.status.is_some()) {
                return anyhow::Ok(());
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    tokio::time::timeout(PATIENCE, all).await.context("some Sandboxes have no status")?
}

fn is_ready_sandbox(sandbox: &Sandbox) -> bool {
    is_ready(sandbox.status.as_ref().map(|status| &status.conditions[..]))
}

async fn create<K: asb_testing::Kind>(client: &Client, object: Value) -> anyhow::Result<()> {
    let object: K = serde_json::from_value(object)?;
    let api: Api<K> = Api::namespaced(client.clone(), NAMESPACE);
    api.create(&PostParams::default(), &object).await?;
    Ok(())
}

fn template() -> Value {
    json!({
        "metadata": {"name": "bench"},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "host"}]}}},
    })
}

fn pool(size: usize) -> Value {
    json!({"metadata": {"name": "pool"}, "spec": {"replicas": size, "sandboxTemplateRef": {"name": "bench"}}})
}
