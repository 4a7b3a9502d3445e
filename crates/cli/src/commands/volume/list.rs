//! `asb volume ls` and `du`.

use asb_runtime::tree::{self, Size, quota};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde::Serialize;

use super::{List, directory, users};
use crate::commands::image::human;
use crate::commands::ps::{age, table};
use crate::data_dir::DataDir;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    namespace: String,
    name: String,
    /// As it was asked for.
    capacity: String,
    /// Whether it cannot hold more than that.
    enforced: bool,
    used_by: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requested_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<u64>,
    /// Otherwise it holds at least that.
    #[serde(skip_serializing_if = "Option::is_none")]
    complete: Option<bool>,
    created_at: Option<Timestamp>,
}

pub async fn run(data_dir: &DataDir, client: Client, list: List, measure: bool) -> anyhow::Result<()> {
    let (claims, pods): (Api<PersistentVolumeClaim>, Api<Pod>) = match list.all_namespaces {
        true => (Api::all(client.clone()), Api::all(client)),
        false => {
            let namespace = &list.target.namespace;
            (Api::namespaced(client.clone(), namespace), Api::namespaced(client, namespace))
        }
    };
    let claims = claims.list(&ListParams::default()).await?;
    let pods = pods.list(&ListParams::default()).await?.items;
    let mut rows = Vec::new();
    for claim in &claims {
        let path = directory(data_dir, claim);
        let enforced = path.as_deref().is_some_and(|path| quota::limit_of(path).is_some());
        let size = match path.filter(|_| measure) {
            Some(path) => Some(tokio::task::spawn_blocking(move || tree::size(&path)).await??),
            None => measure.then(Size::default),
        };
        rows.push(Row { enforced, ..row(claim, &pods, size) });
    }
    if list.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else if rows.is_empty() {
        eprintln!("no volumes; a Sandbox has them by `spec.volumeClaimTemplates`");
    } else {
        print(&rows, measure);
    }
    Ok(())
}

fn row(claim: &PersistentVolumeClaim, pods: &[Pod], size: Option<Size>) -> Row {
    let requests = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
    let capacity = requests.and_then(|it| it.get("storage"));
    Row {
        namespace: claim.namespace().unwrap_or_default(),
        name: claim.name_any(),
        capacity: capacity.map(|it| it.0.clone()).unwrap_or_default(),
        enforced: false,
        requested_bytes: capacity.and_then(asb_node::quantity_bytes),
        used_by: users(claim, pods).into_iter().map(str::to_owned).collect(),
        bytes: size.map(|size| size.bytes),
        files: size.map(|size| size.files),
        complete: size.map(|size| size.complete),
        created_at: claim.creation_timestamp().map(|time| time.0),
    }
}

/// How much of what was asked for is used; more is possible where it is no limit.
fn share(bytes: u64, requested: Option<u64>) -> String {
    let percent = |requested| u128::from(bytes) * 100 / u128::from(requested);
    requested.filter(|it| *it > 0).map_or_else(String::new, |requested| format!(" ({}%)", percent(requested)))
}

fn print(rows: &[Row], measure: bool) {
    let now = Timestamp::now();
    let cells: Vec<[String; 6]> = rows
        .iter()
        .map(|row| {
            let names = [row.namespace.clone(), row.name.clone()];
            let rest = match (row.bytes, row.files) {
                (Some(bytes), Some(files)) => {
                    let size =
                        if row.complete == Some(true) { human(bytes) } else { format!("> {}", human(bytes)) };
                    [
                        size,
                        files.to_string(),
                        format!("{}{}", row.capacity, share(bytes, row.requested_bytes)),
                    ]
                }
                _ => {
                    let users = if row.used_by.is_empty() { "-".to_owned() } else { row.used_by.join(",") };
                    let age = row.created_at.map(|at| age(now.duration_since(at).as_secs()));
                    [row.capacity.clone(), users, age.unwrap_or_default()]
                }
            };
            let ([a, b], [c, d, e]) = (names, rest);
            let enforced = if row.enforced { "yes" } else { "no" }.to_owned();
            match measure {
                true => [a, b, c, d, e, enforced],
                false => [a, b, c, enforced, d, e],
            }
        })
        .collect();
    match measure {
        true => table(["NAMESPACE", "NAME", "SIZE", "FILES", "CAPACITY", "ENFORCED"], &cells),
        false => table(["NAMESPACE", "NAME", "CAPACITY", "ENFORCED", "USED BY", "AGE"], &cells),
    }
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn share_of_what_was_asked_for_can_be_more_than_all() {
        assert_eq!(share(512, Some(1024)), " (50%)");
        assert_eq!(share(3 << 30, Some(1 << 30)), " (300%)");
        assert_eq!((share(1, None), share(1, Some(0))), (String::new(), String::new()));
    }
}
