//! Counts what is written through a client, by verb and resource, and lets a test be faster than a write.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use kube::Client;
use kube::client::Body;

/// Kinds of writes are told apart by verb and resource, such as `PATCH sandboxes/status`.
#[derive(Clone, Default)]
pub struct Writes(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    counts: BTreeMap<String, usize>,
    /// What happens before the next write of a kind; it is told the name of the object.
    meddling: BTreeMap<String, Meddling>,
}

type Meddling = Box<dyn FnOnce(String) -> BoxFuture<'static, ()> + Send>;

impl Writes {
    /// A client that counts here and passes everything on.
    pub fn through(&self, client: Client) -> Client {
        let (writes, namespace) = (self.clone(), client.default_namespace().to_owned());
        let counted = move |request: http::Request<Body>| {
            let meddling = writes.count(request.method(), request.uri().path());
            let client = client.clone();
            async move {
                if let Some(meddling) = meddling {
                    meddling.await;
                }
                client.send(request).await
            }
        };
        Client::new(tower::service_fn(counted), namespace)
    }

    /// What was counted since the last call.
    pub fn take(&self) -> BTreeMap<String, usize> {
        std::mem::take(&mut self.lock().counts)
    }

    /// Does something just before the next write of that kind reaches the API server, once.
    pub fn before<F>(&self, kind: &str, meddle: impl FnOnce(String) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.lock().meddling.insert(kind.to_owned(), Box::new(|name| Box::pin(meddle(name))));
    }

    fn count(&self, method: &http::Method, path: &str) -> Option<BoxFuture<'static, ()>> {
        if method == http::Method::GET {
            return None;
        }
        let (resource, name) = resource(path);
        let kind = format!("{method} {resource}");
        let mut state = self.lock();
        *state.counts.entry(kind.clone()).or_default() += 1;
        state.meddling.remove(&kind).map(|meddle| meddle(name))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The resource and subresource of a namespaced path, and the name of the object.
fn resource(path: &str) -> (String, String) {
    let mut parts = path.split('/').skip_while(|part| *part != "namespaces").skip(2);
    let resource = parts.next().unwrap_or(path);
    let name = parts.next().unwrap_or_default().to_owned();
    match parts.next() {
        Some(subresource) => (format!("{resource}/{subresource}"), name),
        None => (resource.to_owned(), name),
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
            assert!(writes.count(&method, path).is_none());
        }
        let wanted = [("PATCH sandboxes", 2), ("PATCH sandboxes/status", 1), ("POST pods", 1)];
        assert_eq!(writes.take(), wanted.map(|(key, count)| (key.to_owned(), count)).into());
        assert!(writes.take().is_empty());
    }
}
