//! Users and groups that a Pod names. Pure.
//!
//! A sandbox has the ids 0 to 65535, and those above that its Pod names, as OpenShift gives them.

use asb_runtime::{EXTRA_IDS, Powers};
use k8s_openapi::api::core::v1::Pod;

use super::container::Slot;
use super::spec::Refusal;

/// Above the ids that every sandbox has.
pub const USUAL: u32 = 65_536;
/// The largest id of Kubernetes.
const LARGEST: i64 = i32::MAX as i64;

/// The id that a field has.
pub fn id(value: i64, path: &str) -> Result<u32, Refusal> {
    u32::try_from(value).ok().filter(|_| value <= LARGEST).ok_or_else(|| {
        let message = format!("{path}: {value} is not between 0 and {LARGEST}");
        Refusal::new("CreateContainerConfigError", message)
    })
}

/// The ids above 65535 of all containers, each once. Ephemeral containers come last, so that adding one changes no place, and
/// what they cannot have concerns no other container: the runtime refuses it when they start.
pub fn extra(pod: &Pod, powers: Powers) -> Result<Vec<u32>, Refusal> {
    let mut extra = Vec::new();
    let fixed = Slot::all(pod).into_iter().flat_map(|slot| of_container(pod, slot));
    for (path, value) in of_pod(pod).into_iter().chain(fixed) {
        note(&mut extra, id(value, &path)?, &path, powers)?;
    }
    for slot in Slot::with_ephemeral(pod).into_iter().filter(|slot| matches!(slot, Slot::Ephemeral(_))) {
        for (path, value) in of_container(pod, slot) {
            let _ = id(value, &path).and_then(|id| note(&mut extra, id, &path, powers));
        }
    }
    Ok(extra)
}

fn note(extra: &mut Vec<u32>, id: u32, path: &str, powers: Powers) -> Result<(), Refusal> {
    let refuse = |problem: String| Err(Refusal::new("Unsupported", format!("{path}: {id} is {problem}")));
    if id < USUAL || extra.contains(&id) {
        return Ok(());
    }
    if powers.is_rootless() {
        return refuse("above 65535; an engine that root does not run has no such ids".to_owned());
    }
    if extra.len() == EXTRA_IDS {
        return refuse(format!("one id above 65535 too many; a Pod can name {EXTRA_IDS}"));
    }
    extra.push(id);
    Ok(())
}

/// The fields of the Pod that name an id, and what they say.
fn of_pod(pod: &Pod) -> Vec<(String, i64)> {
    let Some(security) = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref()) else {
        return Vec::new();
    };
    let field = |name: &str, value: Option<i64>| Some((format!("spec.securityContext.{name}"), value?));
    let groups = security.supplemental_groups.iter().flatten().enumerate();
    let groups = groups.map(|(at, group)| (format!("spec.securityContext.supplementalGroups[{at}]"), *group));
    let single = [
        field("runAsUser", security.run_as_user),
        field("runAsGroup", security.run_as_group),
        field("fsGroup", security.fs_group),
    ];
    single.into_iter().flatten().chain(groups).collect()
}

fn of_container(pod: &Pod, slot: Slot) -> Vec<(String, i64)> {
    let container = slot.container(pod);
    let Some(security) = container.as_ref().and_then(|it| it.security_context.as_ref()) else {
        return Vec::new();
    };
    let field =
        |name: &str, value: Option<i64>| Some((format!("{}.securityContext.{name}", slot.path()), value?));
    let fields = [field("runAsUser", security.run_as_user), field("runAsGroup", security.run_as_group)];
    fields.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(security: Value, containers: Value) -> Pod {
        let spec = json!({"securityContext": security, "containers": containers});
        serde_json::from_value(json!({"spec": spec})).unwrap()
    }

    #[test]
    fn ids_above_65535_are_listed_once_in_the_order_of_the_pod() {
        let main = json!([
            {"name": "a", "securityContext": {"runAsUser": 1_000_650_000, "runAsGroup": 7}},
            {"name": "b", "securityContext": {"runAsUser": 70_000, "runAsGroup": 65_536}},
        ]);
        let pod = pod(json!({"fsGroup": 1_000_650_000, "supplementalGroups": [5, 90_000]}), main);
        let expected = vec![1_000_650_000, 90_000, 70_000, 65_536];
        assert_eq!(extra(&pod, Powers::Machine), Ok(expected));
        let refused = extra(&pod, Powers::Range).unwrap_err();
        assert!(refused.message.starts_with("spec.securityContext.fsGroup: 1000650000 "), "{refused:?}");
    }

    #[test]
    fn an_ephemeral_container_changes_no_place() {
        let object = |more: Value| -> Pod {
            let mut spec = json!({"containers": [{"name": "a", "securityContext": {"runAsUser": 80_000}}]});
            spec["ephemeralContainers"] = more;
            serde_json::from_value(json!({"spec": spec})).unwrap()
        };
        let debug = json!([{"name": "debug", "securityContext": {"runAsUser": 70_000}}]);
        assert_eq!(extra(&object(Value::Null), Powers::Machine), Ok(vec![80_000]));
        assert_eq!(extra(&object(debug.clone()), Powers::Machine), Ok(vec![80_000, 70_000]));
        let alone = |more: Value| -> Pod {
            serde_json::from_value(
                json!({"spec": {"containers": [{"name": "a"}], "ephemeralContainers": more}}),
            )
            .unwrap()
        };
        assert_eq!(extra(&alone(debug), Powers::Range), Ok(vec![]), "the Pod goes on without root");
    }

    #[test]
    fn what_cannot_be_is_refused_by_the_field() {
        let many: Vec<i64> = (70_000..70_017).collect();
        for (security, field) in [
            (json!({"runAsUser": -1}), "spec.securityContext.runAsUser: -1 is not between 0 and 2147483647"),
            (json!({"fsGroup": 2_147_483_648_i64}), "spec.securityContext.fsGroup: 2147483648 is not"),
            (
                json!({"supplementalGroups": many}),
                "spec.securityContext.supplementalGroups[16]: 70016 is one",
            ),
        ] {
            let refused = extra(&pod(security, json!([{"name": "a"}])), Powers::Machine).unwrap_err();
            assert!(refused.message.starts_with(field), "{refused:?}");
        }
    }
}
