//! Which of a Pod's containers a command means when nobody says so: as kubectl chooses.

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};

const DEFAULT: &str = "kubectl.kubernetes.io/default-container";

/// The container that is meant; `None` when there is nothing to choose from. Asked only after the engine has refused to
/// guess, so that the common case is one round trip.
pub async fn default(pods: &Api<Pod>, name: &str) -> Option<String> {
    choose(&pods.get_opt(name).await.ok()??)
}

fn choose(pod: &Pod) -> Option<String> {
    let containers = &pod.spec.as_ref()?.containers;
    if containers.len() < 2 {
        return None;
    }
    let named = pod.annotations().get(DEFAULT).filter(|name| containers.iter().any(|it| it.name == **name));
    named.or(containers.first().map(|it| &it.name)).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn several_containers_have_a_default_and_a_single_one_needs_none() {
        let of = |default: Option<&str>, names: &[&str]| {
            let containers: Vec<_> = names.iter().map(|name| json!({"name": name})).collect();
            let annotations = json!({DEFAULT: default});
            let metadata = default.map_or(json!({}), |_| json!({"annotations": annotations}));
            choose(
                &serde_json::from_value(json!({"metadata": metadata, "spec": {"containers": containers}}))
                    .unwrap(),
            )
        };
        assert_eq!(of(None, &["a"]), None);
        assert_eq!(of(None, &["a", "b"]).as_deref(), Some("a"));
        assert_eq!(of(Some("b"), &["a", "b"]).as_deref(), Some("b"));
        assert_eq!(of(Some("gone"), &["a", "b"]).as_deref(), Some("a"));
    }
}
