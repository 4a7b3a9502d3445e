//! `asb top`: what sandboxes use, live in a terminal.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, Client, ResourceExt};
use serde::Serialize;
use serde_json::Value;

use super::image::human;
use super::ps;
use crate::args::Top;
use crate::connect;
use crate::data_dir::DataDir;

/// Home, and nothing below.
const CLEAR: &str = "\x1b[H\x1b[2J";

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    namespace: String,
    name: String,
    cpu_nanocores: u64,
    memory_bytes: u64,
    /// The time over which the processor was measured, as Kubernetes writes it.
    window: String,
}

pub async fn run(data_dir: &DataDir, top: Top) -> anyhow::Result<ExitCode> {
    let client = connect::running_client(data_dir).await?;
    let live = !top.no_stream && !top.json && std::io::stdout().is_terminal();
    loop {
        let rows = rows(&client, &top).await?;
        if live {
            print!("{CLEAR}");
        }
        match (top.json, rows.is_empty()) {
            (true, _) => println!("{}", serde_json::to_string_pretty(&rows)?),
            (false, true) => eprintln!("nothing runs; start a sandbox with `asb run --detach --name NAME`"),
            (false, false) => print(&rows),
        }
        if !live {
            return Ok(ExitCode::SUCCESS);
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(top.interval)) => {}
            _ = tokio::signal::ctrl_c() => return Ok(ExitCode::SUCCESS),
        }
    }
}

async fn rows(client: &Client, top: &Top) -> anyhow::Result<Vec<Row>> {
    let kind = GroupVersionKind::gvk("metrics.k8s.io", "v1beta1", "PodMetrics");
    let kind = ApiResource::from_gvk_with_plural(&kind, "pods");
    let metrics: Api<DynamicObject> = match top.all_namespaces {
        true => Api::all_with(client.clone(), &kind),
        false => Api::namespaced_with(client.clone(), &top.target.namespace, &kind),
    };
    let mut rows: Vec<_> = metrics.list(&ListParams::default()).await?.iter().map(row).collect();
    rows.sort_by_key(|row| std::cmp::Reverse((row.cpu_nanocores, row.memory_bytes)));
    Ok(rows)
}

fn row(metrics: &DynamicObject) -> Row {
    let containers = metrics.data["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
    let sum = |resource: &str| {
        let amounts = containers.iter().map(|container| &container["usage"][resource]);
        amounts.filter_map(Value::as_str).filter_map(amount).sum::<u64>()
    };
    Row {
        namespace: metrics.namespace().unwrap_or_default(),
        name: metrics.name_any(),
        cpu_nanocores: sum("cpu"),
        memory_bytes: sum("memory"),
        window: metrics.data["window"].as_str().unwrap_or_default().to_owned(),
    }
}

/// An amount as the engine writes it: nanocores, or KiB.
fn amount(text: &str) -> Option<u64> {
    match text.strip_suffix('n') {
        Some(nanocores) => nanocores.parse().ok(),
        None => text.strip_suffix("Ki")?.parse::<u64>().ok().map(|kib| kib * 1024),
    }
}

fn print(rows: &[Row]) {
    let cells: Vec<[String; 5]> = rows
        .iter()
        .map(|row| {
            let tenths = row.cpu_nanocores / 1_000_000;
            let cpu = format!("{}.{}%", tenths / 10, tenths % 10);
            [row.namespace.clone(), row.name.clone(), cpu, human(row.memory_bytes), row.window.clone()]
        })
        .collect();
    ps::table(["NAMESPACE", "NAME", "CPU", "MEMORY", "MEASURED OVER"], &cells);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn containers_of_a_pod_are_summed_up() {
        let metrics: DynamicObject = serde_json::from_value(json!({
            "metadata": {"name": "a", "namespace": "b"}, "window": "2.000s",
            "containers": [
                {"name": "x", "usage": {"cpu": "1500000n", "memory": "2Ki"}},
                {"name": "y", "usage": {"cpu": "500000n", "memory": "1Ki"}},
            ],
        }))
        .expect("an object");
        let row = row(&metrics);
        assert_eq!((row.cpu_nanocores, row.memory_bytes), (2_000_000, 3072));
        assert_eq!((row.namespace.as_str(), row.window.as_str()), ("b", "2.000s"));
    }
}
