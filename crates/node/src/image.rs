//! The image of a container: found here, or brought here, as the kubelet does it and in its words.

use std::time::Instant;

use asb_runtime::image::{Error, HOST, Keyring, Lease, Reference};
use asb_runtime::{Image, Images};
use k8s_openapi::api::core::v1::{Container, LocalObjectReference, Pod, Secret};
use kube::{Api, Client, ResourceExt};

use crate::event::Recorder;
use crate::failure::with_causes;
use crate::pod::container::Slot;
use crate::pod::spec::Refusal;

/// When to ask the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Policy {
    Always,
    IfNotPresent,
    Never,
}

/// An image that is here, and stays as long as this does.
pub struct Held {
    pub image: Image,
    _lease: Option<Lease>,
}

pub enum Found {
    Here(Box<Held>),
    /// The registry must be asked.
    Elsewhere(Reference),
}

/// What follows from the policy and from what is here.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Use,
    Pull,
    Missing,
    NeverPull,
}

/// Looks for the image of a container on this machine.
pub async fn find(events: &Recorder, images: &Images, pod: &Pod, slot: Slot) -> Result<Found, Refusal> {
    let name = slot.image(pod).unwrap_or_default();
    let policy = slot.container(pod).map_or(Policy::IfNotPresent, |container| policy(&container));
    let field = field(slot);
    let present =
        || format!("Container image {name:?} already present on machine and can be accessed by the pod");
    if name == HOST {
        events.tell_of(pod, slot, "Pulled", present());
        return Ok(Found::Here(Box::new(Held { image: images.host(), _lease: None })));
    }
    let reference = Reference::parse(name).map_err(|error| {
        Refusal::new(
            "InvalidImageName",
            format!("{field}: failed to apply default image tag {name:?}: {error}"),
        )
    })?;
    let held = held(images, name, &field).await?;
    match step(policy, held.is_some(), images.can_pull(&reference)) {
        Step::Pull => Ok(Found::Elsewhere(reference)),
        Step::NeverPull => {
            let message =
                format!("{field}: container image {name:?} is not present with pull policy of Never");
            Err(Refusal::new("ErrImageNeverPull", message))
        }
        Step::Use | Step::Missing => match held {
            Some(held) => {
                events.tell_of(pod, slot, "Pulled", present());
                Ok(Found::Here(held))
            }
            None => Err(missing(images, name, &field)),
        },
    }
}

/// Brings the image of a container here.
pub async fn pull(
    client: &Client,
    events: &Recorder,
    images: &Images,
    pod: &Pod,
    slot: Slot,
    reference: &Reference,
) -> Result<Box<Held>, Refusal> {
    let (name, field) = (slot.image(pod).unwrap_or_default(), field(slot));
    events.tell_of(pod, slot, "Pulling", format!("Pulling image {name:?}"));
    let (begun, keyring) = (Instant::now(), keyring(client, events, pod).await);
    let waiting = images.turn(reference).await;
    let since = Instant::now();
    images.pull(reference, &keyring, |_| {}).await.map_err(|error| refusal(&error, &field))?;
    drop(waiting);
    let held = held(images, name, &field).await?.ok_or_else(|| missing(images, name, &field))?;
    let message = format!(
        "Successfully pulled image {name:?} in {:?} ({:?} including waiting). Image size: {} bytes.",
        milliseconds(since),
        milliseconds(begun),
        held.image.bytes
    );
    events.tell_of(pod, slot, "Pulled", message);
    Ok(held)
}

/// Whether a refusal is about the image, so that trying again is the business of [`crate::pod::worker`]'s back-off.
pub fn is_about(refusal: &Refusal) -> bool {
    matches!(refusal.reason, "ErrImagePull" | "ErrImageNeverPull" | "InvalidImageName")
}

