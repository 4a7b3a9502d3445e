//! What is in each volume of a Pod: the kubelet's rules, without its effects. Pure.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    DownwardAPIVolumeFile, EmptyDirVolumeSource, HostPathVolumeSource, KeyToPath, Pod, ProjectedVolumeSource,
    Volume,
};

use super::container::Slot;
use super::downward::{self, Ceiling};
use super::quantity::bytes;
use super::spec::Refusal;
use crate::references::{Kind, References};
use crate::volume::Lease;

/// Mode of files whose volume names none.
const FILE_MODE: i32 = 0o644;

/// What a volume is made from.
#[derive(Debug, PartialEq)]
pub enum Content {
    /// An empty directory on disk.
    Empty,
    /// An empty directory in memory; `None`: as large as the container's memory.
    Memory(Option<u64>),
    Claim {
        name: String,
        read_only: bool,
    },
    /// A part of the machine.
    Host(HostPathVolumeSource),
    /// Never written to by the Pod.
    Files(Files),
}

#[derive(Debug, PartialEq, Eq)]
pub struct File {
    pub bytes: Vec<u8>,
    pub mode: u32,
}

/// What files are made from, besides their volume.
pub struct Sources<'a> {
    pub pod: &'a Pod,
    pub references: &'a References,
    pub ceiling: Ceiling,
}

/// By path in the volume.
pub type Files = BTreeMap<PathBuf, File>;

/// A volume that is there to be mounted.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// Where it is on this machine.
    pub path: PathBuf,
    /// What of it is the volume; empty: all of it.
    pub below: PathBuf,
    pub read_only: bool,
    pub medium: Medium,
    /// Of a claimed volume: keeps it from being removed.
    pub _lease: Option<Arc<Lease>>,
}

#[derive(Debug, Clone, Copy)]
pub enum Medium {
    Disk,
    /// `None`: as large as the container's memory.
    Memory(Option<u64>),
}

/// The content of `spec.volumes[at]`.
pub fn content(volume: &Volume, at: usize, sources: &Sources<'_>) -> Result<Content, Refusal> {
    let path = format!("spec.volumes[{at}]");
    if !is_label(&volume.name) {
        let problem = "is not 1 to 63 of the characters a-z, 0-9 and `-`";
        return Err(Refusal::new("Unsupported", format!("{path}.name: {:?} {problem}", volume.name)));
    }
    let mut files = Collector { volume: &volume.name, sources, files: Files::new(), default_mode: FILE_MODE };
    if let Some(claim) = &volume.persistent_volume_claim {
        let read_only = claim.read_only == Some(true);
        return Ok(Content::Claim { name: claim.claim_name.clone(), read_only });
    }
    if let Some(host) = &volume.host_path {
        return Ok(Content::Host(host.clone()));
    }
    if let Some(map) = &volume.config_map {
        files.default_mode = map.default_mode.unwrap_or(FILE_MODE);
        let from = Object { kind: Kind::ConfigMap, name: &map.name, optional: map.optional };
        files.object(&from, map.items.as_deref(), &format!("{path}.configMap"))?;
    } else if let Some(secret) = &volume.secret {
        files.default_mode = secret.default_mode.unwrap_or(FILE_MODE);
        let name = secret.secret_name.as_deref().unwrap_or_default();
        let from = Object { kind: Kind::Secret, name, optional: secret.optional };
        files.object(&from, secret.items.as_deref(), &format!("{path}.secret"))?;
    } else if let Some(source) = &volume.downward_api {
        files.default_mode = source.default_mode.unwrap_or(FILE_MODE);
        files.downward(source.items.as_deref(), &format!("{path}.downwardAPI"))?;
    } else if let Some(projected) = &volume.projected {
        files.default_mode = projected.default_mode.unwrap_or(FILE_MODE);
        files.projected(projected, &format!("{path}.projected"))?;
    } else {
        return volume.empty_dir.as_ref().map_or(Ok(Content::Empty), |source| empty(source, &path));
    }
    Ok(Content::Files(files.files))
}

