//! Which ConfigMaps and Secrets a Pod names. Pure.

use k8s_openapi::api::core::v1::{Container, Pod, Volume};

use super::container::Slot;
use crate::references::{Kind, Reference};

pub fn named(pod: &Pod) -> Vec<Reference> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()).flat_map(of_volume);
    let containers: Vec<_> =
        Slot::with_ephemeral(pod).into_iter().filter_map(|slot| slot.container(pod)).collect();
    let of_containers = containers.iter().flat_map(|container| of_container(container));
    let reference = |(kind, name): (Kind, &str)| Reference { kind, name: name.to_owned() };
    of_containers.map(reference).chain(volumes.map(reference)).collect()
}

fn of_container(container: &Container) -> impl Iterator<Item = (Kind, &str)> {
    let imported = container.env_from.iter().flatten().flat_map(|source| {
        let map = source.config_map_ref.as_ref().map(|it| (Kind::ConfigMap, it.name.as_str()));
        let secret = source.secret_ref.as_ref().map(|it| (Kind::Secret, it.name.as_str()));
        map.into_iter().chain(secret)
    });
    let sources = container.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref());
    let single = sources.flat_map(|source| {
        let map = source.config_map_key_ref.as_ref().map(|it| (Kind::ConfigMap, it.name.as_str()));
        let secret = source.secret_key_ref.as_ref().map(|it| (Kind::Secret, it.name.as_str()));
        map.into_iter().chain(secret)
    });
    imported.chain(single)
}

fn of_volume(volume: &Volume) -> impl Iterator<Item = (Kind, &str)> {
    let map = volume.config_map.as_ref().map(|it| (Kind::ConfigMap, it.name.as_str()));
    let secret = volume.secret.as_ref().and_then(|it| Some((Kind::Secret, it.secret_name.as_deref()?)));
    let sources = volume.projected.iter().flat_map(|it| it.sources.iter().flatten());
    let projected = sources.flat_map(|source| {
        let map = source.config_map.as_ref().map(|it| (Kind::ConfigMap, it.name.as_str()));
        let secret = source.secret.as_ref().map(|it| (Kind::Secret, it.name.as_str()));
        map.into_iter().chain(secret)
    });
    map.into_iter().chain(secret).chain(projected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_place_that_can_name_an_object_is_looked_at() {
        let pod = serde_json::from_value(json!({"spec": {
            "initContainers": [{"name": "init", "envFrom": [{"secretRef": {"name": "i"}}]}],
            "containers": [{
                "name": "main",
                "envFrom": [{"configMapRef": {"name": "a"}}, {"secretRef": {"name": "b"}}],
                "env": [
                    {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
                    {"name": "D", "valueFrom": {"secretKeyRef": {"name": "d", "key": "k"}}},
                ],
            }],
            "volumes": [
                {"name": "e", "configMap": {"name": "e"}},
                {"name": "f", "secret": {"secretName": "f"}},
                {"name": "g", "projected": {"sources": [{"configMap": {"name": "g"}}, {"secret": {"name": "h"}}]}},
            ],
        }}));
        let names: String = named(&pod.unwrap()).into_iter().map(|reference| reference.name).collect();
        assert_eq!(names, "iabcdefgh");
    }
}
