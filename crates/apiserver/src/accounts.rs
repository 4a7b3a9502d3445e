//! A ServiceAccount called `default` in every namespace, as kube-controller-manager keeps one.
//!
//! It is made with the namespace and again when it was deleted.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use crate::background;
use crate::ops::{Api, WriteOptions};
use crate::registry::NAMESPACES;
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
