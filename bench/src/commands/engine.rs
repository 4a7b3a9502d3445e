//! `engine`: how long `asb up` takes to get ready, and what it costs when nothing happens.

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use crate::args::Args;
use crate::engine::{Process, directory};
use crate::memory::{self, Activity, Memory};
use crate::report::Report;
use crate::stats::Samples;
use crate::table::{Table, number};

const SETTLE: Duration = Duration::from_secs(5);
const WATCHED: Duration = Duration::from_secs(10);
const READY_TARGET_MS: f64 = 100.0;
const RSS_TARGET_MB: f64 = 40.0;

pub async fn run(args: &Args, rounds: usize) -> anyhow::Result<()> {
    let asb = args.asb()?;
    let mut report = Report::new("engine", args.json.as_deref());
    let (mut fresh, mut warm, mut stop) = (Samples::default(), Samples::default(), Samples::default());
    let kept = directory()?;
    Process::start(&asb, kept.path())?.stop()?;
    for _ in 0..rounds {
        let new = directory()?;
        for (samples, data_dir) in [(&mut fresh, new.path()), (&mut warm, kept.path())] {
            tokio::time::sleep(args.pause()).await;
            let process = Process::start(&asb, data_dir)?;
            samples.push(process.ready_after);
            stop.push(process.stop()?);
        }
    }
    let lines =
        [("ready, fresh data dir", &fresh), ("ready, warm data dir", &warm), ("SIGTERM → ended", &stop)];
    println!("{}", Table::latencies("`asb up`", lines));
    let (memory, before, after) = idle(&asb, kept.path()).await?;
    show(&fresh, &warm, memory, &before, &after);
    report.put("readyFresh", fresh.json());
    report.put("readyWarm", warm.json());
    report.put("stop", stop.json());
    report.put("idle", json!({
        "rssKb": memory.rss, "pssKb": memory.pss, "anonymousKb": memory.anonymous, "threads": after.threads(),
        "ticksIn10s": after.ticks - before.ticks, "wakeupsIn10s": after.wakeups_since(&before),
    }));
    report.save()
}

async fn idle(asb: &Path, data_dir: &Path) -> anyhow::Result<(Memory, Activity, Activity)> {
    let process = Process::start(asb, data_dir)?;
    tokio::time::sleep(SETTLE).await;
    let memory = memory::of(process.pid())?;
    let before = memory::activity(process.pid())?;
    tokio::time::sleep(WATCHED).await;
    let after = memory::activity(process.pid())?;
    process.stop()?;
    Ok((memory, before, after))
}

fn show(fresh: &Samples, warm: &Samples, memory: Memory, before: &Activity, after: &Activity) {
    let megabytes = |kilobytes: u64| kilobytes as f64 / 1024.0;
    let ready = |samples: &Samples| samples.median().map(crate::stats::milliseconds);
    let mut table = Table::new(["against its targets", "is", "target", "is / target"]);
    let mut line = |name: &str, value: Option<f64>, unit: &str, target: Option<f64>| {
        let target_cell = target.map_or("–".to_owned(), |target| format!("< {target} {unit}"));
        let ratio = target.and_then(|target| Some(value? / target));
        table.row([name.to_owned(), format!("{} {unit}", number(value)), target_cell, number(ratio)]);
    };
    line("ready p50, fresh data dir", ready(fresh), "ms", Some(READY_TARGET_MS));
    line("ready p50, warm data dir", ready(warm), "ms", Some(READY_TARGET_MS));
    line("idle RSS", Some(megabytes(memory.rss)), "MB", Some(RSS_TARGET_MB));
    line("idle PSS", Some(megabytes(memory.pss)), "MB", None);
    line("  of it not from files", Some(megabytes(memory.anonymous)), "MB", None);
    line("threads", Some(after.threads() as f64), "", None);
    line("CPU in 10 idle seconds", Some((after.ticks - before.ticks) as f64 * 10.0), "ms", None);
    line("wake-ups in 10 idle seconds", Some(after.wakeups_since(before) as f64), "", None);
    println!("{table}");
}