fn empty(source: &EmptyDirVolumeSource, path: &str) -> Result<Content, Refusal> {
    let unsupported = |field: &str, problem: String| {
        Refusal::new("Unsupported", format!("{path}.emptyDir.{field}: {problem}"))
    };
    let size = source.size_limit.as_ref().map(|quantity| {
        bytes(quantity).ok_or_else(|| unsupported("sizeLimit", format!("{:?} is not a quantity", quantity.0)))
    });
    let size = size.transpose()?.filter(|size| *size > 0);
    match source.medium.as_deref() {
        Some("Memory") => Ok(Content::Memory(size)),
        // Its size is for `disk` to watch.
        None | Some("") => Ok(Content::Empty),
        Some(other) => {
            Err(unsupported("medium", format!("{other:?} is not available; use \"Memory\" or none")))
        }
    }
}

/// A ConfigMap or Secret as a volume names it.
struct Object<'a> {
    kind: Kind,
    name: &'a str,
    optional: Option<bool>,
}

/// Gathers the files of one volume.
struct Collector<'a> {
    volume: &'a str,
    sources: &'a Sources<'a>,
    files: Files,
    default_mode: i32,
}

impl Collector<'_> {
    fn projected(&mut self, projected: &ProjectedVolumeSource, path: &str) -> Result<(), Refusal> {
        for (at, source) in projected.sources.iter().flatten().enumerate() {
            let path = format!("{path}.sources[{at}]");
            if let Some(map) = &source.config_map {
                let from = Object { kind: Kind::ConfigMap, name: &map.name, optional: map.optional };
                self.object(&from, map.items.as_deref(), &format!("{path}.configMap"))?;
            }
            if let Some(secret) = &source.secret {
                let from = Object { kind: Kind::Secret, name: &secret.name, optional: secret.optional };
                self.object(&from, secret.items.as_deref(), &format!("{path}.secret"))?;
            }
            if let Some(downward) = &source.downward_api {
                self.downward(downward.items.as_deref(), &format!("{path}.downwardAPI"))?;
            }
        }
        Ok(())
    }

    /// All keys of an object, or those that `items` names.
    fn object(&mut self, from: &Object<'_>, items: Option<&[KeyToPath]>, path: &str) -> Result<(), Refusal> {
        let optional = from.optional == Some(true);
        let (kind, name) = (from.kind, from.name);
        let Some(object) = self.sources.references.get(kind, name) else {
            let problem = format!("{} {name:?} not found", kind.to_string().to_lowercase());
            return if optional { Ok(()) } else { Err(self.not_yet(&problem)) };
        };
        let Some(items) = items.filter(|items| !items.is_empty()) else {
            for (key, value) in object.data.iter().chain(&object.binary) {
                self.add(key, value.clone(), None, &format!("{path}: the key {key:?}"))?;
            }
            return Ok(());
        };
        for (at, item) in items.iter().enumerate() {
            match object.data.get(&item.key).or_else(|| object.binary.get(&item.key)) {
                Some(value) => {
                    self.add(&item.path, value.clone(), item.mode, &format!("{path}.items[{at}].path"))?;
                }
                None if optional => {}
                None => {
                    let problem = match kind {
                        Kind::ConfigMap => "configmap references non-existent config key",
                        Kind::Secret => "references non-existent secret key",
                    };
                    return Err(self.not_yet(&format!("{problem}: {}", item.key)));
                }
            }
        }
        Ok(())
    }

    fn downward(&mut self, items: Option<&[DownwardAPIVolumeFile]>, path: &str) -> Result<(), Refusal> {
        for (at, item) in items.into_iter().flatten().enumerate() {
            let path = format!("{path}.items[{at}]");
            let text = self
                .told(item)
                .map_err(|problem| Refusal::new("Unsupported", format!("{path}.{problem}")))?;
            self.add(&item.path, text.into_bytes(), item.mode, &format!("{path}.path"))?;
        }
        Ok(())
    }

    fn told(&self, item: &DownwardAPIVolumeFile) -> Result<String, String> {
        let Sources { pod, ceiling, .. } = *self.sources;
        match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => downward::field_for_file(pod, &field.field_path)
                .map_err(|problem| format!("fieldRef.fieldPath: {problem}")),
            (None, Some(selector)) => {
                let asked = selector.container_name.as_deref().unwrap_or_default();
                let container = Slot::named(pod, asked).and_then(|slot| slot.of(pod)).ok_or_else(|| {
                    format!("resourceFieldRef.containerName: {asked:?} names no container of this Pod")
                })?;
                downward::resource(container, selector, ceiling)
                    .map_err(|problem| format!("resourceFieldRef.{problem}"))
            }
            (None, None) => Err("path: needs fieldRef or resourceFieldRef".to_owned()),
        }
    }

    fn add(&mut self, path: &str, bytes: Vec<u8>, mode: Option<i32>, field: &str) -> Result<(), Refusal> {
        if !stays(path) {
            let message = format!("{field}: {path:?} is not a relative path without `..`");
            return Err(Refusal::new("Unsupported", message));
        }
        let mode = mode.unwrap_or(self.default_mode);
        let mode = u32::try_from(mode).ok().filter(|mode| *mode <= 0o777).ok_or_else(|| {
            Refusal::new("Unsupported", format!("{field}: the mode {mode} is not between 0 and 0777"))
        })?;
        self.files.insert(path.into(), File { bytes, mode });
        Ok(())
    }

    /// The Pod waits: the object may still come or change.
    fn not_yet(&self, problem: &str) -> Refusal {
        Refusal::new(
            "FailedMount",
            format!("MountVolume.SetUp failed for volume {:?} : {problem}", self.volume),
        )
    }
}

