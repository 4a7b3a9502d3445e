//! What a Pod cannot have where root does not run the engine: refused by the field, or told as a warning. Pure.

use asb_runtime::{Enforced, Powers, Process};
use k8s_openapi::api::core::v1::{Container, Pod};

use super::container::Slot;
use super::spec::Refusal;

/// Refuses groups where there is one id, and nobody can change groups.
pub fn check(pod: &Pod, powers: Powers) -> Result<(), Refusal> {
    let security = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let Some(security) = security.filter(|_| powers == Powers::One) else { return Ok(()) };
    let field = if security.fs_group.is_some() {
        "fsGroup"
    } else if security.supplemental_groups.as_ref().is_some_and(|groups| !groups.is_empty()) {
        "supplementalGroups"
    } else {
        return Ok(());
    };
    let message = format!(
        "spec.securityContext.{field}: this engine has one user id and no groups; install `uidmap` and give its user \
         65536 ids in /etc/subuid and /etc/subgid, as `asb doctor` tells"
    );
    Err(Refusal::new("Unsupported", message))
}

/// A process as this engine can start it: the groups that its image names are none where there are no groups.
pub fn fit(process: Process, powers: Powers) -> Process {
    match powers {
        Powers::One => Process { groups: Vec::new(), ..process },
        Powers::Machine | Powers::Range => process,
    }
}

/// Which limits a container asks for in vain.
pub fn unenforced(slot: Slot, container: &Container, enforced: Enforced) -> Option<String> {
    let limits = container.resources.as_ref()?.limits.as_ref()?;
    let missing: Vec<_> = [("memory", enforced.memory), ("cpu", enforced.cpu)]
        .into_iter()
        .filter(|(name, holds)| !holds && limits.contains_key(*name))
        .map(|(name, _)| format!("{}.resources.limits.{name}", slot.path()))
        .collect();
    let fields = (!missing.is_empty()).then(|| missing.join(", "))?;
    Some(format!(
        "{fields}: not enforced, since this engine has no cgroups; `asb doctor` tells how to give it some"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn groups_are_refused_by_the_field_where_there_are_none() {
        let pod = |security| -> Pod {
            serde_json::from_value(json!({"spec": {"containers": [], "securityContext": security}})).unwrap()
        };
        for field in [json!({"fsGroup": 7}), json!({"supplementalGroups": [7]})] {
            let name = field.as_object().unwrap().keys().next().unwrap().clone();
            let refused = check(&pod(field.clone()), Powers::One).unwrap_err();
            assert!(refused.message.starts_with(&format!("spec.securityContext.{name}: ")), "{refused:?}");
            assert!(
                refused.message.contains("uidmap") && refused.message.contains("/etc/subuid"),
                "{refused:?}"
            );
            assert_eq!(check(&pod(field.clone()), Powers::Range), Ok(()));
            assert_eq!(check(&pod(field), Powers::Machine), Ok(()));
        }
        assert_eq!(check(&pod(json!({"runAsUser": 7, "supplementalGroups": []})), Powers::One), Ok(()));
    }

    #[test]
    fn only_limits_that_are_asked_for_in_vain_are_told() {
        let container = |limits| -> Container {
            serde_json::from_value(json!({"name": "main", "resources": {"limits": limits}})).unwrap()
        };
        let none = Enforced { memory: false, cpu: false, processes: false };
        let both = container(json!({"memory": "1Gi", "cpu": "1"}));
        let told = unenforced(Slot::Main(0), &both, none).unwrap();
        assert!(
            told.starts_with(
                "spec.containers[0].resources.limits.memory, spec.containers[0].resources.limits.cpu: "
            ),
            "{told}"
        );
        let memory = Enforced { memory: true, ..none };
        let told = unenforced(Slot::Main(0), &both, memory).unwrap();
        assert!(told.starts_with("spec.containers[0].resources.limits.cpu: "), "{told}");
        assert_eq!(unenforced(Slot::Main(0), &container(json!({"memory": "1Gi"})), memory), None);
        assert_eq!(unenforced(Slot::Main(0), &container(json!({})), none), None);
    }
}
