//! The environment of a container: Services, `envFrom`, then `env`, by the kubelet's rules. Pure.
//!
//! What is imported comes first, later entries win, and only `env[].value` is expanded, with what the Pod itself set
//! before it: the variables of the image are not known to Kubernetes.

use std::net::{Ipv4Addr, Ipv6Addr};

use k8s_openapi::api::core::v1::{Container, EnvFromSource, EnvVarSource, Pod};

use super::container::Slot;
use super::downward::{self, Ceiling};
use super::expand::expand;
use super::spec::Refusal;
use crate::references::{Kind, References};

/// What variables are made from, besides the Pod.
pub struct Sources<'a> {
    pub references: &'a References,
    /// What tells the Pod of Services.
    pub links: &'a [(String, String)],
    pub address: Ipv4Addr,
    pub address6: Option<Ipv6Addr>,
    pub ceiling: Ceiling,
}

/// The variables that a Pod sets for one of its containers.
pub fn variables(
    pod: &Pod,
    slot: Slot,
    container: &Container,
    sources: &Sources<'_>,
) -> Result<Vec<(String, String)>, Refusal> {
    let mut env = sources.links.to_vec();
    for source in container.env_from.iter().flatten() {
        for (name, value) in imported(source, sources.references, slot)? {
            set(&mut env, &name, value);
        }
    }
    for (at, variable) in container.env.iter().flatten().enumerate() {
        let path = format!("{}.env[{at}].valueFrom", slot.path());
        let value = match &variable.value_from {
            Some(source) => referred(pod, container, source, sources, &path)?,
            None => Some(expand(variable.value.as_deref().unwrap_or_default(), &env)),
        };
        if let Some(value) = value {
            set(&mut env, &variable.name, value);
        }
    }
    Ok(env)
}

pub fn set(env: &mut Vec<(String, String)>, name: &str, value: String) {
    match env.iter_mut().find(|(key, _)| key == name) {
        Some(entry) => entry.1 = value,
        None => env.push((name.to_owned(), value)),
    }
}

/// What one entry of `envFrom` adds. Keys that a shell cannot name are variables too, as with a kubelet.
fn imported(
    source: &EnvFromSource,
    references: &References,
    slot: Slot,
) -> Result<Vec<(String, String)>, Refusal> {
    let map = source.config_map_ref.as_ref().map(|it| (Kind::ConfigMap, &it.name, it.optional));
    let secret = source.secret_ref.as_ref().map(|it| (Kind::Secret, &it.name, it.optional));
    let (kind, name, optional) = map.or(secret).ok_or_else(|| {
        let message = format!("{}.envFrom: each entry needs configMapRef or secretRef", slot.path());
        Refusal::new("Unsupported", message)
    })?;
    let Some(object) = references.get(kind, name) else {
        return if optional == Some(true) { Ok(Vec::new()) } else { Err(missing(kind, name)) };
    };
    let prefix = source.prefix.as_deref().unwrap_or_default();
    let named = object.data.iter().map(|(key, value)| (format!("{prefix}{key}"), key, value));
    let set = named.filter(|(variable, ..)| is_name(variable));
    set.map(|(variable, key, value)| Ok((variable, text(value, key, kind, name, references)?))).collect()
}

