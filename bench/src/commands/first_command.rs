//! `first-command`: what a user of a warm pool waits for: claim created → output of the first command, on an open
//! connection to the router. And commands after that: one at a time, and as many as go through ten connections.
//!
//! The same command as a bare fork/exec in this process is what the machine itself takes.

use std::time::{Duration, Instant};

use anyhow::Context;
use asb_types::{Claim, Template, WarmPool};
use futures::{StreamExt, TryStreamExt};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use serde_json::{Value, json};

use crate::args::Args;
use crate::engine::{Engine, NAMESPACE};
use crate::peer::COMMAND;
use crate::report::Report;
use crate::router::Router;
use crate::stats::{Samples, milliseconds};
use crate::table::{Table, number};

const FIRST_TARGET_MS: f64 = 5.0;
const COMMAND_TARGET_MS: f64 = 2.0;
const RATE_TARGET: f64 = 2000.0;
const CONNECTIONS: usize = 10;
const POOL: usize = 8;

pub async fn run(args: &Args, rounds: usize, seconds: u64) -> anyhow::Result<()> {
    Engine::with(&args.asb()?, async |engine| measure(args, engine, rounds, seconds).await).await
}

async fn measure(args: &Args, engine: &Engine, rounds: usize, seconds: u64) -> anyhow::Result<()> {
    let mut report = Report::new("first-command", args.json.as_deref());
    let way = Way::open(engine).await?;
    let mut router = Router::connect(engine).await?;
    let [mut ready, mut output, mut command, mut bare] = [(); 4].map(|()| Samples::default());
    for round in 0..rounds {
        way.full().await?;
        tokio::time::sleep(args.pause()).await;
        let begun = Instant::now();
        let (sandbox, reported) = way.claim(&format!("claim-{round}")).await?;
        let first = router.run(&sandbox).await?;
        ready.push(reported - begun);
        output.push(first - begun);
        tokio::time::sleep(args.pause()).await;
        let begun = Instant::now();
        command.push(router.run(&sandbox).await? - begun);
        bare.push(fork_exec().await?);
        if round + 1 < rounds {
            way.release(&format!("claim-{round}")).await?;
        } else {
            let rates = [at_once(engine, &sandbox, seconds).await?, bare_at_once(seconds).await?];
            show(&output, &command, &bare, rates);
            report.put("commandsPerSecond", json!(rates[0]));
            report.put("forkExecsPerSecond", json!(rates[1]));
        }
    }
    let lines = [
        ("claim → Ready", &ready),
        ("claim → first output", &output),
        ("command on an open connection", &command),
        ("fork/exec of the same command", &bare),
    ];
    println!("{}", Table::latencies("first command", lines));
    for (name, samples) in
        [("ready", &ready), ("firstOutput", &output), ("command", &command), ("forkExec", &bare)]
    {
        report.put(name, samples.json());
    }
    way.close().await?;
    report.save()
}

fn show(output: &Samples, command: &Samples, bare: &Samples, [rate, bare_rate]: [f64; 2]) {
    let p50 = |samples: &Samples| samples.median().map(milliseconds);
    let mut table =
        Table::new(["against its targets", "measured", "target", "measured ÷ target", "÷ fork/exec"]);
    let of_bare = |value: Option<f64>| value.zip(p50(bare)).map(|(value, bare)| value / bare);
    for (name, value, target) in [
        ("claim → first output p50, ms", p50(output), FIRST_TARGET_MS),
        ("command p50, ms", p50(command), COMMAND_TARGET_MS),
    ] {
        let ratio = value.map(|value| value / target);
        table.row([
            name.to_owned(),
            number(value),
            format!("≤ {target}"),
            number(ratio),
            number(of_bare(value)),
        ]);
    }
    let name = format!("commands/s on {CONNECTIONS} connections");
    let ratios = [rate / RATE_TARGET, rate / bare_rate].map(|ratio| number(Some(ratio)));
    table.row([name, number(Some(rate)), format!("≥ {RATE_TARGET}")].into_iter().chain(ratios));
    println!("{table}");
}

/// The same command without anything of ours.
async fn fork_exec() -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let output = tokio::process::Command::new(COMMAND[0]).args(&COMMAND[1..]).output().await?;
    anyhow::ensure!(output.status.success(), "the command failed by itself");
    Ok(begun.elapsed())
}

