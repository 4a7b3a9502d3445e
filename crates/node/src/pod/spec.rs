//! From a container of a Pod to what the runtime starts. Pure: everything it needs comes as arguments.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Component, Path, PathBuf};

use asb_runtime::{Capabilities, Image, Limits, MemoryDir, Mount, Sandbox, Spec};
use k8s_openapi::api::core::v1::{Container, Pod, VolumeMount};
use kube::ResourceExt;
use serde_json::json;

use super::capabilities;
use super::common;
use super::container::Slot;
use super::dns;
use super::downward::Ceiling;
use super::env::{self, Sources};
use super::expand::expand;
use super::groups;
use super::hosts;
use super::process::process;
use super::quantity::millis;
use super::volumes::{Medium, Prepared, stays};
use crate::disk;
use crate::references::References;

/// Processes and threads that a sandbox may have at once.
const PIDS: u32 = 1024;
/// The kubelet cuts longer host names.
const HOSTNAME: usize = 63;
/// Where a container that names no file leaves its termination message.
const LAST_WORDS: &str = "/dev/termination-log";
/// Bytes of log kept per sandbox.
const LOG_BYTES: u64 = 16 << 20;

/// Labels under which the runtime remembers what a later engine must know of a sandbox.
pub const LABEL_RESTARTS: &str = "restarts";
/// The Pod as people know it: `NAMESPACE/NAME`.
pub const LABEL_POD: &str = "pod";
/// The image by the name that the Pod had for it.
pub const LABEL_IMAGE: &str = "image";
pub const LABEL_IMAGE_ID: &str = "image-id";
/// The number of the signal that asks the main process to end.
pub const LABEL_STOP_SIGNAL: &str = "stop-signal";
/// The UID of the Pod. Without it, the sandbox is that of an engine that ran one container per Pod.
pub const LABEL_POD_UID: &str = "pod-uid";
/// The name of the container.
pub const LABEL_CONTAINER: &str = "container";
/// Present when the Pod's network namespace has loopback only.
pub const LABEL_ALONE: &str = "alone";
/// Which sandbox of the Pod it was started beside: [`super::common::stamp`].
pub const LABEL_COMMON: &str = "common";

/// What a container's sandbox is made from, besides the Pod.
pub struct Parts<'a> {
    pub image: Image,
    /// What the image wants outside its root.
    pub image_volumes: Vec<Mount>,
    pub address: Ipv4Addr,
    pub address6: Option<Ipv6Addr>,
    /// Whether the Pod has loopback only.
    pub alone: bool,
    /// Who answers when the Pod asks for a name.
    pub resolver: Option<Ipv4Addr>,
    /// By name.
    pub volumes: &'a BTreeMap<String, Prepared>,
    /// ConfigMaps and Secrets that the Pod names.
    pub references: &'a References,
    /// Variables that tell it of Services.
    pub links: &'a [(String, String)],
    pub restarts: u32,
    /// What the containers of the Pod share.
    pub common: Option<&'a Sandbox>,
    /// The limits of a container that names none.
    pub ceiling: Ceiling,
}

/// Why a Pod cannot be run as it is, in the kubelet's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub reason: &'static str,
    pub message: String,
}

