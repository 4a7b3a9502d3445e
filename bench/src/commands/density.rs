//! `density`: many idle sandboxes at once: how soon all are Ready, and what each costs beyond its workload.

use std::time::{Duration, Instant};

use futures::future::try_join_all;
use kube::api::PostParams;
use serde_json::json;

use crate::args::Args;
use crate::engine::Engine;
use crate::memory::{self, Memory};
use crate::report::Report;
use crate::stats::{Samples, milliseconds};
use crate::steps::{Seen, Steps};
use crate::table::{Table, number};
use crate::workload;

/// Until caches of a start are gone.
const SETTLE: Duration = Duration::from_secs(5);

/// What all sandboxes use together.
#[derive(Default)]
struct Cost {
    supervisors: Memory,
    supervisor_processes: usize,
    workloads: Memory,
    workload_processes: usize,
}

pub async fn run(args: &Args, count: usize) -> anyhow::Result<()> {
    let asb = args.asb()?;
    let mut report = Report::new("density", args.json.as_deref());
    let (ready, cost, engine_before, engine_after) = Engine::with(&asb, async |engine| {
        let mut steps = Steps::watch(engine).await?;
        tokio::time::sleep(SETTLE).await;
        let engine_before = memory::of(engine.pid())?;
        let ready = start(engine, &mut steps, count).await?;
        tokio::time::sleep(SETTLE).await;
        Ok((ready, cost(engine), engine_before, memory::of(engine.pid())?))
    })
    .await?;
    anyhow::ensure!(cost.supervisor_processes >= count, "only {} supervisors run", cost.supervisor_processes);

    println!("{}", Table::latencies("Sandbox created → Ready, all at once", [("each", &ready)]));
    let each = |kilobytes: u64| Some(kilobytes as f64 / 1024.0 / count as f64);
    let engine_growth = engine_after.rss.saturating_sub(engine_before.rss);
    let mut table = Table::new(["for each idle sandbox", "MB", "target"]);
    table.row(["supervisor, PSS".into(), number(each(cost.supervisors.pss)), "< 1".into()]);
    table.row(["supervisor, RSS".into(), number(each(cost.supervisors.rss)), "–".into()]);
    table.row(["supervisor, not from files".into(), number(each(cost.supervisors.anonymous)), "–".into()]);
    table.row(["workload, PSS".into(), number(each(cost.workloads.pss)), "–".into()]);
    table.row(["growth of the engine, RSS".into(), number(each(engine_growth)), "–".into()]);
    println!("{table}");
    println!(
        "{count} sandboxes: all Ready after {} ms, {} supervisor processes, {} workload processes, engine {} → {} MB RSS\n",
        number(ready.percentile(100).map(milliseconds)),
        cost.supervisor_processes,
        cost.workload_processes,
        engine_before.rss / 1024,
        engine_after.rss / 1024,
    );
    report.put("ready", ready.json());
    report.put("perSandboxKb", json!({
        "supervisorPss": cost.supervisors.pss / count as u64, "supervisorRss": cost.supervisors.rss / count as u64,
        "workloadPss": cost.workloads.pss / count as u64, "engineRssGrowth": engine_growth / count as u64,
    }));
    report.save()
}

/// Creates all sandboxes at once; answers with when each was Ready.
async fn start(engine: &Engine, steps: &mut Steps, count: usize) -> anyhow::Result<Samples> {
    let names: Vec<_> = (0..count).map(|number| format!("dense-{number}")).collect();
    let objects =
        names.iter().map(|name| workload::idle_sandbox(name)).collect::<anyhow::Result<Vec<_>>>()?;
    let (api, params) = (engine.sandboxes(), PostParams::default());
    steps.begin();
    let begun = Instant::now();
    try_join_all(objects.iter().map(|object| api.create(&params, object))).await?;
    let mut ready = Samples::default();
    for name in &names {
        ready.push(steps.wait(name, Seen::SandboxReady).await? - begun);
    }
    Ok(ready)
}

/// Supervisors are told by their program; what they started, and so on, is the workload.
fn cost(engine: &Engine) -> Cost {
    let programs = engine.sandboxes_dir().join("bin");
    let mut cost = Cost::default();
    let all = memory::processes();
    let ours: Vec<u32> =
        all.iter().map(|(pid, _)| *pid).filter(|pid| is_supervisor(*pid, &programs)).collect();
    for pid in &ours {
        add(&mut cost.supervisors, *pid);
        cost.supervisor_processes += 1;
    }
    for (pid, _) in all.iter().filter(|(pid, parent)| ours.contains(parent) && !ours.contains(pid)) {
        add(&mut cost.workloads, *pid);
        cost.workload_processes += 1;
    }
    cost
}

fn is_supervisor(pid: u32, programs: &std::path::Path) -> bool {
    memory::program_below(pid, programs).is_some_and(|name| name.contains("supervisor"))
}

fn add(sum: &mut Memory, pid: u32) {
    // A process that has just ended costs nothing.
    let memory = memory::of(pid).unwrap_or_default();
    sum.rss += memory.rss;
    sum.pss += memory.pss;
    sum.anonymous += memory.anonymous;
}