/// The most that the machine itself can do: as many processes at once, started by this one.
async fn bare_at_once(seconds: u64) -> anyhow::Result<f64> {
    let begun = Instant::now();
    let until = begun + Duration::from_secs(seconds);
    let counts = (0..CONNECTIONS).map(|_| async move {
        let mut count = 0_u64;
        while Instant::now() < until {
            fork_exec().await?;
            count += 1;
        }
        anyhow::Ok(count)
    });
    let counts: Vec<u64> = futures::future::try_join_all(counts).await?;
    Ok(counts.iter().sum::<u64>() as f64 / begun.elapsed().as_secs_f64())
}

/// Commands per second when as many run at once as there are connections.
async fn at_once(engine: &Engine, sandbox: &str, seconds: u64) -> anyhow::Result<f64> {
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut routers = Vec::new();
    for _ in 0..CONNECTIONS {
        routers.push(Router::connect(engine).await?);
    }
    let begun = Instant::now();
    let counts = routers.into_iter().map(|mut router| async move {
        let mut count = 0_u64;
        while Instant::now() < until {
            router.run(sandbox).await?;
            count += 1;
        }
        anyhow::Ok(count)
    });
    let counts: Vec<u64> = futures::future::try_join_all(counts).await?;
    Ok(counts.iter().sum::<u64>() as f64 / begun.elapsed().as_secs_f64())
}

/// A pool, and claims on it.
struct Way {
    templates: Api<Template>,
    pools: Api<WarmPool>,
    claims: Api<Claim>,
}

impl Way {
    async fn open(engine: &Engine) -> anyhow::Result<Self> {
        let client = &engine.client;
        let way = Self {
            templates: Api::namespaced(client.clone(), NAMESPACE),
            pools: Api::namespaced(client.clone(), NAMESPACE),
            claims: Api::namespaced(client.clone(), NAMESPACE),
        };
        let template = json!({
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxTemplate", "metadata": {"name": "bench"},
            "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "host"}]}}},
        });
        way.templates.create(&PostParams::default(), &serde_json::from_value(template)?).await?;
        let pool = json!({
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool", "metadata": {"name": "bench"},
            "spec": {"replicas": POOL, "sandboxTemplateRef": {"name": "bench"}},
        });
        way.pools.create(&PostParams::default(), &serde_json::from_value(pool)?).await?;
        Ok(way)
    }

    /// Waits until every member is Ready.
    async fn full(&self) -> anyhow::Result<()> {
        for _ in 0..2000 {
            let pool = serde_json::to_value(self.pools.get("bench").await?)?;
            if pool["status"]["readyReplicas"] == POOL {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        anyhow::bail!("the pool did not fill up")
    }

    /// Creates a claim; returns its Sandbox and when it was reported Ready.
    async fn claim(&self, name: &str) -> anyhow::Result<(String, Instant)> {
        let claim = json!({
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
            "metadata": {"name": name}, "spec": {"warmPoolRef": {"name": "bench"}},
        });
        let created = self.claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
        let from = created.metadata.resource_version.context("a created object has a version")?;
        let only = WatchParams::default().fields(&format!("metadata.name={name}"));
        let mut events = self.claims.watch(&only, &from).await?.boxed();
        while let Some(event) = events.try_next().await? {
            let WatchEvent::Modified(claim) = event else { continue };
            let reported = Instant::now();
            let claim = serde_json::to_value(claim)?;
            if let Some(sandbox) = claim["status"]["sandbox"]["name"].as_str().filter(|_| is_ready(&claim)) {
                return Ok((sandbox.to_owned(), reported));
            }
        }
        anyhow::bail!("the watch of claim {name} ended")
    }

    async fn release(&self, name: &str) -> anyhow::Result<()> {
        self.claims.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    async fn close(&self) -> anyhow::Result<()> {
        let all = ListParams::default();
        self.claims.delete_collection(&DeleteParams::default(), &all).await?;
        self.pools.delete("bench", &DeleteParams::default()).await?;
        self.templates.delete("bench", &DeleteParams::default()).await?;
        Ok(())
    }
}

fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|it| it["type"] == "Ready" && it["status"] == "True")
}