/// The events that report the failure: reasons and messages.
pub fn failure(image: Option<&str>, refusal: &Refusal) -> [(&'static str, String); 2] {
    let name = image.unwrap_or_default();
    let first = match refusal.reason {
        "ErrImagePull" => ("Failed", format!("Failed to pull image {name:?}: {}", refusal.message)),
        "InvalidImageName" => ("InspectFailed", refusal.message.clone()),
        reason => (reason, refusal.message.clone()),
    };
    [first, ("Failed", format!("Error: {}", refusal.reason))]
}

/// The event that reports the wait for the next try.
pub fn back_off_message(image: Option<&str>) -> String {
    format!("Back-off pulling image {:?}", image.unwrap_or_default())
}

/// How the wait for the next try is told.
pub fn back_off(image: Option<&str>, refusal: &Refusal) -> Refusal {
    let message = format!("{}: {}: {}", back_off_message(image), refusal.reason, refusal.message);
    Refusal::new("ImagePullBackOff", message)
}

fn step(policy: Policy, here: bool, can_pull: bool) -> Step {
    match (policy, here) {
        (Policy::Never, false) => Step::NeverPull,
        (Policy::Never | Policy::IfNotPresent, true) => Step::Use,
        _ if can_pull => Step::Pull,
        // Made on this machine: there is no registry that could have a newer one.
        (_, true) => Step::Use,
        (_, false) => Step::Missing,
    }
}

fn image_name(container: &Container) -> &str {
    container.image.as_deref().unwrap_or_default()
}

/// As the container says; else `Always` for names that another image may have tomorrow.
fn policy(container: &Container) -> Policy {
    match container.image_pull_policy.as_deref() {
        Some("Always") => Policy::Always,
        Some("Never") => Policy::Never,
        Some("IfNotPresent") => Policy::IfNotPresent,
        _ => match Reference::parse(image_name(container)) {
            Ok(reference) if reference.floats() => Policy::Always,
            _ => Policy::IfNotPresent,
        },
    }
}

async fn held(images: &Images, name: &str, field: &str) -> Result<Option<Box<Held>>, Refusal> {
    let (images, name) = (images.clone(), name.to_owned());
    let found = tokio::task::spawn_blocking(move || images.find(&name)).await;
    let found = found.map_err(|error| Refusal::new("ErrImagePull", error.to_string()))?;
    Ok(found
        .map_err(|error| refusal(&error, field))?
        .map(|(image, lease)| Box::new(Held { image, _lease: lease })))
}

/// Logins from `spec.imagePullSecrets`. One that cannot be read is told about, and done without.
async fn keyring(client: &Client, events: &Recorder, pod: &Pod) -> Keyring {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let mut keyring = Keyring::default();
    let mut lost = Vec::new();
    let named = pod.spec.as_ref().and_then(|spec| spec.image_pull_secrets.clone()).unwrap_or_default();
    for LocalObjectReference { name } in named {
        let found = secrets.get(&name).await.map_err(|error| match error {
            kube::Error::Api(status) if status.code == 404 => "there is no such Secret".to_owned(),
            other => other.to_string(),
        });
        match found.and_then(|secret| logins(&secret)) {
            Ok(logins) => keyring.extend(logins),
            Err(problem) => lost.push(format!("{name}: {problem}")),
        }
    }
    if !lost.is_empty() {
        let message = format!(
            "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
            lost.join("; ")
        );
        events.warn(pod, "FailedToRetrieveImagePullSecret", message);
    }
    keyring
}

fn logins(secret: &Secret) -> Result<Keyring, String> {
    let data = |key| secret.data.as_ref().and_then(|data| data.get(key)).map(|bytes| &bytes.0);
    match (data(".dockerconfigjson"), data(".dockercfg")) {
        (Some(text), _) => Keyring::parse(text),
        (None, Some(text)) => Keyring::parse_old(text),
        (None, None) => Err("it has neither .dockerconfigjson nor .dockercfg".to_owned()),
    }
}

/// Where the name of the image stands.
fn field(slot: Slot) -> String {
    format!("{}.image", slot.path())
}

fn refusal(error: &Error, field: &str) -> Refusal {
    let hint = error.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
    Refusal::new("ErrImagePull", format!("{field}: {}{hint}", with_causes(error)))
}

fn missing(images: &Images, name: &str, field: &str) -> Refusal {
    let message = format!(
        "{field}: no image {name:?} on this machine, and its name has no registry; use one of: {}; or name its registry",
        images.names().join(", ")
    );
    Refusal::new("ErrImagePull", message)
}

/// Whole milliseconds, as the kubelet rounds.
fn milliseconds(since: Instant) -> std::time::Duration {
    std::time::Duration::from_millis(since.elapsed().as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn policy_of_the_kubelet_decides_what_is_done() {
        use Policy::{Always, IfNotPresent, Never};
        for (policy, here, can_pull, expected) in [
            (Always, true, true, Step::Pull),
            (Always, false, true, Step::Pull),
            (Always, true, false, Step::Use),
            (Always, false, false, Step::Missing),
            (IfNotPresent, true, true, Step::Use),
            (IfNotPresent, false, true, Step::Pull),
            (IfNotPresent, false, false, Step::Missing),
            (Never, true, true, Step::Use),
            (Never, false, true, Step::NeverPull),
        ] {
            assert_eq!(step(policy, here, can_pull), expected, "{policy:?} {here} {can_pull}");
        }
    }

    #[test]
    fn default_policy_depends_on_the_tag() {
        let of = |value| policy(&serde_json::from_value(value).unwrap());
        for (image, expected) in [
            ("r.test/a", Policy::Always),
            ("r.test/a:latest", Policy::Always),
            ("r.test/a:1", Policy::IfNotPresent),
        ] {
            assert_eq!(of(json!({"name": "c", "image": image})), expected, "{image}");
        }
        assert_eq!(of(json!({"name": "c", "image": "a", "imagePullPolicy": "Never"})), Policy::Never);
    }

    #[test]
    fn secrets_of_both_types_are_read() {
        let secret = |key: &str, text: &str| -> Secret {
            let data =
                json!({"stringData": {}, "data": {key: k8s_openapi::ByteString(text.as_bytes().to_vec())}});
            serde_json::from_value(data).unwrap()
        };
        let entry = r#"{"r.test": {"auth": "dTpw"}}"#;
        let new = logins(&secret(".dockerconfigjson", &format!(r#"{{"auths": {entry}}}"#))).unwrap();
        assert_eq!(logins(&secret(".dockercfg", entry)), Ok(new.clone()));
        assert!(new.find("r.test", "a").is_some());
        assert!(logins(&secret("other", "")).is_err());
    }
}