/// The value of one `valueFrom`; `None` when it is optional and not there.
fn referred(
    pod: &Pod,
    container: &Container,
    source: &EnvVarSource,
    sources: &Sources<'_>,
    path: &str,
) -> Result<Option<String>, Refusal> {
    let unsupported = |problem: String| Refusal::new("Unsupported", format!("{path}.{problem}"));
    if let Some(field) = &source.field_ref {
        let value = downward::field_for_variable(pod, &field.field_path, sources.address, sources.address6);
        return value.map(Some).map_err(|problem| unsupported(format!("fieldRef.fieldPath: {problem}")));
    }
    if let Some(selector) = &source.resource_field_ref {
        let named = selector.container_name.as_deref().filter(|name| !name.is_empty());
        let asked = match named {
            None => Some(container),
            Some(name) => Slot::named(pod, name).and_then(|slot| slot.of(pod)),
        };
        let asked = asked.ok_or_else(|| {
            unsupported("resourceFieldRef.containerName: names no container of this Pod".to_owned())
        })?;
        let value = downward::resource(asked, selector, sources.ceiling);
        return value.map(Some).map_err(|problem| unsupported(format!("resourceFieldRef.{problem}")));
    }
    let map = source.config_map_key_ref.as_ref().map(|it| (Kind::ConfigMap, &it.name, &it.key, it.optional));
    let secret = source.secret_key_ref.as_ref().map(|it| (Kind::Secret, &it.name, &it.key, it.optional));
    let (kind, name, key, optional) = map.or(secret).ok_or_else(|| {
        Refusal::new(
            "Unsupported",
            format!("{path}: needs configMapKeyRef, secretKeyRef, fieldRef or resourceFieldRef"),
        )
    })?;
    let references = sources.references;
    let object = references.get(kind, name);
    match (object, object.and_then(|object| object.data.get(key))) {
        (Some(_), Some(value)) => text(value, key, kind, name, references).map(Some),
        _ if optional == Some(true) => Ok(None),
        (None, _) => Err(missing(kind, name)),
        (Some(_), None) => {
            Err(not_yet(format!("couldn't find key {key} in {kind} {}/{name}", references.namespace)))
        }
    }
}

fn missing(kind: Kind, name: &str) -> Refusal {
    not_yet(format!("{} {name:?} not found", kind.to_string().to_lowercase()))
}

fn text(value: &[u8], key: &str, kind: Kind, name: &str, references: &References) -> Result<String, Refusal> {
    String::from_utf8(value.to_vec()).map_err(|_| {
        let at = format!("{kind} {}/{name}", references.namespace);
        not_yet(format!("key {key} in {at} is not UTF-8 text; mount it as a volume"))
    })
}

/// The Pod waits: the object may still come or change.
fn not_yet(message: String) -> Refusal {
    Refusal::new("CreateContainerConfigError", message)
}

