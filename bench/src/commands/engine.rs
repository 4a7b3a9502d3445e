//! `engine`: how long `asb up` takes to get ready, and what it costs when nothing happens.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::args::Args;
use crate::engine::{Process, directory};
use crate::memory::{self, Memory};
use crate::report::Report;
use crate::stats::{Samples, milliseconds};
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
    // Kept to the end: ext4 is slow to reuse the inodes of files that were deleted a moment ago.
    let mut used = Vec::new();
    for _ in 0..rounds {
        let new = directory()?;
        for (samples, data_dir) in [(&mut fresh, new.path()), (&mut warm, kept.path())] {
            tokio::time::sleep(args.pause()).await;
            let process = Process::start(&asb, data_dir)?;
            samples.push(process.ready_after);
            stop.push(process.stop()?);
        }
        used.push(new);
    }
    let lines =
        [("ready, fresh data dir", &fresh), ("ready, warm data dir", &warm), ("SIGTERM → ended", &stop)];
    println!("{}", Table::latencies("`asb up`", lines));
    let (new, old) = (idle(&asb, directory()?.path()).await?, idle(&asb, kept.path()).await?);
    show(&fresh, &warm, &new, &old);
    report.put("readyFresh", fresh.json());
    report.put("readyWarm", warm.json());
    report.put("stop", stop.json());
    report.put("idleFresh", new.json());
    report.put("idleWarm", old.json());
    report.save()
}

/// An engine to which nothing happens.
struct Idle {
    memory: Memory,
    threads: usize,
    cpu: Duration,
    wakeups: u64,
}

impl Idle {
    fn json(&self) -> Value {
        json!({
            "rssKb": self.memory.rss, "pssKb": self.memory.pss, "anonymousKb": self.memory.anonymous,
            "threads": self.threads, "cpuMsIn10s": milliseconds(self.cpu), "wakeupsIn10s": self.wakeups,
        })
    }
}

async fn idle(asb: &Path, data_dir: &Path) -> anyhow::Result<Idle> {
    let process = Process::start(asb, data_dir)?;
    tokio::time::sleep(SETTLE).await;
    let before = memory::activity(process.pid())?;
    tokio::time::sleep(WATCHED).await;
    let after = memory::activity(process.pid())?;
    let memory = memory::of(process.pid())?;
    process.stop()?;
    let (threads, wakeups) = (after.threads(), after.wakeups_since(&before));
    Ok(Idle { memory, threads, cpu: after.cpu.saturating_sub(before.cpu), wakeups })
}

fn show(fresh: &Samples, warm: &Samples, new: &Idle, old: &Idle) {
    let megabytes = |kilobytes: u64| Some(kilobytes as f64 / 1024.0);
    let ready = |samples: &Samples| samples.median().map(milliseconds);
    let mut table = Table::new([
        "`asb up` against its targets",
        "fresh data dir",
        "warm data dir",
        "target",
        "fresh / target",
    ]);
    let mut line = |name: &str, values: [Option<f64>; 2], target: Option<f64>| {
        let ratio = target.and_then(|target| Some(values[0]? / target));
        let below = target.map_or("–".to_owned(), |target| format!("< {target}"));
        table.row([name.to_owned(), number(values[0]), number(values[1]), below, number(ratio)]);
    };
    line("ready p50, ms", [ready(fresh), ready(warm)], Some(READY_TARGET_MS));
    line("idle RSS, MB", [new, old].map(|it| megabytes(it.memory.rss)), Some(RSS_TARGET_MB));
    line("idle PSS, MB", [new, old].map(|it| megabytes(it.memory.pss)), None);
    line("not from files, MB", [new, old].map(|it| megabytes(it.memory.anonymous)), None);
    line("threads", [new, old].map(|it| Some(it.threads as f64)), None);
    line("CPU in 10 idle seconds, ms", [new, old].map(|it| Some(milliseconds(it.cpu))), None);
    line("wake-ups in 10 idle seconds", [new, old].map(|it| Some(it.wakeups as f64)), None);
    println!("{table}");
}
