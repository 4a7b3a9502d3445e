//! `start`: from an object to the first output byte, against the programs people use today.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

use crate::args::Args;
use crate::engine::{self, Engine};
use crate::peer::{self, COMMAND, Peer};
use crate::report::Report;
use crate::router::Router;
use crate::stats::{Samples, milliseconds};
use crate::steps::{Seen, Steps};
use crate::stopwatch::Stopwatch;
use crate::table::{Table, number, ratio};
use crate::workload;

const SANDBOX_LOG: &str = "Sandbox → log";
const POD_LOG: &str = "Pod → log";
const SANDBOX_EXEC: &str = "Sandbox → Ready → exec";
const ASB_RUN: &str = "`asb run`, whole program";
const OURS: [&str; 4] = [SANDBOX_LOG, POD_LOG, SANDBOX_EXEC, ASB_RUN];

const EXEC: &str = "exec over the API, new TLS connection";
const LOCAL_EXEC: &str = "exec over the API, local socket";
const FIRST_RUN: &str = "first run through the router, which starts sandboxd";
const RUN: &str = "run through the router, connection open";
const ASB_EXEC: &str = "`asb exec`, whole program";
const DELETE_RUNNING: &str = "DELETE Sandbox → Pod gone, running";
const DELETE_ENDED: &str = "DELETE Sandbox → Pod gone, ended";

const READY: &str = "Sandbox Ready seen by a watcher";

/// Samples by name, in the order in which the names first came.
#[derive(Default)]
struct Results(Vec<(String, Samples)>);

impl Results {
    fn push(&mut self, name: &str, sample: Duration) {
        let at = self.0.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
            self.0.push((name.to_owned(), Samples::default()));
            self.0.len() - 1
        });
        self.0[at].1.push(sample);
    }

    fn get(&self, name: &str) -> Samples {
        self.0.iter().find(|(known, _)| known == name).map(|(_, samples)| samples.clone()).unwrap_or_default()
    }

    fn json(&self) -> Value {
        self.0
            .iter()
            .map(|(name, samples)| (name.clone(), samples.json()))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }
}

/// Everything one run needs.
struct Run<'a> {
    engine: &'a Engine,
    asb: PathBuf,
    pause: Duration,
    peers: Vec<Peer>,
    stopwatch: Stopwatch,
    router: Router,
    steps: Steps,
    starts: Results,
    others: Results,
    /// Since the POST was sent.
    timeline: Results,
    count: usize,
}

pub async fn run(args: &Args, rounds: usize) -> anyhow::Result<()> {
    let asb = args.asb()?;
    let bundles = engine::directory()?;
    let (peers, missing) = peer::find(bundles.path())?;
    let names: Vec<_> = peers.iter().map(|peer| peer.name).collect();
    let mut report = Report::new("start", args.json.as_deref());
    let (starts, others, timeline) = Engine::with(&asb, async |engine| {
        let steps = Steps::watch(engine).await?;
        let mut run = Run {
            engine,
            asb: asb.clone(),
            pause: args.pause(),
            peers,
            stopwatch: Stopwatch::start()?,
            router: Router::connect(engine).await?,
            steps,
            starts: Results::default(),
            others: Results::default(),
            timeline: Results::default(),
            count: 0,
        };
        for round in 0..rounds {
            run.round(round).await?;
        }
        Ok((run.starts, run.others, run.timeline))
    })
    .await?;
    show(&names, &missing, &starts, &others, &timeline);
    report.put("starts", starts.json());
    report.put("others", others.json());
    report.put("timeline", timeline.json());
    report.put("notInstalled", json!(missing));
    report.save()
}

