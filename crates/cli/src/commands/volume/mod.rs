//! `asb volume`: the volumes of sandboxes, which are PersistentVolumeClaims with a directory each.

mod archive;
mod list;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use crate::args::Target;
use crate::connect;
use crate::data_dir::DataDir;
use crate::failure::hinted;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// List volumes and who uses them
    Ls(List),
    /// List volumes and what they take on the disk
    Du(List),
    /// Write a volume as a tar archive, with owners and modes
    #[command(
        after_help = "Examples:\n  asb volume export data-web -o data.tar\n  asb volume export data-web | zstd > data.tar.zst"
    )]
    Export(Export),
    /// Put the files of a tar archive into a volume; files of the same names are replaced, others stay
    #[command(
        after_help = "Examples:\n  asb volume import data-web data.tar\n  zstd -dc data.tar.zst | asb volume import data-web"
    )]
    Import(Import),
}

#[derive(Debug, clap::Args)]
pub struct List {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// In all namespaces
    #[arg(long, short = 'A')]
    pub all_namespaces: bool,
    #[command(flatten)]
    pub target: Target,
}

#[derive(Debug, clap::Args)]
pub struct Export {
    /// The volume, as `asb volume ls` names it
    pub name: String,
    /// The archive; `-` is standard output
    #[arg(long, short, default_value = "-", value_name = "FILE")]
    pub output: PathBuf,
    /// Even while a sandbox writes to it: files may be halfway
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub target: Target,
}

#[derive(Debug, clap::Args)]
pub struct Import {
    /// The volume, as `asb volume ls` names it
    pub name: String,
    /// The archive; `-` is standard input
    #[arg(default_value = "-", value_name = "FILE")]
    pub input: PathBuf,
    /// Even while a sandbox uses it
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub target: Target,
}

/// Volumes with files in them that became shorter while they were copied.
pub type CutFiles = Vec<(String, PathBuf)>;

/// Names come from a sandbox: no terminal obeys them.
pub fn tell_cut(files: &CutFiles) {
    for (volume, path) in files {
        let path = path.display().to_string();
        eprintln!(
            "warning: {volume}: {} became shorter while it was copied; zeros stand for the rest",
            path.escape_debug()
        );
    }
}

pub async fn run(data_dir: &DataDir, command: Command) -> anyhow::Result<ExitCode> {
    let client = connect::running_client(data_dir).await?;
    match command {
        Command::Ls(list) => list::run(data_dir, client, list, false).await?,
        Command::Du(list) => list::run(data_dir, client, list, true).await?,
        Command::Export(export) => archive::export(data_dir, client, export).await?,
        Command::Import(import) => archive::import(data_dir, client, import).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The directory of a claim, if it has one by now.
fn directory(data_dir: &DataDir, claim: &PersistentVolumeClaim) -> Option<PathBuf> {
    let name = claim.spec.as_ref()?.volume_name.as_deref().filter(|name| is_plain(name))?;
    let path = data_dir.path().join("volumes").join(name);
    path.is_dir().then_some(path)
}

/// Whether this is the name of a volume. It becomes that of a directory, and objects come from elsewhere: from a backup.
pub fn is_plain(name: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    name.len() <= 253
        && name.bytes().all(known)
        && !name.starts_with(['-', '.'])
        && !name.ends_with(['-', '.'])
        && !name.is_empty()
}

/// The Pods that use a claim and have not ended.
pub fn users<'a>(claim: &PersistentVolumeClaim, pods: &'a [Pod]) -> Vec<&'a str> {
    let uses = |pod: &Pod| {
        let over = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let mut names =
            volumes.filter_map(|volume| volume.persistent_volume_claim.as_ref()).map(|it| &it.claim_name);
        pod.namespace() == claim.namespace()
            && !matches!(over, Some("Succeeded" | "Failed"))
            && names.any(|name| *name == claim.name_any())
    };
    pods.iter().filter(|pod| uses(pod)).filter_map(|pod| pod.metadata.name.as_deref()).collect()
}

/// The directory of a volume that nobody uses, unless forced.
async fn free_directory(
    data_dir: &DataDir,
    client: &Client,
    target: &Target,
    name: &str,
    force: bool,
) -> anyhow::Result<PathBuf> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &target.namespace);
    let claim = claims
        .get_opt(name)
        .await?
        .ok_or_else(|| hinted(format!("no volume `{name}`"), "`asb volume ls` lists those that are there"))?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &target.namespace);
    let pods = pods.list(&ListParams::default()).await?.items;
    if let Some(user) = users(&claim, &pods).first().filter(|_| !force) {
        return Err(hinted(
            format!("volume `{name}` is used by `{user}`"),
            format!("`asb stop {user}` keeps the volume; or use --force"),
        ));
    }
    directory(data_dir, &claim).ok_or_else(|| {
        hinted(
            format!("volume `{name}` has no files yet"),
            "it is made when a sandbox first uses it; start that once",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_claim_that_names_something_else_than_a_volume_has_no_directory() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("volumes/pvc-1")).unwrap();
        let data_dir = DataDir::choose(Some(dir.path())).unwrap();
        let of = |name: &str| {
            let claim = json!({"metadata": {"name": "data"}, "spec": {"volumeName": name}});
            directory(&data_dir, &serde_json::from_value(claim).unwrap())
        };
        assert_eq!(of("pvc-1"), Some(dir.path().join("volumes/pvc-1")));
        for name in ["", ".", "..", "../volumes/pvc-1", "/", "/etc", "pvc-1/", "pvc-2"] {
            assert_eq!(of(name), None, "{name}");
        }
    }

    #[test]
    fn users_are_pods_of_the_namespace_that_have_not_ended() {
        let claim: PersistentVolumeClaim =
            serde_json::from_value(json!({"metadata": {"name": "data", "namespace": "a"}})).expect("a claim");
        let pod = |name: &str, namespace: &str, claim: &str, phase: &str| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"name": name, "namespace": namespace}, "status": {"phase": phase},
                "spec": {"containers": [], "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]},
            }))
            .expect("a Pod")
        };
        let pods = [
            pod("runs", "a", "data", "Running"),
            pod("ended", "a", "data", "Succeeded"),
            pod("other", "a", "else", "Running"),
            pod("elsewhere", "b", "data", "Running"),
        ];
        assert_eq!(users(&claim, &pods), ["runs"]);
    }
}
