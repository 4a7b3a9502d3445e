//! One corpus of objects, put to a real kube-apiserver with our webhook and to the embedded API server.
//!
//! A case is an object, perhaps a merge patch of it (`change`) or of its status (`status`), and either what it becomes, `v1alpha1` and `v1beta1` (its spec, read at that version), or `refused`: the
//! fields that are wrong. What a case does not say must still be the same on both servers, annotations included.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::*;
use kube::Client;
use serde::Deserialize;
use serde_json::{Map, Value, json};

const CORPUS: &str = "crates/webhook/tests/corpus";
const VERSIONS: [&str; 2] = ["v1alpha1", "v1beta1"];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    case: String,
    object: Value,
    change: Option<Value>,
    status: Option<Value>,
    v1alpha1: Option<Value>,
    v1beta1: Option<Value>,
    refused: Option<Vec<String>>,
}

/// What a server made of an object.
#[derive(Debug, PartialEq)]
enum Outcome {
    /// The object at both versions, without what no two servers share.
    Accepted(BTreeMap<&'static str, Value>),
    /// The wrong fields.
    Refused(Vec<String>),
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_servers_make_the_same_of_every_object() {
    let cluster = Cluster::start().await;
    let _webhook = cluster.webhook(identity()).await;
    cluster.v1alpha1_is_served().await;
    let dir = tempfile::tempdir().unwrap();
    let embedded = embedded(dir.path()).await;
    let mut differences = Vec::new();
    for (at, case) in cases().into_iter().enumerate() {
        let mut object = case.object.clone();
        object["metadata"]["name"] = format!("case-{at}").into();
        object["metadata"]["namespace"] = "default".into();
        let theirs = put(&cluster.client, &object, &case).await;
        let ours = put(&embedded.client("default"), &object, &case).await;
        if theirs != ours {
            differences
                .push(format!("{}:\n  kube-apiserver {theirs:?}\n  embedded       {ours:?}", case.case));
        }
        if let Some(wrong) = case.differs(&theirs) {
            differences.push(format!("{}: expected {wrong}, got {theirs:?}", case.case));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn published_manifests_are_applied_unchanged() {
    let cluster = Cluster::start().await;
    let _webhook = cluster.webhook(identity()).await;
    cluster.v1alpha1_is_served().await;
    let dir = tempfile::tempdir().unwrap();
    let embedded = embedded(dir.path()).await;
    let serving = embedded.serve(([127, 0, 0, 1], 0).into()).await.unwrap();
    let manifest = asb_testing::root().join(CORPUS).join("published.yaml").display().to_string();
    let kinds = "sandboxes.agents.x-k8s.io,sandboxtemplates,sandboxwarmpools,sandboxclaims";
    let mut shown = Vec::new();
    for kubeconfig in [&cluster.kubernetes.kubeconfig, &serving.kubeconfig] {
        kubectl(kubeconfig, &["apply", "-f", &manifest]);
        kubectl(kubeconfig, &["apply", "--server-side", "--force-conflicts", "-f", &manifest]);
        let old = "sandboxes.v1alpha1.agents.x-k8s.io/editor";
        assert_eq!(kubectl(kubeconfig, &["get", old, "-o", "jsonpath={.spec.replicas}"]), "0");
        kubectl(kubeconfig, &["scale", old, "--replicas", "1"]);
        assert_eq!(
            kubectl(kubeconfig, &["get", "sandbox", "editor", "-o", "jsonpath={.spec.operatingMode}"]),
            "Running"
        );
        let list: Value = serde_json::from_str(&kubectl(kubeconfig, &["get", kinds, "-o", "json"])).unwrap();
        let items = list["items"].as_array().unwrap().iter();
        let specs: BTreeMap<String, Value> =
            items.map(|item| (item["metadata"]["name"].to_string(), item["spec"].clone())).collect();
        assert_eq!(specs.len(), 9);
        shown.push(specs);
    }
    assert_eq!(shown[0], shown[1]);
}

impl Case {
    /// What the case expects, if that is not what came out.
    fn differs(&self, outcome: &Outcome) -> Option<String> {
        match outcome {
            Outcome::Refused(fields) => {
                (self.refused.as_ref() != Some(fields)).then(|| format!("{:?}", self.refused))
            }
            Outcome::Accepted(_) if self.refused.is_some() => Some(format!("{:?}", self.refused)),
            Outcome::Accepted(shown) => [(VERSIONS[0], &self.v1alpha1), (VERSIONS[1], &self.v1beta1)]
                .into_iter()
                .filter_map(|(version, spec)| Some((version, spec.as_ref()?)))
                .find(|(version, spec)| shown[version]["spec"] != **spec)
                .map(|(version, spec)| format!("{version} {spec}")),
        }
    }
}

fn cases() -> Vec<Case> {
    let read = |file: &str| {
        let text = std::fs::read_to_string(asb_testing::root().join(CORPUS).join(file))
            .expect("a file of the corpus");
        serde_saphyr::from_str::<Vec<Case>>(&text).unwrap_or_else(|error| panic!("{file}: {error}"))
    };
    ["sandbox.yaml", "extensions.yaml", "changes.yaml"].into_iter().flat_map(read).collect()
}

async fn embedded(dir: &Path) -> asb_apiserver::ApiServer {
    let config =
        asb_apiserver::Config { data_dir: dir.to_owned(), crds: asb_types::crd::all(), node_name: None };
    asb_apiserver::ApiServer::open(config).await.expect("the embedded API server opens")
}

async fn put(client: &Client, object: &Value, case: &Case) -> Outcome {
    let (group, version) =
        object["apiVersion"].as_str().and_then(|it| it.split_once('/')).expect("a version");
    let plural = match object["kind"].as_str().expect("a kind") {
        "Sandbox" => "sandboxes".to_owned(),
        kind => format!("{}s", kind.to_lowercase()),
    };
    let path = |version: &str| format!("/apis/{group}/{version}/namespaces/default/{plural}");
    let one =
        |version: &str| format!("{}/{}", path(version), object["metadata"]["name"].as_str().expect("a name"));
    let mut refused = call(client, "POST", &path(version), Some(object)).await.err();
    let status = case.status.as_ref().map(|status| json!({"status": status}));
    for (below, patch) in [("", &case.change), ("/status", &status)] {
        if let (None, Some(patch)) = (&refused, patch) {
            refused = call(client, "PATCH", &format!("{}{below}", one(version)), Some(patch)).await.err();
        }
    }
    if let Some(fields) = refused {
        return Outcome::Refused(fields);
    }
    let mut shown = BTreeMap::new();
    for version in VERSIONS {
        let object = call(client, "GET", &one(version), None).await.expect("what was accepted can be read");
        shown.insert(version, comparable(object));
    }
    Outcome::Accepted(shown)
}

/// The object that was answered, or the fields that were refused.
async fn call(
    client: &Client,
    method: &str,
    path: &str,
    object: Option<&Value>,
) -> Result<Value, Vec<String>> {
    let body = object.map(|object| object.to_string().into_bytes()).unwrap_or_default();
    let media_type = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let request = http::Request::builder().method(method).uri(path).header("content-type", media_type);
    match client.request(request.body(body).expect("a valid request")).await {
        Ok(object) => Ok(object),
        Err(kube::Error::Api(status)) if status.code == 422 => {
            let causes = status.details.as_ref().map(|details| details.causes.clone()).unwrap_or_default();
            // kube-apiserver repeats what is wrong with a scale, and adds a cause without a field when it skips rules.
            let fields = causes.iter().map(|cause| cause.field.trim_start_matches('.').to_owned());
            let mut fields: Vec<String> = fields.filter(|field| field != "<nil>").collect();
            fields.sort();
            fields.dedup();
            Err(fields)
        }
        Err(error) => panic!("{method} {path}: {error}"),
    }
}

fn comparable(mut object: Value) -> Value {
    let metadata = object["metadata"].as_object_mut().expect("metadata");
    let kept: Map<String, Value> = ["annotations", "generation", "labels", "name"]
        .into_iter()
        .filter_map(|field| Some((field.to_owned(), metadata.remove(field)?)))
        .collect();
    object["metadata"] = kept.into();
    object
}
