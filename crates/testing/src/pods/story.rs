//! A story as it stands in `pods/*.yaml`: a Pod, what is done to it, and the state in which it is compared.
//!
//! A container has `run: SCRIPT` for `command: [sh, -c, SCRIPT]`; without a name it is `main`, without an image it gets one with
//! a shell. What a script wants compared it writes to `/dev/termination-log`.

use serde::Deserialize;
use serde_json::{Value, json};

use super::images::PLAIN;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Story {
    pub name: String,
    /// Objects that are there before the Pod.
    #[serde(default)]
    pub objects: Vec<Value>,
    #[serde(default)]
    annotations: Value,
    pod: Value,
    #[serde(default)]
    pub steps: Vec<Step>,
    /// Lines that are there in the state that is compared; each may be the beginning of one.
    pub until: Vec<String>,
    /// Beginnings of lines that no two kubelets write alike: nobody compares them.
    #[serde(default)]
    pub varies: Vec<String>,
    /// Where our node differs on purpose.
    #[serde(default)]
    pub differs: Option<Difference>,
}

#[derive(Debug, Deserialize)]
pub struct Step {
    /// Lines to wait for before the step.
    #[serde(default)]
    pub after: Vec<String>,
    #[serde(flatten)]
    pub action: Action,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// A script in the container `main`.
    Exec(String),
    /// Deletes the Pod with this grace period, or with its own.
    Delete(Option<u32>),
    /// Another image for the container `main`.
    Image(String),
    Create(Value),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Difference {
    /// Words of COMPATIBILITY.md.
    #[cfg_attr(not(test), expect(dead_code, reason = "a test compares it"))]
    pub because: String,
    /// Lines that only a kubelet has.
    #[serde(default)]
    pub kubelet: Vec<String>,
    /// Lines that only our node has.
    #[serde(default)]
    pub here: Vec<String>,
    /// Beginnings of lines that say nothing on our node.
    #[serde(default)]
    pub ignores: Vec<String>,
}

/// All stories, in the order of their names.
pub fn all() -> Vec<Story> {
    let folder = crate::root().join("crates/testing/pods");
    let files = std::fs::read_dir(folder).expect("the stories are in the repository");
    let files = files.map(|file| file.expect("the folder can be read").path());
    let yaml = files.filter(|path| path.extension().is_some_and(|it| it == "yaml"));
    let mut all: Vec<Story> = yaml.flat_map(|path| read(&path)).collect();
    all.sort_by(|one, other| one.name.cmp(&other.name));
    let twice = all.windows(2).find(|pair| pair[0].name == pair[1].name);
    assert!(twice.is_none(), "two stories have one name: {twice:?}");
    all
}

fn read(path: &std::path::Path) -> Vec<Story> {
    let text = std::fs::read_to_string(path).expect("the file can be read");
    let values: Vec<Value> =
        serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let story = |value: Value| {
        let name = value["name"].clone();
        serde_json::from_value(value).unwrap_or_else(|error| panic!("{}: {name}: {error}", path.display()))
    };
    values.into_iter().map(story).collect()
}

impl Story {
    /// The Pod as it is created.
    pub fn manifest(&self) -> Value {
        let mut spec = self.pod.clone();
        for list in ["initContainers", "containers"] {
            for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                complete(container);
            }
        }
        default(&mut spec, "terminationGracePeriodSeconds", json!(1));
        spec["automountServiceAccountToken"] = json!(false);
        spec["enableServiceLinks"] = json!(false);
        let metadata =
            json!({"name": self.name, "labels": {"story": self.name}, "annotations": self.annotations});
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    }
}

fn complete(container: &mut Value) {
    default(container, "name", json!("main"));
    default(container, "image", json!(PLAIN));
    if let Some(script) = container.as_object_mut().and_then(|it| it.remove("run")) {
        container["command"] = json!(["sh", "-c", script]);
    }
}

fn default(object: &mut Value, field: &str, value: Value) {
    if object.get(field).is_none() {
        object[field] = value;
    }
}