impl Run<'_> {
    /// One sample of everything, in another order each time, so that nobody always follows the same neighbour.
    async fn round(&mut self, round: usize) -> anyhow::Result<()> {
        let contenders = self.peers.len() + OURS.len();
        for at in 0..contenders {
            match (at + round) % contenders {
                0 => self.sandbox_to_log().await?,
                1 => self.pod_to_log().await?,
                2 => self.sandbox_to_exec().await?,
                3 => self.asb_run().await?,
                peer => self.peer(peer - OURS.len()).await?,
            }
        }
        Ok(())
    }

    async fn peer(&mut self, at: usize) -> anyhow::Result<()> {
        self.rest().await;
        let id = self.name("peer");
        let peer = &self.peers[at];
        let timing = tokio::task::block_in_place(|| self.stopwatch.time(&peer.argv(&id)))?;
        self.starts.push(peer.name, timing.first_byte);
        Ok(())
    }

    async fn asb_run(&mut self) -> anyhow::Result<()> {
        let name = self.name("run");
        let argv = self.asb(&["run", "--name", &name, "--"]);
        self.rest().await;
        let timing = tokio::task::block_in_place(|| self.stopwatch.time(&argv))?;
        self.starts.push(ASB_RUN, timing.first_byte);
        self.steps.wait(&name, Seen::PodGone).await.map(drop)
    }

    async fn sandbox_to_log(&mut self) -> anyhow::Result<()> {
        let name = self.name("log");
        let object = workload::printing_sandbox(&name)?;
        self.rest().await;
        let (begun, wall) = (Instant::now(), Timestamp::now());
        self.engine.sandboxes().create(&PostParams::default(), &object).await?;
        let answered = begun.elapsed();
        let (came, printed) = workload::first_log_byte(&self.engine.coming_pods(), &name).await?;
        let started = self.steps.wait(&name, Seen::PodStarted).await?;
        self.starts.push(SANDBOX_LOG, came - begun);
        self.timeline("create answered", Some(answered));
        self.seen_after(begun, "Pod object seen by a watcher", &Seen::PodThere);
        self.seen_after(begun, "slot taken: directory renamed", &Seen::Directory);
        self.seen_after(begun, "slot knows what to run, recorded", &Seen::File("starting.json".to_owned()));
        self.seen_after(begun, "main process executed, recorded", &Seen::File("started.json".to_owned()));
        self.timeline(
            "first output read by the supervisor",
            Duration::try_from(printed.duration_since(wall)).ok(),
        );
        self.timeline("Pod Running seen by a watcher", Some(started - begun));
        self.timeline("first byte at the client", Some(came - begun));
        self.delete(&name, DELETE_ENDED).await
    }

    async fn pod_to_log(&mut self) -> anyhow::Result<()> {
        let name = self.name("pod");
        let object = workload::printing_pod(&name)?;
        self.rest().await;
        let begun = Instant::now();
        self.engine.pods().create(&PostParams::default(), &object).await?;
        let (came, _) = workload::first_log_byte(&self.engine.coming_pods(), &name).await?;
        self.starts.push(POD_LOG, came - begun);
        self.engine.pods().delete(&name, &DeleteParams::default()).await?;
        self.steps.wait(&name, Seen::PodGone).await.map(drop)
    }

    async fn sandbox_to_exec(&mut self) -> anyhow::Result<()> {
        let name = self.name("exec");
        let object = workload::idle_sandbox(&name)?;
        self.rest().await;
        let begun = Instant::now();
        self.engine.sandboxes().create(&PostParams::default(), &object).await?;
        let ready = self.steps.wait(&name, Seen::SandboxReady).await?;
        let came = workload::first_exec_byte(&self.engine.pods(), &name).await?;
        self.starts.push(SANDBOX_EXEC, came - begun);
        self.others.push(READY, ready - begun);

        for (what, pods) in [(EXEC, self.engine.pods()), (LOCAL_EXEC, self.engine.local_pods())] {
            self.rest().await;
            let begun = Instant::now();
            let came = workload::first_exec_byte(&pods, &name).await?;
            self.others.push(what, came - begun);
        }

        for what in [FIRST_RUN, RUN] {
            self.rest().await;
            let begun = Instant::now();
            let came = self.router.run(&name).await?;
            self.others.push(what, came - begun);
        }

        let argv = self.asb(&["exec", &name, "--"]);
        self.rest().await;
        let timing = tokio::task::block_in_place(|| self.stopwatch.time(&argv))?;
        self.others.push(ASB_EXEC, timing.end);

        self.rest().await;
        self.delete(&name, DELETE_RUNNING).await
    }

    async fn delete(&mut self, name: &str, what: &str) -> anyhow::Result<()> {
        let begun = Instant::now();
        self.engine.sandboxes().delete(name, &DeleteParams::default()).await?;
        let gone = self.steps.wait(name, Seen::PodGone).await?;
        self.others.push(what, gone - begun);
        Ok(())
    }

    /// Lets the machine come to rest, then forgets what was seen.
    async fn rest(&mut self) {
        tokio::time::sleep(self.pause).await;
        self.steps.begin();
    }

    fn name(&mut self, kind: &str) -> String {
        self.count += 1;
        format!("bench-{kind}-{}", self.count)
    }

    fn asb(&self, arguments: &[&str]) -> Vec<String> {
        let text = |path: &Path| path.display().to_string();
        let mut argv = vec![text(&self.asb), "--data-dir".to_owned(), text(self.engine.data_dir())];
        argv.extend(arguments.iter().chain(&COMMAND).map(|&argument| argument.to_owned()));
        argv
    }

    fn seen_after(&mut self, begun: Instant, what: &str, seen: &Seen) {
        let after = self.steps.first(seen).map(|at| at - begun);
        self.timeline(what, after);
    }

    fn timeline(&mut self, what: &str, after: Option<Duration>) {
        after.into_iter().for_each(|after| self.timeline.push(what, after));
    }
}

fn show(peers: &[&str], missing: &[&str], starts: &Results, others: &Results, timeline: &Results) {
    let lines =
        |results: &Results, names: &[&str]| names.iter().map(|name| results.get(name)).collect::<Vec<_>>();
    let names: Vec<&str> = peers.iter().chain(&OURS).copied().collect();
    let samples = lines(starts, &names);
    let mut table = Table::latencies("start → first output byte", names.iter().copied().zip(&samples));
    missing.iter().for_each(|name| table.row([name.to_string(), "not installed".to_owned()]));
    println!("{table}");

    let mut table = Table::new(["p50 as a multiple of"]);
    table.head(peers.iter().map(|peer| peer.to_string()));
    for ours in OURS {
        let median = starts.get(ours).median();
        let ratios = peers.iter().map(|peer| number(ratio(median, starts.get(peer).median())));
        table.row([ours.to_owned()].into_iter().chain(ratios));
    }
    println!("{table}");

    let names = [READY, EXEC, LOCAL_EXEC, FIRST_RUN, RUN, ASB_EXEC, DELETE_RUNNING, DELETE_ENDED];
    println!("{}", Table::latencies("other times", names.into_iter().zip(&lines(others, &names))));

    let mut table =
        Table::new(["Sandbox → log: where the time goes", "at p50 ms", "at p90 ms", "step p50 ms"]);
    let mut before = 0.0;
    for (name, samples) in &timeline.0 {
        let at = |percent| samples.percentile(percent).map(milliseconds);
        let median = at(50).unwrap_or(before);
        table.row([name.clone(), number(at(50)), number(at(90)), number(Some(median - before))]);
        before = median;
    }
    println!("{table}");
}
