//! A ServiceAccount called `default` in every namespace, as kube-controller-manager keeps one, and the account of every
//! Pod, as kube-apiserver fills it in.
//!
//! The default account is made with the namespace and again when it was deleted.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use crate::background;
use crate::ops::{Api, WriteOptions};
use crate::registry::pod::MIRROR;
use crate::registry::{NAMESPACES, PODS, Target};
use crate::status::ApiError;
use crate::store::Change;

const ACCOUNTS: &str = "serviceaccounts";
const NAME: &str = "default";
/// The pause before an account is made again after a write that failed.
const AGAIN: Duration = Duration::from_secs(1);

/// Sends the namespace of every change after which the account may be missing.
pub(crate) fn tap(namespaces: UnboundedSender<Box<str>>) -> impl Fn(&Arc<Change>) {
    move |change: &Arc<Change>| {
        let meta = &change.entry.meta;
        let made = *change.key.collection == *NAMESPACES && !change.deleted && change.previous.is_none();
        let lost = *change.key.collection == *ACCOUNTS && change.deleted && *meta.name == *NAME;
        if made || lost {
            let _ = namespaces.send(if made { meta.name.clone() } else { meta.namespace.clone() });
        }
    }
}

/// Names the account of a Pod that is about to be created, with the image pull secrets of the account.
pub(crate) fn fill(api: &Api, target: &Target, namespace: &str, pod: &mut Value) -> Result<(), ApiError> {
    let mirrors = !pod["metadata"]["annotations"][MIRROR].is_null();
    if !target.resource.is("", PODS) || !pod["spec"].is_object() || mirrors {
        return Ok(());
    }
    let named = ["serviceAccountName", "serviceAccount"].map(|field| pod["spec"][field].as_str());
    let name = named.into_iter().flatten().find(|name| !name.is_empty()).unwrap_or(NAME).to_owned();
    let accounts = api.registry.find("", "v1", ACCOUNTS).ok_or_else(ApiError::no_resource)?;
    let account = match api.get(&accounts, namespace, &name) {
        Ok(account) => account.parse(),
        // That of a new namespace is made a moment later.
        Err(_) if name == NAME => Value::Null,
        Err(_) => {
            let why = format!(
                "error looking up service account {namespace}/{name}: serviceaccount {name:?} not found; create it first"
            );
            let pod = pod["metadata"]["name"].as_str().unwrap_or_default();
            return Err(ApiError::forbidden("", PODS, pod, &why));
        }
    };
    let spec = &mut pod["spec"];
    if spec["imagePullSecrets"].as_array().is_none_or(Vec::is_empty) && !account["imagePullSecrets"].is_null()
    {
        spec["imagePullSecrets"] = account["imagePullSecrets"].clone();
    }
    spec["serviceAccountName"] = name.clone().into();
    spec["serviceAccount"] = name.into();
    Ok(())
}

/// Makes the accounts that are missing.
pub(crate) fn complete(api: &Api) {
    for namespace in api.store.list(&Arc::from(NAMESPACES), "").entries {
        ensure(api, &namespace.meta.name);
    }
}

/// Works until the server stops.
pub(crate) async fn run(api: Arc<Api>, mut namespaces: UnboundedReceiver<Box<str>>) {
    loop {
        let namespace = tokio::select! {
            () = api.stopping.cancelled() => return,
            namespace = namespaces.recv() => namespace,
        };
        let Some(namespace) = namespace else { return };
        while background::step("ServiceAccounts", async { ensure(&api, &namespace) }).await == Some(false) {
            tokio::select! {
                () = api.stopping.cancelled() => return,
                () = tokio::time::sleep(AGAIN) => {}
            }
        }
    }
}

/// Makes the account of a namespace, unless it is there. Returns `false` if it has to be tried again.
fn ensure(api: &Api, namespace: &str) -> bool {
    let Some(accounts) = api.registry.find("", "v1", ACCOUNTS) else { return true };
    if api.get(&accounts, namespace, NAME).is_ok() {
        return true;
    }
    let account = json!({ "metadata": { "name": NAME } });
    match api.create(&accounts, namespace, account, &WriteOptions::default()) {
        Ok(_) => true,
        // The namespace may be gone or going away, and another client may have made the account.
        Err(error) if matches!(error.code, 403 | 404 | 409) => true,
        Err(error) => {
            tracing::warn!(namespace, error = error.message, "could not create the default ServiceAccount");
            error.code < 500
        }
    }
}
