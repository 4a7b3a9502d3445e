//! The containers of a Pod: which there are, in the order in which they begin, and what each is called here.

use asb_runtime::SandboxId;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::spec::Refusal;

/// Where a container stands in its Pod. Main ones come first: they are what a Pod is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Slot {
    Main(usize),
    Init(usize),
}

/// What a container is to its Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Runs to its end before the next begins.
    Init,
    /// Begins among the init containers and stays for as long as the main ones do.
    Sidecar,
    Main,
}

impl Slot {
    /// Every container of a Pod, in the order in which they begin.
    pub fn all(pod: &Pod) -> Vec<Self> {
        let spec = pod.spec.as_ref();
        let inits = spec.and_then(|spec| spec.init_containers.as_ref()).map_or(0, Vec::len);
        let mains = spec.map_or(0, |spec| spec.containers.len());
        (0..inits).map(Self::Init).chain((0..mains).map(Self::Main)).collect()
    }

    /// The container of that name.
    pub fn named(pod: &Pod, name: &str) -> Option<Self> {
        Self::all(pod).into_iter().find(|slot| slot.of(pod).is_some_and(|container| container.name == name))
    }

    /// The container whose sandbox has this id.
    pub fn with_id(id: &SandboxId, pod_uid: &str) -> Option<Self> {
        match id.as_str().strip_prefix(pod_uid)?.strip_prefix('-') {
            None => (id.as_str() == pod_uid).then_some(Self::Main(0)),
            Some(rest) => match rest.strip_prefix("init-") {
                Some(at) => at.parse().ok().map(Self::Init),
                None => rest.parse().ok().map(Self::Main),
            },
        }
    }

    pub fn of(self, pod: &Pod) -> Option<&Container> {
        let spec = pod.spec.as_ref()?;
        match self {
            Self::Main(at) => spec.containers.get(at),
            Self::Init(at) => spec.init_containers.as_ref()?.get(at),
        }
    }

    pub fn role(self, pod: &Pod) -> Role {
        match self {
            Self::Main(_) => Role::Main,
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
        }
    }

    /// The id under which the runtime knows it. The first main container has that of its Pod.
    pub fn sandbox_id(self, pod: &Pod) -> Result<SandboxId, Refusal> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let id = match self {
            Self::Main(0) => uid.to_owned(),
            Self::Main(at) => format!("{uid}-{at}"),
            Self::Init(at) => format!("{uid}-init-{at}"),
        };
        SandboxId::new(id).map_err(|error| Refusal::new("InvalidUID", format!("metadata.uid: {error}")))
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
        }}))
        .unwrap();
        let rows: Vec<_> = Slot::all(&pod)
            .into_iter()
            .map(|slot| (slot.path(), slot.role(&pod), slot.sandbox_id(&pod).unwrap().to_string()))
            .collect();
        let expected = [
            ("spec.initContainers[0]", Role::Init, "u-init-0"),
            ("spec.initContainers[1]", Role::Sidecar, "u-init-1"),
            ("spec.containers[0]", Role::Main, "u"),
            ("spec.containers[1]", Role::Main, "u-1"),
        ];
        assert_eq!(rows, expected.map(|(path, role, id)| (path.to_owned(), role, id.to_owned())));
        for slot in Slot::all(&pod) {
            assert_eq!(Slot::with_id(&slot.sandbox_id(&pod).unwrap(), "u"), Some(slot));
        }
        assert_eq!(Slot::with_id(&SandboxId::new("ux").unwrap(), "u"), None);
        assert_eq!(Slot::named(&pod, "b"), Some(Slot::Init(1)));
        assert_eq!(Slot::named(&pod, "z"), None);
    }
}
