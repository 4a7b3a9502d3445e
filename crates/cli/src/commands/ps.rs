//! `asb ps`: what is there.

use std::process::ExitCode;

use asb_types::{Sandbox, condition};
use jiff::Timestamp;
use kube::{Api, ResourceExt, api::ListParams};
use serde::Serialize;

use crate::args::Ps;
use crate::connect;
use crate::data_dir::DataDir;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    name: String,
    namespace: String,
    status: String,
    image: String,
    address: Option<String>,
    created_at: Option<Timestamp>,
}

pub async fn run(data_dir: &DataDir, ps: Ps) -> anyhow::Result<ExitCode> {
    let client = connect::running_client(data_dir).await?;
    let sandboxes: Api<Sandbox> = match ps.all_namespaces {
        true => Api::all(client),
        false => Api::namespaced(client, &ps.target.namespace),
    };
    let rows: Vec<_> = sandboxes.list(&ListParams::default()).await?.iter().map(row).collect();
    if ps.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else if rows.is_empty() {
        eprintln!("no sandboxes; start one with `asb run --detach --name NAME`");
    } else {
        print(&rows, Timestamp::now());
    }
    Ok(ExitCode::SUCCESS)
}

fn row(sandbox: &Sandbox) -> Row {
    let status = sandbox.status.clone().unwrap_or_default();
    let ready = condition::get(&status.conditions, condition::READY);
    let image = sandbox.spec.pod_template.spec.get("containers").map(|containers| &containers[0]["image"]);
    Row {
        name: sandbox.name_any(),
        namespace: sandbox.namespace().unwrap_or_default(),
        status: match ready {
            Some(ready) if ready.status == "True" => "Ready".to_owned(),
            Some(ready) => ready.reason.clone(),
            None => "New".to_owned(),
        },
        image: image.and_then(|image| image.as_str()).unwrap_or_default().to_owned(),
        address: status.pod_ips.first().cloned(),
        created_at: sandbox.creation_timestamp().map(|time| time.0),
    }
}

fn print(rows: &[Row], now: Timestamp) {
    let cells: Vec<[String; 5]> = rows
        .iter()
        .map(|row| {
            let age = row.created_at.map_or_else(String::new, |at| age(now.duration_since(at).as_secs()));
            [row.namespace.clone(), row.name.clone(), row.status.clone(), row.image.clone(), age]
        })
        .collect();
    table(["NAMESPACE", "NAME", "STATUS", "IMAGE", "AGE"], &cells);
}

/// Prints rows under their heads, each column as wide as it must be.
pub fn table<const COLUMNS: usize>(heads: [&str; COLUMNS], cells: &[[String; COLUMNS]]) {
    let heads = heads.map(str::to_owned);
    let width =
        |at: usize| cells.iter().chain([&heads]).map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..COLUMNS - 1).map(width).collect();
    for row in [&heads].into_iter().chain(cells) {
        let padded = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}  "));
        println!("{}{}", padded.collect::<String>(), row[COLUMNS - 1]);
    }
}

pub fn age(seconds: i64) -> String {
    match seconds.max(0) {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..7200 => format!("{}m", seconds / 60),
        seconds @ 7200..172_800 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}
