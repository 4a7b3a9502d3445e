//! One list of built-in objects, put to a real kube-apiserver and to ours: both must accept the same, with the same
//! defaults, and refuse the same, by the same fields.
//!
//! A difference on purpose is listed by path under `differs`, with the sentence of COMPATIBILITY.md that says so under
//! `because`. `pending` says why a difference is not resolved yet; such a case is only reported.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use http_body_util::BodyExt as _;
use kube::Client;
use serde::Deserialize;
use serde_json::{Value, json};

const FOLDER: &str = "crates/apiserver/tests/differential";
const FILES: [&str; 5] = ["pods.yaml", "placement.yaml", "config.yaml", "storage.yaml", "definitions.yaml"];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    case: String,
    object: Option<Value>,
    /// Fields of the spec of a Pod with one container.
    pod: Option<Value>,
    /// Fields of that container.
    container: Option<Value>,
    /// A merge patch, put to the object that was created.
    change: Option<Value>,
    #[serde(default)]
    strict: bool,
    #[serde(default)]
    differs: BTreeSet<String>,
    because: Option<String>,
    pending: Option<String>,
}

/// What a server made of an object: lines by path.
type Outcome = BTreeMap<String, String>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_servers_make_the_same_of_every_object() {
    let kubernetes = tokio::task::spawn_blocking(asb_testing::Kubernetes::start).await.expect("it starts");
    let theirs = kubernetes.client().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let server = embedded(dir.path()).await;
    let ours = server.client("default");
    let only = std::env::var("ASB_ONLY").unwrap_or_default();
    let (mut wrong, mut pending) = (Vec::new(), Vec::new());
    let sentences = words(&read("../../../../COMPATIBILITY.md"));
    for (at, case) in cases().into_iter().enumerate().filter(|(_, case)| case.case.contains(&only)) {
        let object = case.object(at);
        let expected = put(&theirs, &object, &case).await;
        let found = put(&ours, &object, &case).await;
        let paths: BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
        // Of an object that one of them refuses there is nothing to compare.
        let differs: BTreeSet<String> = if expected["code"] != found["code"] {
            BTreeSet::from(["code".to_owned()])
        } else {
            paths.into_iter().filter(|path| expected.get(*path) != found.get(*path)).cloned().collect()
        };
        let show = |path: &String| {
            let of = |outcome: &Outcome| outcome.get(path).cloned().unwrap_or_else(|| "–".to_owned());
            format!("\n  {path}: kube-apiserver {}, ours {}", of(&expected), of(&found))
        };
        let shown: String = differs.iter().map(show).collect();
        match (&case.pending, &case.because) {
            (Some(why), _) => pending.push(format!("{} ({why}):{shown}", case.case)),
            (None, Some(because)) if !sentences.contains(&words(because)) => {
                wrong.push(format!("{}: COMPATIBILITY.md does not say {because:?}", case.case));
            }
            (None, because) => {
                assert_eq!(because.is_some(), !case.differs.is_empty(), "{}", case.case);
                if differs != case.differs {
                    wrong.push(format!(
                        "{}: expected to differ in {:?}, but:{shown}",
                        case.case, case.differs
                    ));
                }
            }
        }
    }
    println!("pending:\n{}", pending.join("\n"));
    assert!(wrong.is_empty(), "{} cases are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

impl Case {
    fn object(&self, at: usize) -> Value {
        let mut object = self.object.clone().unwrap_or_else(|| {
            let mut container = json!({ "name": "main", "image": "app:1" });
            extend(&mut container, self.container.as_ref());
            let mut spec = json!({ "containers": [container] });
            extend(&mut spec, self.pod.as_ref());
            json!({ "apiVersion": "v1", "kind": "Pod", "spec": spec })
        });
        if object["metadata"].get("name").is_none() {
            object["metadata"]["name"] = format!("case-{at}").into();
        }
        object
    }
}

fn extend(object: &mut Value, fields: Option<&Value>) {
    for (name, value) in fields.and_then(Value::as_object).into_iter().flatten() {
        object[name] = value.clone();
    }
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn read(file: &str) -> String {
    let path = asb_testing::root().join(FOLDER).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn cases() -> Vec<Case> {
    let parse = |file: &str| {
        let cases = serde_saphyr::from_str::<Vec<Case>>(&read(file));
        cases.unwrap_or_else(|error| panic!("{file}: {error}"))
    };
    FILES.into_iter().flat_map(parse).collect()
}

async fn embedded(dir: &Path) -> asb_apiserver::ApiServer {
    let config = asb_apiserver::Config { data_dir: dir.to_owned(), crds: Vec::new(), node_name: None };
    asb_apiserver::ApiServer::open(config).await.expect("the embedded API server opens")
}

async fn put(client: &Client, object: &Value, case: &Case) -> Outcome {
    let version = object["apiVersion"].as_str().expect("a version");
    let root = if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") };
    let kind = object["kind"].as_str().expect("a kind").to_lowercase();
    let space = match &*kind {
        "persistentvolume" | "namespace" | "customresourcedefinition" | "storageclass" => "",
        _ => "/namespaces/default",
    };
    let plural = match kind.strip_suffix('y').or(kind.strip_suffix("ss")) {
        Some(stem) if kind.ends_with('y') => format!("{stem}ies"),
        Some(_) => format!("{kind}es"),
        None => format!("{kind}s"),
    };
    let path = format!("{root}{space}/{plural}");
    let query = if case.strict { "?fieldValidation=Strict" } else { "" };
    let mut answer = call(client, "POST", &format!("{path}{query}"), object).await;
    if let Some(change) = case.change.as_ref().filter(|_| answer.0 == 201) {
        let name = object["metadata"]["name"].as_str().expect("a name");
        answer = call(client, "PATCH", &format!("{path}/{name}{query}"), change).await;
    }
    outcome(answer)
}

/// The code, the object or the error, and the warnings about fields.
async fn call(client: &Client, method: &str, path: &str, body: &Value) -> (u16, Value, BTreeSet<String>) {
    let media_type = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let request = http::Request::builder().method(method).uri(path).header("content-type", media_type);
    let request = request.body(kube::client::Body::from(body.to_string().into_bytes())).expect("valid");
    let response = client.send(request).await.expect("an answer");
    let code = response.status().as_u16();
    let warnings = response.headers().get_all("warning").iter().filter_map(|text| text.to_str().ok());
    let fields = warnings.filter(|text| text.contains("field")).map(str::to_owned).collect();
    let raw = response.into_body().collect().await.expect("a body").to_bytes();
    (code, serde_json::from_slice(&raw).expect("JSON"), fields)
}

fn outcome((code, mut body, warnings): (u16, Value, BTreeSet<String>)) -> Outcome {
    let mut outcome = Outcome::from([(
        "code".to_owned(),
        if code < 300 { "accepted".to_owned() } else { code.to_string() },
    )]);
    if code >= 300 {
        outcome.insert("reason".to_owned(), body["reason"].to_string());
        let causes = body["details"]["causes"].as_array().into_iter().flatten();
        let mut fields: Vec<_> = causes.map(|cause| cause["field"].as_str().unwrap_or_default()).collect();
        fields.sort_unstable();
        fields.dedup();
        outcome.insert("fields".to_owned(), fields.join(" "));
        return outcome;
    }
    outcome.extend(warnings.into_iter().map(|text| (format!("warning {text}"), String::new())));
    body.as_object_mut().expect("an object").remove("status");
    let metadata = body["metadata"].as_object_mut().expect("metadata");
    for field in ["uid", "creationTimestamp", "resourceVersion", "managedFields"] {
        metadata.remove(field);
    }
    // A moment later it is there on a cluster too.
    if metadata["name"].as_str().is_some_and(|name| name.ends_with(".example.com")) {
        metadata.remove("finalizers");
    }
    // Admission gives Pods an account, which the real server is started without.
    for field in ["serviceAccount", "serviceAccountName"] {
        if body["spec"][field] == "default" {
            body["spec"].as_object_mut().expect("a spec").remove(field);
        }
    }
    flatten("", &body, &mut outcome);
    outcome
}

fn flatten(path: &str, value: &Value, lines: &mut Outcome) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            fields.iter().for_each(|(name, value)| flatten(&below(name), value, lines));
        }
        Value::Array(items) if !items.is_empty() => {
            items.iter().enumerate().for_each(|(at, value)| flatten(&format!("{path}[{at}]"), value, lines));
        }
        leaf => drop(lines.insert(path.to_owned(), leaf.to_string())),
    }
}
