//! `asb image ls`.

use asb_runtime::image::Record;
use jiff::Timestamp;
use serde::Serialize;

use super::{human, open};
use crate::commands::ps::{age, table};
use crate::data_dir::DataDir;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    name: String,
    id: String,
    digest: Option<String>,
    layers: usize,
    size_bytes: u64,
    created_at: Option<Timestamp>,
}

pub fn run(data_dir: &DataDir, json: bool) -> anyhow::Result<()> {
    let rows: Vec<_> = open(data_dir, Default::default())?.list()?.iter().map(row).collect();
    if json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else if rows.is_empty() {
        eprintln!(
            "no images but `host`; get one with `asb image pull HOST/NAME:TAG` or `asb image import FILE`"
        );
    } else {
        let now = Timestamp::now();
        let cells = rows.iter().map(|row| {
            let id = row.id.trim_start_matches("sha256:").chars().take(12).collect();
            let age = row.created_at.map_or_else(String::new, |at| age(now.duration_since(at).as_secs()));
            [row.name.clone(), id, row.layers.to_string(), human(row.size_bytes), age]
        });
        table(["NAME", "ID", "LAYERS", "SIZE", "AGE"], &cells.collect::<Vec<_>>());
    }
    Ok(())
}

fn row(record: &Record) -> Row {
    Row {
        name: record.name.clone(),
        id: record.id.to_string(),
        digest: record.manifest.as_ref().map(ToString::to_string),
        layers: record.layers.len(),
        size_bytes: record.size,
        created_at: i64::try_from(record.at).ok().and_then(|at| Timestamp::from_second(at).ok()),
    }
}
