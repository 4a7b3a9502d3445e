//! The containers of a Pod: which there are, in the order in which they begin, and what each is called here.

use std::borrow::Cow;

use asb_runtime::SandboxId;
use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod};

use super::spec::Refusal;

/// Where a container stands in its Pod. Main ones come first: they are what a Pod is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Slot {
    Main(usize),
    Init(usize),
    /// Added to a Pod that runs, for people who look into it.
    Ephemeral(usize),
}

/// What a container is to its Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Runs to its end before the next begins.
    Init,
    /// Begins among the init containers and stays for as long as the main ones do.
    Sidecar,
    Main,
    /// Begins when it is added, and once only; nothing waits for it.
    Ephemeral,
}

impl Slot {
    /// Every container that a Pod was made with, in the order in which they begin.
    pub fn all(pod: &Pod) -> Vec<Self> {
        let spec = pod.spec.as_ref();
        let inits = spec.and_then(|spec| spec.init_containers.as_ref()).map_or(0, Vec::len);
        let mains = spec.map_or(0, |spec| spec.containers.len());
        (0..inits).map(Self::Init).chain((0..mains).map(Self::Main)).collect()
    }

    /// The same, and those that were added to it since: they come last, so that the place of none changes.
    pub fn with_ephemeral(pod: &Pod) -> Vec<Self> {
        let added = ephemeral(pod).len();
        Self::all(pod).into_iter().chain((0..added).map(Self::Ephemeral)).collect()
    }

    /// The container of that name.
    pub fn named(pod: &Pod, name: &str) -> Option<Self> {
        Self::with_ephemeral(pod).into_iter().find(|slot| slot.name(pod) == name)
    }

    /// The container whose sandbox has this id.
    pub fn with_id(id: &SandboxId, pod_uid: &str) -> Option<Self> {
        match id.as_str().strip_prefix(pod_uid)?.strip_prefix('-') {
            None => (id.as_str() == pod_uid).then_some(Self::Main(0)),
            Some(rest) => match rest.split_once('-') {
                Some(("init", at)) => at.parse().ok().map(Self::Init),
                Some((EPHEMERAL, at)) => at.parse().ok().map(Self::Ephemeral),
                _ => rest.parse().ok().map(Self::Main),
            },
        }
    }

    /// A container that the Pod was made with.
    pub fn of(self, pod: &Pod) -> Option<&Container> {
        let spec = pod.spec.as_ref()?;
        match self {
            Self::Main(at) => spec.containers.get(at),
            Self::Init(at) => spec.init_containers.as_ref()?.get(at),
            Self::Ephemeral(_) => None,
        }
    }

    /// Any container, as what it has in common with the others.
    pub fn container(self, pod: &Pod) -> Option<Cow<'_, Container>> {
        match self {
            Self::Ephemeral(at) => ephemeral(pod).get(at).map(|added| Cow::Owned(as_container(added))),
            _ => self.of(pod).map(Cow::Borrowed),
        }
    }

    /// The name of any container; empty if the Pod has none there.
    pub fn name(self, pod: &Pod) -> &str {
        match self {
            Self::Ephemeral(at) => ephemeral(pod).get(at).map_or("", |added| &added.name),
            _ => self.of(pod).map_or("", |container| &container.name),
        }
    }

    /// The image of any container, as the Pod names it.
    pub fn image(self, pod: &Pod) -> Option<&str> {
        match self {
            Self::Ephemeral(at) => ephemeral(pod).get(at)?.image.as_deref(),
            _ => self.of(pod)?.image.as_deref(),
        }
    }

    pub fn role(self, pod: &Pod) -> Role {
        match self {
            Self::Main(_) => Role::Main,
            Self::Ephemeral(_) => Role::Ephemeral,
            Self::Init(_) => {
                let policy = self.of(pod).and_then(|container| container.restart_policy.as_deref());
                if policy == Some("Always") { Role::Sidecar } else { Role::Init }
            }
        }
    }

    /// Where it stands in the Pod, for messages.
    pub fn path(self) -> String {
        match self {
            Self::Main(at) => format!("spec.containers[{at}]"),
            Self::Init(at) => format!("spec.initContainers[{at}]"),
            Self::Ephemeral(at) => format!("spec.ephemeralContainers[{at}]"),
        }
    }

    /// The id under which the runtime knows it. The first main container has that of its Pod.
    pub fn sandbox_id(self, pod: &Pod) -> Result<SandboxId, Refusal> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let id = match self {
            Self::Main(0) => uid.to_owned(),
            Self::Main(at) => format!("{uid}-{at}"),
            Self::Init(at) => format!("{uid}-init-{at}"),
            Self::Ephemeral(at) => format!("{uid}-{EPHEMERAL}-{at}"),
        };
        SandboxId::new(id).map_err(|error| Refusal::new("InvalidUID", format!("metadata.uid: {error}")))
    }
}