/// The name of a volume is that of its directory too.
fn is_label(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&name.len()) && name.bytes().all(allowed)
}

/// Whether a path names something below where it starts, and nothing that the kubelet keeps for itself (`..data`).
pub fn stays(path: &str) -> bool {
    let below = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    !path.is_empty() && below && !path.starts_with("..") && !path.contains('\0')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn of(volume: Value) -> Result<Content, Refusal> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "box", "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "main", "resources": {"limits": {"memory": "64Mi"}}}]},
        }))
        .unwrap();
        let references = References::of(&[
            (Kind::ConfigMap, "map", &[("a", "1"), ("b", "2")]),
            (Kind::Secret, "secret", &[("token", "hunter2")]),
            (Kind::ConfigMap, "bad", &[("..", "x")]),
        ]);
        let ceiling = Ceiling { memory: 1 << 30, cpus: 2, disk: 1 << 40 };
        let mut object = json!({"name": "v"});
        object.as_object_mut().unwrap().extend(volume.as_object().unwrap().clone());
        let volume = serde_json::from_value(object).unwrap();
        content(&volume, 0, &Sources { pod: &pod, references: &references, ceiling })
    }

    fn files(volume: Value) -> Vec<(String, String, u32)> {
        let Content::Files(files) = of(volume).unwrap() else { panic!("not files") };
        let row = |(path, file): (PathBuf, File)| {
            (path.to_str().unwrap().to_owned(), String::from_utf8(file.bytes).unwrap(), file.mode)
        };
        files.into_iter().map(row).collect()
    }

    fn row(path: &str, text: &str, mode: u32) -> (String, String, u32) {
        (path.to_owned(), text.to_owned(), mode)
    }

    #[test]
    fn keys_become_files_or_only_the_items_named_each_with_its_mode() {
        assert_eq!(
            files(json!({"configMap": {"name": "map"}})),
            [row("a", "1", 0o644), row("b", "2", 0o644)]
        );
        let secret = json!({"secret": {"secretName": "secret", "defaultMode": 0o400}});
        assert_eq!(files(secret), [row("token", "hunter2", 0o400)]);
        let items = json!([{"key": "b", "path": "deep/er", "mode": 0o600}, {"key": "a", "path": "x"}]);
        let named = json!({"configMap": {"name": "map", "items": items, "defaultMode": 0o444}});
        assert_eq!(files(named), [row("deep/er", "2", 0o600), row("x", "1", 0o444)]);
    }

    #[test]
    fn projected_volume_joins_its_sources_and_the_last_wins() {
        let sources = json!([
            {"configMap": {"name": "map", "items": [{"key": "a", "path": "a"}]}},
            {"secret": {"name": "secret", "items": [{"key": "token", "path": "a"}]}},
            {"secret": {"name": "none", "optional": true}},
            {"downwardAPI": {"items": [
                {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                {"path": "memory", "resourceFieldRef":
                    {"containerName": "main", "resource": "limits.memory", "divisor": "1Mi"}},
            ]}},
        ]);
        let expected =
            [row("a", "hunter2", 0o440), row("labels", "app=\"web\"", 0o440), row("memory", "64", 0o440)];
        assert_eq!(files(json!({"projected": {"sources": sources, "defaultMode": 0o440}})), expected);
    }

    #[test]
    fn what_is_missing_fails_the_mount_unless_it_is_optional() {
        for (volume, problem) in [
            (json!({"configMap": {"name": "none"}}), "configmap \"none\" not found"),
            (json!({"secret": {"secretName": "none"}}), "secret \"none\" not found"),
            (
                json!({"configMap": {"name": "map", "items": [{"key": "z", "path": "z"}]}}),
                "configmap references non-existent config key: z",
            ),
        ] {
            let refused = of(volume).unwrap_err();
            let message = format!("MountVolume.SetUp failed for volume \"v\" : {problem}");
            assert_eq!((refused.reason, refused.message), ("FailedMount", message));
        }
        assert_eq!(files(json!({"configMap": {"name": "none", "optional": true}})), []);
        let item = json!({"name": "map", "optional": true, "items": [{"key": "z", "path": "z"}]});
        assert_eq!(files(json!({"configMap": item})), []);
    }

    #[test]
    fn paths_that_lead_out_are_refused_by_the_field() {
        for path in ["../x", "/etc/passwd", "a/../../b", "..", "..data", ""] {
            let items = json!([{"key": "a", "path": path}]);
            let refused = of(json!({"configMap": {"name": "map", "items": items}})).unwrap_err();
            assert!(refused.message.starts_with("spec.volumes[0].configMap.items[0].path: "), "{refused:?}");
        }
        assert!(of(json!({"configMap": {"name": "bad"}})).unwrap_err().message.contains("the key \"..\""));
    }

    #[test]
    fn names_that_are_no_directory_of_the_pod_are_refused() {
        for name in ["", ".", "..", "../x", "a/b", "/etc", "A"] {
            let refused = of(json!({"name": name, "emptyDir": {}})).unwrap_err();
            assert!(refused.message.starts_with("spec.volumes[0].name: "), "{refused:?}");
        }
    }

    #[test]
    fn empty_directories_are_on_disk_or_in_memory() {
        assert_eq!(of(json!({"emptyDir": {}})), Ok(Content::Empty));
        assert_eq!(of(json!({"emptyDir": {"sizeLimit": "1Gi"}})), Ok(Content::Empty));
        assert_eq!(of(json!({"emptyDir": {"medium": "Memory"}})), Ok(Content::Memory(None)));
        let sized = json!({"emptyDir": {"medium": "Memory", "sizeLimit": "2Mi"}});
        assert_eq!(of(sized), Ok(Content::Memory(Some(2 << 20))));
        for (source, field) in [
            (json!({"sizeLimit": "lots"}), "spec.volumes[0].emptyDir.sizeLimit: "),
            (json!({"medium": "HugePages"}), "spec.volumes[0].emptyDir.medium: "),
        ] {
            let refused = of(json!({"emptyDir": source})).unwrap_err();
            assert!(refused.message.starts_with(field), "{refused:?}");
        }
    }
}
