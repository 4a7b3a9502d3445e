//! Which ConfigMaps and Secrets a Pod names. Pure.

use k8s_openapi::api::core::v1::{Container, Pod};

use super::spec::container;
use crate::references::{Kind, Reference};

pub fn named(pod: &Pod) -> Vec<Reference> {
    let names = container(pod).into_iter().flat_map(of_container);
    names.map(|(kind, name)| Reference { kind, name: name.to_owned() }).collect()
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