/// What a kubelet takes for the name of a variable: text in ASCII without `=`.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'=')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn references() -> References {
        References::of(&[
            (Kind::ConfigMap, "map", &[("A", "from map"), ("1bad", "x"), ("..", "x"), ("DOT.ted", "ok")]),
            (Kind::Secret, "secret", &[("A", "from secret"), ("password", "hunter2")]),
        ])
    }

    fn with(container: serde_json::Value, references: &References) -> Result<Vec<(String, String)>, Refusal> {
        let (pod, container) = pod(container);
        let ceiling = Ceiling { memory: 1 << 30, cpus: 2, disk: 1 << 40 };
        variables(
            &pod,
            Slot::Main(0),
            &container,
            &Sources { references, links: &[], address: Ipv4Addr::LOCALHOST, address6: None, ceiling },
        )
    }

    #[test]
    fn services_come_first_and_what_the_pod_says_wins() {
        let env = json!([{"name": "B", "value": "$(A_SERVICE_HOST)"}, {"name": "A_PORT", "value": "mine"}]);
        let (pod, container) = pod(json!({"env": env}));
        let ceiling = Ceiling { memory: 1 << 30, cpus: 2, disk: 1 << 40 };
        let (references, address) = (&References::default(), Ipv4Addr::LOCALHOST);
        let links = [("A_SERVICE_HOST", "10.1.1.1"), ("A_PORT", "x")].map(|(a, b)| (a.into(), b.into()));
        let sources = Sources { references, links: &links, address, address6: None, ceiling };
        let env = variables(&pod, Slot::Main(0), &container, &sources).unwrap();
        assert_eq!(pairs(&env), [("A_SERVICE_HOST", "10.1.1.1"), ("A_PORT", "mine"), ("B", "10.1.1.1")]);
    }

    fn pod(container: serde_json::Value) -> (Pod, Container) {
        let mut object = json!({"name": "main"});
        object.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
        let pod = json!({"metadata": {"name": "box"}, "spec": {"containers": [object]}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let container = pod.spec.as_ref().unwrap().containers[0].clone();
        (pod, container)
    }

    fn pairs(env: &[(String, String)]) -> Vec<(&str, &str)> {
        env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }

    #[test]
    fn later_sources_win_and_only_plain_values_are_expanded() {
        let env = with(
            json!({
                "envFrom": [{"configMapRef": {"name": "map"}}, {"secretRef": {"name": "secret"}}],
                "env": [
                    {"name": "B", "value": "$(A) $(NAME)"},
                    {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    {"name": "C", "value": "$(NAME)"},
                    {"name": "password", "valueFrom": {"configMapKeyRef": {"name": "map", "key": "A"}}},
                ],
            }),
            &references(),
        )
        .unwrap();
        let expected = [
            ("..", "x"),
            ("1bad", "x"),
            ("A", "from secret"),
            ("DOT.ted", "ok"),
            ("password", "from map"),
            ("B", "from secret $(NAME)"),
            ("NAME", "box"),
            ("C", "box"),
        ];
        assert_eq!(pairs(&env), expected);
    }

    #[test]
    fn every_key_is_a_variable_unless_its_prefix_forbids() {
        let names = |prefix: &str| {
            let source = json!({"envFrom": [{"prefix": prefix, "configMapRef": {"name": "map"}}]});
            with(source, &references()).unwrap().into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(names("P_"), ["P_..", "P_1bad", "P_A", "P_DOT.ted"]);
        assert_eq!(names(""), ["..", "1bad", "A", "DOT.ted"]);
        assert_eq!(names("a="), [""; 0]);
    }

    #[test]
    fn what_is_missing_is_named_as_the_kubelet_names_it_unless_it_is_optional() {
        let none = References::of(&[]);
        let key = |kind: &str, optional: bool| json!({"env": [{"name": "X", "valueFrom": {kind: {"name": "gone", "key": "k", "optional": optional}}}]});
        let all =
            |kind: &str, optional: bool| json!({"envFrom": [{kind: {"name": "gone", "optional": optional}}]});
        for (container, message) in [
            (key("configMapKeyRef", false), "configmap \"gone\" not found"),
            (key("secretKeyRef", false), "secret \"gone\" not found"),
            (all("configMapRef", false), "configmap \"gone\" not found"),
            (all("secretRef", false), "secret \"gone\" not found"),
        ] {
            let refused = with(container, &none).unwrap_err();
            assert_eq!((refused.reason, refused.message.as_str()), ("CreateContainerConfigError", message));
        }
        for container in [key("configMapKeyRef", true), key("secretKeyRef", true), all("secretRef", true)] {
            assert_eq!(with(container, &none), Ok(vec![]));
        }
        let lost =
            json!({"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "k"}}}]});
        assert_eq!(with(lost, &references()).unwrap_err().message, "couldn't find key k in Secret ns/secret");
    }

    #[test]
    fn what_cannot_be_asked_is_refused_by_its_path() {
        for (source, path) in [
            (json!({"fieldRef": {"fieldPath": "spec.x"}}), "env[0].valueFrom.fieldRef.fieldPath: "),
            (
                json!({"resourceFieldRef": {"resource": "limits.gpu"}}),
                "env[0].valueFrom.resourceFieldRef.resource: ",
            ),
            (
                json!({"resourceFieldRef": {"resource": "limits.cpu", "containerName": "other"}}),
                "env[0].valueFrom.resourceFieldRef.containerName: ",
            ),
        ] {
            let refused =
                with(json!({"env": [{"name": "X", "valueFrom": source}]}), &references()).unwrap_err();
            assert!(refused.reason == "Unsupported" && refused.message.contains(path), "{refused:?}");
        }
    }
}