impl Refusal {
    pub fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

pub fn translate(pod: &Pod, slot: Slot, parts: Parts<'_>) -> Result<Spec, Refusal> {
    let spec = pod.spec.as_ref().ok_or_else(|| Refusal::new("InvalidPod", "spec: is required"))?;
    let container = slot
        .container(pod)
        .ok_or_else(|| Refusal::new("InvalidPod", "spec.containers: at least one is required"))?;
    let container = &*container;
    let security = container.security_context.as_ref();
    let privileged = security.and_then(|it| it.privileged).unwrap_or(false);
    let Parts { references, links, address, address6, ceiling, .. } = parts;
    let sources = Sources { references, links, address, address6, ceiling };
    let env = env::variables(pod, slot, container, &sources)?;
    let limits = limits(slot, container, parts.ceiling.memory)?;
    let memory = limits.memory_bytes.unwrap_or(parts.ceiling.memory);
    Ok(Spec {
        id: slot.sandbox_id(pod)?,
        driver: Default::default(),
        kernel: Default::default(),
        hostname: hostname(pod),
        read_only_root: security.and_then(|it| it.read_only_root_filesystem).unwrap_or(false),
        capabilities: capabilities_of(slot, container, privileged)?,
        privileged,
        labels: labels(pod, container, &parts),
        process: process(pod, slot, container, &parts.image, &env)?,
        beside: parts.common.map(|common| common.id().clone()),
        memory_dirs: memory_dirs(pod, container, &parts, memory)?,
        extra_ids: Vec::new(), // by what the engine may do
        mounts: mounts(slot, container, parts.volumes, parts.image_volumes, &env)?,
        limits,
        address: Some(parts.address),
        network: false, // the runtime says so where it is true
        resolv_conf: dns::resolv_conf(spec, &pod.namespace().unwrap_or_default(), parts.resolver),
        hosts: Some(hosts::text(pod, address, address6)),
        last_words: Some(last_words(slot, container)?),
        root: parts.image.root,
    })
}

/// What a Pod takes itself for: the name of a Pod can be longer than that of a host.
pub fn hostname(pod: &Pod) -> String {
    let asked = pod.spec.as_ref().and_then(|spec| spec.hostname.clone()).filter(|name| !name.is_empty());
    let mut name = asked.unwrap_or_else(|| pod.name_any());
    if name.len() > HOSTNAME {
        name.truncate(HOSTNAME);
        name.truncate(name.trim_end_matches(['-', '.']).len());
    }
    name
}

fn capabilities_of(slot: Slot, container: &Container, privileged: bool) -> Result<Capabilities, Refusal> {
    let field = container.security_context.as_ref().and_then(|it| it.capabilities.as_ref());
    let path = format!("{}.securityContext.capabilities", slot.path());
    capabilities::of(&json!(field), &path, privileged).map_err(|message| Refusal::new("Unsupported", message))
}

/// The file whose contents are the container's termination message.
fn last_words(slot: Slot, container: &Container) -> Result<PathBuf, Refusal> {
    let path = container.termination_message_path.as_deref().filter(|path| !path.is_empty());
    let path = PathBuf::from(path.unwrap_or(LAST_WORDS));
    let plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
    if path.is_absolute() && path.components().all(plain) && path.file_name().is_some() {
        return Ok(path);
    }
    let message =
        format!("{}.terminationMessagePath: {path:?} is not an absolute path without `..`", slot.path());
    Err(Refusal::new("CreateContainerConfigError", message))
}

fn labels(pod: &Pod, container: &Container, parts: &Parts<'_>) -> BTreeMap<String, String> {
    let name = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
    let signal = parts.image.config.stop_signal().map(|signal| (LABEL_STOP_SIGNAL, signal.to_string()));
    let known = [
        (LABEL_RESTARTS, parts.restarts.to_string()),
        (LABEL_POD, name),
        (LABEL_IMAGE, container.image.clone().unwrap_or_default()),
        (LABEL_IMAGE_ID, parts.image.id.clone()),
        (LABEL_POD_UID, pod.metadata.uid.clone().unwrap_or_default()),
        (LABEL_CONTAINER, container.name.clone()),
    ];
    let alone = parts.alone.then(|| (LABEL_ALONE, String::new()));
    let common = parts.common.map(|common| (LABEL_COMMON, common::stamp(common)));
    known
        .into_iter()
        .chain(signal)
        .chain(alone)
        .chain(common)
        .map(|(label, value)| (label.to_owned(), value))
        .collect()
}

/// Volumes of the Pod, with those of the image that the Pod does not replace; outer ones before those inside them.
fn mounts(
    slot: Slot,
    container: &Container,
    volumes: &BTreeMap<String, Prepared>,
    mut of_image: Vec<Mount>,
    env: &[(String, String)],
) -> Result<Vec<Mount>, Refusal> {
    let mount = |(at, mount): (usize, &VolumeMount)| {
        let refuse = |field: &str, problem: String| {
            let message = format!("{}.volumeMounts[{at}].{field}: {problem}", slot.path());
            Refusal::new("CreateContainerConfigError", message)
        };
        let volume = volumes
            .get(&mount.name)
            .ok_or_else(|| refuse("name", format!("no volume {:?} in spec.volumes", mount.name)))?;
        if !Path::new(&mount.mount_path).is_absolute() {
            return Err(refuse("mountPath", format!("{:?} is not an absolute path", mount.mount_path)));
        }
        let within = sub_path(mount, env).map_err(|(field, problem)| refuse(field, problem))?;
        Ok(Mount {
            source: volume.path.clone(),
            // Joined to nothing, a path would have to be that of a directory.
            sub_path: match within.as_os_str().is_empty() {
                true => volume.below.clone(),
                false => volume.below.join(within),
            },
            target: mount.mount_path.clone().into(),
            read_only: volume.read_only || mount.read_only == Some(true),
        })
    };
    let own = container.volume_mounts.iter().flatten().enumerate().map(mount);
    let own = own.collect::<Result<Vec<_>, _>>()?;
    of_image.retain(|image| own.iter().all(|mount| mount.target != image.target));
    let mut all = [of_image, own].concat();
    all.sort_by_key(|mount| mount.target.components().count());
    Ok(all)
}

/// What of a volume is mounted; empty for all of it.
fn sub_path(mount: &VolumeMount, env: &[(String, String)]) -> Result<PathBuf, (&'static str, String)> {
    let plain = mount.sub_path.as_ref().filter(|path| !path.is_empty());
    let expression = mount.sub_path_expr.as_ref().filter(|path| !path.is_empty());
    let (field, path) = match (plain, expression) {
        (None, None) => return Ok(PathBuf::new()),
        (Some(_), Some(_)) => return Err(("subPathExpr", "excludes subPath; remove one of them".to_owned())),
        (Some(path), None) => ("subPath", path.clone()),
        (None, Some(text)) => ("subPathExpr", expand(text, env)),
    };
    if field == "subPathExpr" && path.contains("$(") {
        return Err((field, format!("{path:?} names a variable that is not set")));
    }
    // `.` alone is all of the volume.
    let path: PathBuf = Path::new(&path).components().filter(|part| *part != Component::CurDir).collect();
    match path.to_str().filter(|text| text.is_empty() || stays(text)) {
        Some(_) => Ok(path),
        None => Err((field, format!("{path:?} is not a relative path without `..`"))),
    }
}

/// Volumes in memory that the container mounts: those that the Pod shares, or else its own, none of which can hold more
/// than the container's memory.
fn memory_dirs(
    pod: &Pod,
    container: &Container,
    parts: &Parts<'_>,
    memory: u64,
) -> Result<Vec<MemoryDir>, Refusal> {
    let group = groups::fs_group(pod)?.map_or(0, |group| group.id);
    let dir = |volume: &Prepared| match volume.medium {
        Medium::Disk => None,
        Medium::Memory(size) => {
            Some(MemoryDir { path: volume.path.clone(), bytes: size.unwrap_or(memory).min(memory), group })
        }
    };
    let mounted = |name: &String| container.volume_mounts.iter().flatten().any(|mount| mount.name == *name);
    Ok(parts.volumes.iter().filter(|(name, _)| mounted(name)).filter_map(|(_, volume)| dir(volume)).collect())
}

pub fn limits(slot: Slot, container: &Container, default_memory: u64) -> Result<Limits, Refusal> {
    let resources = container.resources.as_ref();
    let of = |kind: &str, resource: &str| {
        let all =
            resources.and_then(|it| if kind == "limits" { it.limits.as_ref() } else { it.requests.as_ref() });
        Some((all?.get(resource)?, format!("{}.resources.{kind}.{resource}", slot.path())))
    };
    let read_of = |kind: &str, resource: &str| {
        of(kind, resource)
            .map(|(quantity, path)| {
                millis(quantity).ok_or_else(|| {
                    let message = format!("{path}: {:?} is not a quantity", quantity.0);
                    Refusal::new("CreateContainerConfigError", message)
                })
            })
            .transpose()
    };
    let read = |resource: &str| read_of("limits", resource);
    let small = |millis| u32::try_from(millis).unwrap_or(u32::MAX);
    let memory = read("memory")?.map(|millis| u64::try_from(millis / 1000).unwrap_or(u64::MAX));
    read(disk::RESOURCE)?; // watched, once it runs
    let cpu = read("cpu")?.map(small);
    // Who names only a limit asks for all of it, as kube-apiserver would write.
    let share = read_of("requests", "cpu")?.map(small).or(cpu);
    Ok(Limits {
        memory_bytes: Some(memory.unwrap_or(default_memory)),
        cpu_millis: cpu,
        cpu_share_millis: share,
        pids: PIDS,
        log_bytes: LOG_BYTES,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use asb_runtime::image::Users;
    use asb_runtime::{RootFs, Stdin};
    use serde_json::json;

    fn spec(container: serde_json::Value) -> Result<Spec, Refusal> {
        with_image(container, json!({"Env": ["PATH=/bin"], "WorkingDir": "/root"}))
    }

    fn with_image(container: serde_json::Value, config: serde_json::Value) -> Result<Spec, Refusal> {
        let mut object = json!({"name": "main", "image": "host"});
        object.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
        of_pod(json!({"containers": [object]}), config)
    }

    fn of_pod(spec: serde_json::Value, config: serde_json::Value) -> Result<Spec, Refusal> {
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": "box", "uid": "7f1c"}, "spec": spec}))
                .unwrap();
        let image = Image {
            root: RootFs { layers: vec![], host_dirs: vec![] },
            config: serde_json::from_value(config).unwrap(),
            users: Users::parse("web:x:33:34::/var/www:\n", "log:x:4:web\n"),
            volumes: vec![],
            id: "id".into(),
            bytes: 0,
        };
        let prepared = |path: &str, read_only, medium| Prepared {
            path: path.into(),
            below: PathBuf::new(),
            read_only,
            medium,
            _lease: None,
        };
        let volumes = BTreeMap::from([
            ("data".to_owned(), prepared("/v", false, Medium::Disk)),
            ("map".to_owned(), prepared("/m", true, Medium::Disk)),
            ("memory".to_owned(), prepared("/t", false, Medium::Memory(Some(4 << 30)))),
        ]);
        let volume = |target: &str| Mount {
            source: "/i".into(),
            sub_path: PathBuf::new(),
            target: target.into(),
            read_only: false,
        };
        let parts = Parts {
            image,
            image_volumes: vec![volume("/data"), volume("/cache")],
            address: Ipv4Addr::LOCALHOST,
            address6: None,
            alone: false,
            resolver: None,
            volumes: &volumes,
            references: &References::default(),
            links: &[],
            restarts: 0,
            common: None,
            ceiling: Ceiling { memory: 1 << 30, cpus: 2, disk: 1 << 40 },
        };
        translate(&pod, Slot::Main(0), parts)
    }

    #[test]
    fn command_and_environment_are_expanded_in_order() {
        let spec = spec(json!({
            "command": ["sh", "-c"], "args": ["echo $(A)"],
            "env": [{"name": "A", "value": "x"}, {"name": "B", "value": "$(A)$(C)"}, {"name": "PATH", "value": "/mine"}],
        }))
        .unwrap();
        assert_eq!(spec.process.argv, ["sh", "-c", "echo x"]);
        let env: BTreeMap<_, _> = spec.process.env.into_iter().collect();
        assert_eq!(
            (env["B"].as_str(), env["PATH"].as_str(), env["HOSTNAME"].as_str()),
            ("x$(C)", "/mine", "box")
        );
    }

    #[test]
    fn host_name_is_the_pods_or_what_it_asks_for_and_never_too_long() {
        let of = |spec: serde_json::Value, name: &str| {
            hostname(&serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap())
        };
        assert_eq!(of(json!({"containers": []}), "box"), "box");
        assert_eq!(of(json!({"containers": [], "hostname": "other"}), "box"), "other");
        let long = format!("{}-.{}", "a".repeat(61), "b".repeat(100));
        assert_eq!(of(json!({"containers": []}), &long), "a".repeat(61));
    }

    #[test]
    fn limits_come_from_quantities_and_are_never_absent_for_memory() {
        let limits =
            spec(json!({"resources": {"limits": {"memory": "64Mi", "cpu": "250m"}}})).unwrap().limits;
        assert_eq!((limits.memory_bytes, limits.cpu_millis), (Some(64 << 20), Some(250)));
        assert_eq!(limits.cpu_share_millis, Some(250), "as much as the limit");
        let asked = json!({"resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "100m"}}});
        assert_eq!(spec(asked).unwrap().limits.cpu_share_millis, Some(100));
        assert_eq!(spec(json!({})).unwrap().limits.memory_bytes, Some(1 << 30));
        assert_eq!(spec(json!({})).unwrap().limits.cpu_share_millis, None);
        let refused = spec(json!({"resources": {"limits": {"cpu": "lots"}}})).unwrap_err();
        assert!(refused.message.starts_with("spec.containers[0].resources.limits.cpu: "));
        let refused = spec(json!({"resources": {"limits": {"ephemeral-storage": "lots"}}})).unwrap_err();
        assert!(refused.message.starts_with("spec.containers[0].resources.limits.ephemeral-storage: "));
    }

    #[test]
    fn mounts_must_name_a_volume_and_an_absolute_path() {
        let ok = spec(json!({"volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": true}]}))
            .unwrap();
        let targets: Vec<_> =
            ok.mounts.iter().map(|mount| (mount.source.as_path(), mount.target.as_path())).collect();
        let expected = [(Path::new("/i"), Path::new("/cache")), (Path::new("/v"), Path::new("/data"))];
        assert_eq!(targets, expected, "a volume of the Pod wins over one of the image");
        assert!(ok.mounts[1].read_only);
        for (mount, path) in [
            (json!({"name": "none", "mountPath": "/x"}), "volumeMounts[0].name"),
            (json!({"name": "data", "mountPath": "x"}), "volumeMounts[0].mountPath"),
        ] {
            assert!(spec(json!({"volumeMounts": [mount]})).unwrap_err().message.contains(path));
        }
    }

    #[test]
    fn parts_of_volumes_stay_in_them_and_outer_mounts_come_first() {
        let ok = spec(json!({
            "env": [{"name": "NAME", "value": "box"}],
            "volumeMounts": [
                {"name": "map", "mountPath": "/etc/app/a.conf", "subPath": "a.conf"},
                {"name": "data", "mountPath": "/etc", "subPathExpr": "logs/$(NAME)"},
                {"name": "data", "mountPath": "/all", "subPath": "./"},
                {"name": "memory", "mountPath": "/memory"},
            ],
        }))
        .unwrap();
        let rows: Vec<_> = ok
            .mounts
            .iter()
            .filter(|mount| mount.source != Path::new("/i"))
            .map(|mount| (mount.target.to_str().unwrap(), mount.sub_path.to_str().unwrap(), mount.read_only))
            .collect();
        let expected = [
            ("/etc", "logs/box", false),
            ("/all", "", false),
            ("/memory", "", false),
            ("/etc/app/a.conf", "a.conf", true),
        ];
        assert_eq!(rows, expected);
        let memory: Vec<_> = ok.memory_dirs.iter().map(|it| (it.path.to_str().unwrap(), it.bytes)).collect();
        assert_eq!(memory, [("/t", 1 << 30)], "never more than the container's memory");
        for (field, value) in [
            ("subPath", "../x"),
            ("subPath", "/etc"),
            ("subPath", "a/../../b"),
            ("subPathExpr", "$(NONE)"),
            ("subPathExpr", "$(UP)/x"),
        ] {
            let container = json!({
                "env": [{"name": "UP", "value": ".."}],
                "volumeMounts": [{"name": "data", "mountPath": "/x", field: value}],
            });
            let refused = spec(container).unwrap_err();
            assert!(refused.message.contains(&format!("volumeMounts[0].{field}: ")), "{refused:?}");
        }
    }

    #[test]
    fn entrypoint_and_cmd_follow_the_rules_of_kubernetes() {
        let image = || json!({"Entrypoint": ["/entry"], "Cmd": ["default"]});
        for (container, expected) in [
            (json!({}), vec!["/entry", "default"]),
            (json!({"args": ["a"]}), vec!["/entry", "a"]),
            (json!({"command": ["c"]}), vec!["c"]),
            (json!({"command": ["c"], "args": ["a"]}), vec!["c", "a"]),
        ] {
            assert_eq!(with_image(container, image()).unwrap().process.argv, expected);
        }
    }

    #[test]
    fn input_and_terminal_are_what_the_container_asks_for() {
        for (container, stdin, terminal) in [
            (json!({}), Stdin::Empty, false),
            (json!({"stdinOnce": true}), Stdin::Empty, false),
            (json!({"stdin": true}), Stdin::Open, false),
            (json!({"stdin": true, "stdinOnce": true, "tty": true}), Stdin::Once, true),
        ] {
            let process = spec(container).unwrap().process;
            assert_eq!((process.stdin, process.terminal), (stdin, terminal));
            assert_eq!(process.env.iter().any(|(name, _)| name == "TERM"), terminal);
        }
        let own = json!({"tty": true, "env": [{"name": "TERM", "value": "dumb"}]});
        assert!(spec(own).unwrap().process.env.contains(&("TERM".into(), "dumb".into())));
    }

    #[test]
    fn user_of_the_image_is_found_by_name_and_the_pod_wins() {
        let web = |container| with_image(container, json!({"User": "web"}));
        let process = web(json!({})).unwrap().process;
        assert_eq!((process.uid, process.gid, process.groups.as_slice()), (33, 34, &[4][..]));
        assert!(process.env.contains(&("HOME".into(), "/var/www".into())));
        assert!(web(json!({"securityContext": {"runAsNonRoot": true}})).is_ok());
        let other = web(json!({"securityContext": {"runAsUser": 5}})).unwrap().process;
        assert_eq!((other.uid, other.gid, other.groups.len()), (5, 0, 0));
        let at_home = json!({"User": "web", "WorkingDir": "/var/www"});
        assert_eq!(with_image(json!({}), at_home.clone()).unwrap().process.cwd, Path::new("/var/www"));
        let stranger = json!({"securityContext": {"runAsUser": 5}});
        assert_eq!(with_image(stranger, at_home).unwrap().process.cwd, Path::new("/"));
        let unknown = with_image(json!({}), json!({"User": "nobody"})).unwrap_err();
        assert!(unknown.message.contains("spec.containers[0].image") && unknown.message.contains("nobody"));
    }

    #[test]
    fn what_a_later_engine_must_know_is_in_the_labels() {
        let labels = with_image(json!({}), json!({"StopSignal": "SIGINT"})).unwrap().labels;
        let label = |name| labels.get(name).map(String::as_str);
        assert_eq!((label(LABEL_STOP_SIGNAL), label(LABEL_IMAGE_ID)), (Some("2"), Some("id")));
        assert_eq!((label(LABEL_POD_UID), label(LABEL_CONTAINER)), (Some("7f1c"), Some("main")));
    }

    #[test]
    fn root_is_refused_when_the_pod_says_so() {
        let refused = spec(json!({"securityContext": {"runAsNonRoot": true}})).unwrap_err();
        assert!(refused.message.contains("runAsNonRoot"));
        let user =
            spec(json!({"securityContext": {"runAsNonRoot": true, "runAsUser": 1000, "runAsGroup": 7}}))
                .unwrap();
        assert_eq!((user.process.uid, user.process.gid), (1000, 7));
        let refused = spec(json!({"securityContext": {"runAsUser": 3_000_000_000_i64}})).unwrap_err().message;
        assert!(
            refused.starts_with("spec.containers[0].securityContext.runAsUser: 3000000000 is not"),
            "{refused}"
        );
        let containers = json!([{"name": "main", "image": "host"}]);
        let pod = json!({"containers": containers, "securityContext": {"runAsGroup": -1}});
        let refused = of_pod(pod, json!({})).unwrap_err().message;
        assert!(refused.starts_with("spec.securityContext.runAsGroup: -1 is not"), "{refused}");
    }
}
