//! `creates`: durable creates per second, and how soon a watcher hears of one, against kube-apiserver with etcd.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, PostParams, WatchEvent, WatchParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::task::JoinSet;

use crate::args::Args;
use crate::engine::NAMESPACE;
use crate::report::Report;
use crate::stats::{Samples, median};
use crate::table::{Table, number, ratio};
use crate::target::Target;
use crate::workload;

const WRITERS: [usize; 3] = [1, 16, 64];
const KINDS: [&str; 2] = ["ConfigMap", "Sandbox"];
const REST: Duration = Duration::from_secs(1);
/// Bounds what one number may store, however fast the server is.
const MOST: usize = 20_000;

/// How much is measured.
pub struct Plan {
    pub seconds: u64,
    pub repeat: usize,
    pub rounds: usize,
}

pub async fn run(args: &Args, plan: Plan, kubernetes: bool) -> anyhow::Result<()> {
    let mut report = Report::new("creates", args.json.as_deref());
    let mut targets = vec![Target::over_tls().await?, Target::in_process().await?];
    match kubernetes {
        true => targets.push(Target::kubernetes().await?),
        false => eprintln!("WARNING: kube-apiserver is left out of the comparison"),
    }
    let done = tokio::select! {
        done = measure(&targets, &plan, args.pause(), &mut report) => done,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    };
    for target in targets {
        target.close().await?;
    }
    done?;
    report.save()
}

async fn measure(
    targets: &[Target],
    plan: &Plan,
    pause: Duration,
    report: &mut Report,
) -> anyhow::Result<()> {
    let (answered, seen) = watch_latencies(targets, plan.rounds, pause).await?;
    let names = || targets.iter().map(|target| target.name);
    println!("{}", Table::latencies("ConfigMap create → answer", names().zip(&answered)));
    let mut table = Table::latencies("ConfigMap create → watch event", names().zip(&seen));
    if let [ours, .., theirs] = &seen[..] {
        table.row([
            "kube-apiserver / ours over TLS".into(),
            "p50".into(),
            number(ratio(theirs.median(), ours.median())),
        ]);
    }
    println!("{table}");
    let json =
        |all: &[Samples]| names().zip(all).map(|(name, it)| (name, it.json())).collect::<BTreeMap<_, _>>();
    report.put("createToAnswer", json!(json(&answered)));
    report.put("createToWatchEvent", json!(json(&seen)));

    let mut table = Table::new(["durable creates/s", "writers"]);
    table.head(names().map(str::to_owned).chain(["TLS / kube-apiserver".to_owned()]));
    let mut rates = Vec::new();
    for kind in KINDS {
        for writers in WRITERS {
            let taken = rates_of(targets, kind, writers, plan).await?;
            let shown: Vec<_> = taken.iter().map(|rates| median(rates.clone())).collect();
            let factor = (targets.len() > 2).then(|| Some(shown[0]? / shown[2]?)).flatten();
            let cells = shown.iter().copied().chain([factor]).map(number);
            table.row([kind.to_owned(), writers.to_string()].into_iter().chain(cells));
            for (target, taken) in targets.iter().zip(&taken) {
                rates.push(
                    json!({"kind": kind, "writers": writers, "target": target.name, "perSecond": taken}),
                );
            }
        }
    }
    println!("{table}");
    report.put("creates", json!(rates));
    Ok(())
}

/// For each target the time to the answer and to the watch event, one sample of each in turn.
async fn watch_latencies(
    targets: &[Target],
    rounds: usize,
    pause: Duration,
) -> anyhow::Result<(Vec<Samples>, Vec<Samples>)> {
    let mut watches = Vec::new();
    for target in targets {
        let api: Api<ConfigMap> = Api::namespaced(target.client.clone(), NAMESPACE);
        let revision =
            api.list(&ListParams::default().limit(1)).await?.metadata.resource_version.unwrap_or_default();
        watches.push(Box::pin(api.watch(&WatchParams::default(), &revision).await?));
    }
    let mut answered = vec![Samples::default(); targets.len()];
    let mut seen = answered.clone();
    for round in 0..rounds {
        for (at, target) in targets.iter().enumerate() {
            tokio::time::sleep(pause).await;
            let api: Api<ConfigMap> = Api::namespaced(target.client.clone(), NAMESPACE);
            let (object, params) = (config_map(&format!("spaced-{round}"))?, PostParams::default());
            let name = object.name_any();
            let begun = Instant::now();
            let create = async { api.create(&params, &object).await.map(|_| begun.elapsed()) };
            let event = async {
                loop {
                    match watches[at].try_next().await? {
                        Some(WatchEvent::Added(object)) if object.name_any() == name => {
                            return anyhow::Ok(begun.elapsed());
                        }
                        Some(_) => {}
                        None => anyhow::bail!("the watch on {} ended", target.name),
                    }
                }
            };
            let (create, event) = tokio::join!(create, event);
            answered[at].push(create?);
            seen[at].push(event?);
        }
    }
    Ok((answered, seen))
}

/// Creates per second on each target, `repeat` times, the targets in turn.
async fn rates_of(
    targets: &[Target],
    kind: &str,
    writers: usize,
    plan: &Plan,
) -> anyhow::Result<Vec<Vec<f64>>> {
    let mut rates = vec![Vec::new(); targets.len()];
    for repetition in 0..plan.repeat {
        for (at, target) in targets.iter().enumerate() {
            // Whoever was just asked still has work in the background.
            tokio::time::sleep(REST).await;
            let prefix = format!("{}-{writers}-{repetition}", kind.to_lowercase());
            let time = Duration::from_secs(plan.seconds);
            let rate = match kind {
                "ConfigMap" => rate(&target.client, &prefix, writers, time, config_map).await,
                _ => rate(&target.client, &prefix, writers, time, workload::printing_sandbox).await,
            };
            rates[at].push(rate.with_context(|| format!("failed to create a {kind} on {}", target.name))?);
        }
    }
    Ok(rates)
}

/// Lets many writers create objects, each waiting for its answer before the next.
async fn rate<K>(
    client: &Client,
    prefix: &str,
    writers: usize,
    time: Duration,
    make: impl Fn(&str) -> anyhow::Result<K> + Copy + Send + 'static,
) -> anyhow::Result<f64>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + std::fmt::Debug,
    K: DeserializeOwned + Serialize + Send + Sync + 'static,
{
    let next = Arc::new(AtomicUsize::new(0));
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..writers {
        let (api, next, prefix) =
            (Api::<K>::namespaced(client.clone(), NAMESPACE), next.clone(), prefix.to_owned());
        tasks.spawn(async move {
            let mut created = 0;
            while begun.elapsed() < time {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= MOST {
                    break;
                }
                api.create(&PostParams::default(), &make(&format!("{prefix}-{number}"))?).await?;
                created += 1;
            }
            anyhow::Ok(created)
        });
    }
    let mut created = 0;
    while let Some(done) = tasks.join_next().await {
        created += done??;
    }
    Ok(f64::from(created) / begun.elapsed().as_secs_f64())
}

/// About a kilobyte, as many are.
fn config_map(name: &str) -> anyhow::Result<ConfigMap> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"app": "bench"}},
        "data": {"settings": "x".repeat(900)},
    }))?)
}