/// In the ids of their sandboxes.
const EPHEMERAL: &str = "debug";

fn ephemeral(pod: &Pod) -> &[EphemeralContainer] {
    let added = pod.spec.as_ref().and_then(|spec| spec.ephemeral_containers.as_ref());
    added.map(Vec::as_slice).unwrap_or_default()
}

/// What `kubectl debug` asks for unless it is told otherwise: to trace the processes of other containers, which none here sees.
pub const TRACING: &str = "SYS_PTRACE";

/// Without hooks, probes, ports and resources, which it cannot have, and without [`TRACING`].
fn as_container(added: &EphemeralContainer) -> Container {
    let mut added = added.clone();
    let capabilities = added.security_context.as_mut().and_then(|security| security.capabilities.as_mut());
    if let Some(add) = capabilities.and_then(|capabilities| capabilities.add.as_mut()) {
        add.retain(|name| name != TRACING);
    }
    Container {
        args: added.args,
        command: added.command,
        env: added.env,
        env_from: added.env_from,
        image: added.image,
        image_pull_policy: added.image_pull_policy,
        name: added.name,
        security_context: added.security_context,
        stdin: added.stdin,
        stdin_once: added.stdin_once,
        termination_message_path: added.termination_message_path,
        termination_message_policy: added.termination_message_policy,
        tty: added.tty,
        volume_mounts: added.volume_mounts,
        working_dir: added.working_dir,
        ..Container::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_container_has_a_place_a_role_and_an_id_of_its_own() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"uid": "u"}, "spec": {
            "initContainers": [{"name": "a"}, {"name": "b", "restartPolicy": "Always"}],
            "containers": [{"name": "c"}, {"name": "d"}],
            "ephemeralContainers": [{"name": "e", "image": "tools", "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}}],
        }}))
        .unwrap();
        let rows: Vec<_> = Slot::with_ephemeral(&pod)
            .into_iter()
            .map(|slot| (slot.path(), slot.role(&pod), slot.sandbox_id(&pod).unwrap().to_string()))
            .collect();
        let expected = [
            ("spec.initContainers[0]", Role::Init, "u-init-0"),
            ("spec.initContainers[1]", Role::Sidecar, "u-init-1"),
            ("spec.containers[0]", Role::Main, "u"),
            ("spec.containers[1]", Role::Main, "u-1"),
            ("spec.ephemeralContainers[0]", Role::Ephemeral, "u-debug-0"),
        ];
        assert_eq!(rows, expected.map(|(path, role, id)| (path.to_owned(), role, id.to_owned())));
        for slot in Slot::with_ephemeral(&pod) {
            assert_eq!(Slot::with_id(&slot.sandbox_id(&pod).unwrap(), "u"), Some(slot));
        }
        assert_eq!(Slot::with_id(&SandboxId::new("ux").unwrap(), "u"), None);
        assert_eq!(Slot::named(&pod, "b"), Some(Slot::Init(1)));
        assert_eq!(Slot::named(&pod, "z"), None);
        let added = Slot::named(&pod, "e").unwrap();
        assert_eq!((added, added.image(&pod)), (Slot::Ephemeral(0), Some("tools")));
        let container = added.container(&pod).unwrap();
        assert_eq!(container.name, "e");
        assert_eq!(json!(container.security_context), json!({"capabilities": {"add": []}}));
        assert_eq!(Slot::all(&pod).len(), 4, "what the Pod was made with");
    }
}
