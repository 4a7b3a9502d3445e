//! Just enough of a Kubernetes API for two watches.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::channel::mpsc::{UnboundedSender, unbounded};
use futures::{StreamExt, future};
use http::{Request, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use kube::client::Body;
use serde_json::{Value, json};

#[derive(Clone, Default)]
pub struct FakeApi(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Objects by the path of their collection and their name.
    objects: BTreeMap<(&'static str, String), Value>,
    watches: Vec<(&'static str, UnboundedSender<Value>)>,
    down: bool,
}

const PODS: &str = "/api/v1/pods";
const SANDBOXES: &str = "/apis/agents.x-k8s.io/v1beta1/sandboxes";

impl FakeApi {
    pub fn client(&self) -> kube::Client {
        let api = self.clone();
        kube::Client::new(tower::service_fn(move |request| future::ready(api.answer(&request))), "default")
    }

    pub fn apply(&self, object: Value) {
        self.change(object, "MODIFIED");
    }

    pub fn delete(&self, object: Value) {
        self.change(object, "DELETED");
    }

    /// Ends all watches and answers nothing from now on.
    pub fn go_down(&self) {
        let mut state = self.0.lock().unwrap();
        state.down = true;
        state.watches.clear();
    }

    fn change(&self, object: Value, kind: &str) {
        let collection = if object["kind"] == "Pod" { PODS } else { SANDBOXES };
        let mut state = self.0.lock().unwrap();
        let key = (collection, object["metadata"]["name"].as_str().unwrap().to_owned());
        match kind {
            "DELETED" => state.objects.remove(&key),
            _ => state.objects.insert(key, object.clone()),
        };
        let event = json!({"type": kind, "object": object});
        state.watches.retain(|(watched, sender)| {
            *watched != collection || sender.unbounded_send(event.clone()).is_ok()
        });
    }

    fn answer(&self, request: &Request<Body>) -> std::io::Result<Response<UnsyncBoxBody<Bytes, Infallible>>> {
        let mut state = self.0.lock().unwrap();
        if state.down {
            return Err(std::io::ErrorKind::ConnectionRefused.into());
        }
        let collection = [PODS, SANDBOXES].into_iter().find(|path| *path == request.uri().path()).unwrap();
        let query = request.uri().query().unwrap_or_default();
        assert_eq!(
            query.contains("labelSelector=agents.x-k8s.io%2Fsandbox-name-hash"),
            collection == PODS,
            "{query}"
        );
        if query.contains("watch=true") {
            let (sender, receiver) = unbounded();
            state.watches.push((collection, sender));
            let lines = receiver.map(|event: Value| Ok(Frame::data(Bytes::from(format!("{event}\n")))));
            return Ok(Response::new(StreamBody::new(lines).boxed_unsync()));
        }
        let items: Vec<_> =
            state.objects.iter().filter(|(key, _)| key.0 == collection).map(|(_, object)| object).collect();
        let list =
            json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items});
        Ok(Response::new(Full::from(list.to_string()).boxed_unsync()))
    }
}

/// A Ready Pod that a controller made for the Sandbox `name`.
pub fn pod(name: &str) -> Value {
    json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {
            "namespace": "default", "name": name, "uid": format!("pod-{name}"), "resourceVersion": "2",
            "labels": {"agents.x-k8s.io/sandbox-name-hash": "1a2b"},
            "ownerReferences": [{
                "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": name, "uid": format!("uid-{name}"),
                "controller": true,
            }],
        },
        "status": {"podIP": "10.0.0.5", "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

pub fn sandbox(name: &str, mode: &str, message: &str) -> Value {
    json!({
        "kind": "Sandbox", "apiVersion": "agents.x-k8s.io/v1beta1",
        "metadata": {"namespace": "default", "name": name, "uid": format!("uid-{name}"), "resourceVersion": "2"},
        "spec": {"operatingMode": mode},
        "status": {"conditions": [{"type": "Ready", "status": "False", "message": message}]},
    })
}
