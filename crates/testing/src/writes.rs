//! Counts what is written through a client, by verb and resource.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use kube::Client;
use kube::client::Body;

/// How often each kind of write was sent, such as `PATCH sandboxes/status`.
#[derive(Debug, Clone, Default)]
pub struct Writes(Arc<Mutex<BTreeMap<String, usize>>>);

impl Writes {
    /// A client that counts here and passes everything on.
    pub fn through(&self, client: Client) -> Client {
        let (writes, namespace) = (self.clone(), client.default_namespace().to_owned());
        let counted = move |request: http::Request<Body>| {
            writes.count(request.method(), request.uri().path());
            let client = client.clone();
            async move { client.send(request).await }
        };
        Client::new(tower::service_fn(counted), namespace)
    }

    /// What was counted since the last call.
    pub fn take(&self) -> BTreeMap<String, usize> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn count(&self, method: &http::Method, path: &str) {
        if method != http::Method::GET {
            let key = format!("{method} {}", resource(path));
            *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default() += 1;
        }
    }
}

/// The resource and subresource of a namespaced path, without the names.
fn resource(path: &str) -> String {
    let mut parts = path.split('/').skip_while(|part| *part != "namespaces").skip(2);
    let resource = parts.next().unwrap_or(path);
    match parts.nth(1) {
        Some(subresource) => format!("{resource}/{subresource}"),
        None => resource.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_told_apart_by_verb_and_resource() {
        let writes = Writes::default();
        for (method, path) in [
            (http::Method::GET, "/api/v1/namespaces/ns/pods"),
            (http::Method::POST, "/api/v1/namespaces/ns/pods"),
            (http::Method::PATCH, "/apis/g/v1/namespaces/ns/sandboxes/a/status"),
            (http::Method::PATCH, "/apis/g/v1/namespaces/ns/sandboxes/a"),
            (http::Method::PATCH, "/apis/g/v1/namespaces/ns/sandboxes/b"),
        ] {
            writes.count(&method, path);
        }
        let wanted = [("PATCH sandboxes", 2), ("PATCH sandboxes/status", 1), ("POST pods", 1)];
        assert_eq!(writes.take(), wanted.map(|(key, count)| (key.to_owned(), count)).into());
        assert!(writes.take().is_empty());
    }
}
