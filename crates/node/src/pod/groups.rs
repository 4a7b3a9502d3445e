//! Groups that a Pod's processes and volumes get: `supplementalGroups` and `fsGroup`. Pure.

use k8s_openapi::api::core::v1::{Pod, PodSecurityContext};

use super::ids;
use super::spec::Refusal;

/// The group that volumes are given to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FsGroup {
    pub id: u32,
    /// A volume whose top is right already is left alone.
    pub only_if_the_top_differs: bool,
}

pub fn fs_group(pod: &Pod) -> Result<Option<FsGroup>, Refusal> {
    let Some(security) = security(pod) else { return Ok(None) };
    let only_if_the_top_differs = match security.fs_group_change_policy.as_deref() {
        None | Some("" | "Always") => false,
        Some("OnRootMismatch") => true,
        Some(other) => return Err(unknown("fsGroupChangePolicy", other, "\"Always\" or \"OnRootMismatch\"")),
    };
    let id = security.fs_group.map(|value| group(value, "fsGroup")).transpose()?;
    Ok(id.map(|id| FsGroup { id, only_if_the_top_differs }))
}

/// The supplementary groups of a process whose user is in `of_image`.
pub fn supplementary(pod: &Pod, of_image: &[u32]) -> Result<Vec<u32>, Refusal> {
    let Some(security) = security(pod) else { return Ok(of_image.to_vec()) };
    let mut groups = match security.supplemental_groups_policy.as_deref() {
        None | Some("" | "Merge") => of_image.to_vec(),
        Some("Strict") => Vec::new(),
        Some(other) => return Err(unknown("supplementalGroupsPolicy", other, "\"Merge\" or \"Strict\"")),
    };
    for (at, value) in security.supplemental_groups.iter().flatten().enumerate() {
        groups.push(group(*value, &format!("supplementalGroups[{at}]"))?);
    }
    groups.extend(fs_group(pod)?.map(|group| group.id));
    groups.sort_unstable();
    groups.dedup();
    Ok(groups)
}

fn security(pod: &Pod) -> Option<&PodSecurityContext> {
    pod.spec.as_ref()?.security_context.as_ref()
}

fn group(value: i64, field: &str) -> Result<u32, Refusal> {
    ids::id(value, &format!("spec.securityContext.{field}"))
}

fn unknown(field: &str, value: &str, known: &str) -> Refusal {
    Refusal::new("Unsupported", format!("spec.securityContext.{field}: {value:?} is not known; use {known}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(security: Value) -> Pod {
        serde_json::from_value(json!({"spec": {"containers": [], "securityContext": security}})).unwrap()
    }

    #[test]
    fn groups_of_image_and_pod_come_together() {
        let both = pod(json!({"supplementalGroups": [3000, 4], "fsGroup": 2000}));
        assert_eq!(supplementary(&both, &[4, 5]), Ok(vec![4, 5, 2000, 3000]));
        let strict = pod(json!({"supplementalGroups": [3000], "supplementalGroupsPolicy": "Strict"}));
        assert_eq!(supplementary(&strict, &[4, 5]), Ok(vec![3000]));
        assert_eq!(supplementary(&pod(json!({})), &[5, 4]), Ok(vec![4, 5]));
    }

    #[test]
    fn group_of_volumes_has_a_policy() {
        let group = |security| fs_group(&pod(security)).unwrap();
        assert_eq!(group(json!({})), None);
        assert_eq!(group(json!({"fsGroup": 7})), Some(FsGroup { id: 7, only_if_the_top_differs: false }));
        let policy = json!({"fsGroup": 7, "fsGroupChangePolicy": "OnRootMismatch"});
        assert_eq!(group(policy), Some(FsGroup { id: 7, only_if_the_top_differs: true }));
    }

    #[test]
    fn what_cannot_be_is_refused_by_the_field() {
        for (security, field) in [
            (json!({"fsGroup": 4_294_967_295_i64}), "spec.securityContext.fsGroup: "),
            (json!({"supplementalGroups": [1, -1]}), "spec.securityContext.supplementalGroups[1]: "),
            (
                json!({"fsGroup": 1, "fsGroupChangePolicy": "Never"}),
                "spec.securityContext.fsGroupChangePolicy: ",
            ),
            (json!({"supplementalGroupsPolicy": "None"}), "spec.securityContext.supplementalGroupsPolicy: "),
        ] {
            let refused = supplementary(&pod(security), &[]).unwrap_err();
            assert!(refused.message.starts_with(field), "{refused:?}");
        }
    }
}
