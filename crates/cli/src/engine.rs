//! The engine of one machine: API server, controllers, node and router in one process.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use asb_apiserver::ApiServer;
use asb_controllers::{Caches, Scope};
use asb_node::{Ground, Node};
use asb_router::authorize::Links;
use asb_router::authorize::v2::Keys;
use asb_router::{Addressing, Authorization, Dial, Stream, Target};
use futures::future::BoxFuture;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::data_dir::{DataDir, Engine};
use crate::router_pod;

/// How long a stopping engine waits for Pods that are on their way out.
const LAST_PODS: Duration = Duration::from_secs(15);

/// How long a stopping engine waits for requests through the router.
const LAST_REQUESTS: Duration = Duration::from_secs(2);

/// Everything that runs; it stops when this is dropped. Sandboxes go on.
pub struct Running {
    pub engine: Engine,
    api: ApiServer,
    node: Node,
    tasks: JoinSet<anyhow::Result<()>>,
    _api: asb_apiserver::Serving,
    router: asb_router::Serving,
}

/// Starts all parts in the order in which they need each other; returns when every one is ready.
pub async fn start(
    data_dir: &DataDir,
    api: SocketAddr,
    (router, addressing, authorization): (SocketAddr, Addressing, Authorization),
    node: asb_node::Config,
) -> anyhow::Result<Running> {
    let (path, name) = (data_dir.path().to_owned(), node.name.clone());
    // Neither needs the other, and each takes its time.
    let ground = tokio::spawn(Ground::open(node));
    let server = tokio::spawn(async move {
        let crds = asb_types::crd::all();
        ApiServer::open(asb_apiserver::Config { data_dir: path, crds, node_name: Some(name) }).await
    });
    let (ground, server) = tokio::join!(ground, server);
    let ground = ground?.context("failed to open the node")?;
    let server = match server?.context("failed to open the API server's store") {
        Ok(server) => server,
        Err(error) => {
            ground.close().await;
            return Err(error);
        }
    };
    let client = server.client("default");
    let node = Node::open(client.clone(), ground).await.context("failed to open the node")?;
    server.set_kubelet(node.routes());
    let own_router = router_pod::Router::default();
    router_pod::register(&node, own_router.clone());

    let mut tasks = JoinSet::new();
    let (controllers_ready, controllers) = oneshot::channel();
    let (node_ready, pods) = oneshot::channel();
    let controller_client = server.controller_client("default");
    tasks.spawn(async move {
        let scope = Scope { extensions: true, ..Scope::default() };
        let caches = Arc::new(Caches::new(scope));
        let ready = async {
            caches.synced().await;
            _ = controllers_ready.send(());
        };
        let controllers =
            asb_controllers::run_all(controller_client.clone(), caches.clone(), Default::default());
        tokio::join!(caches.run(&controller_client), ready, controllers);
        anyhow::bail!("the controllers stopped")
    });
    let runner = node.clone();
    tasks.spawn(async move {
        let done = runner.run(|| _ = node_ready.send(())).await;
        done.context("the node stopped")
    });

    let router_domain = addressing.domain.as_ref().map(|domain| domain.as_str().to_owned());
    let router_path_prefix = addressing.path_prefix.as_ref().map(|prefix| prefix.as_str().to_owned());
    let dial = Arc::new(ThroughNode(node.clone()));
    let authorization = with_links(authorization, data_dir)?;
    let config = asb_router::Config { addressing, authorization, ..Default::default() };
    let router = asb_router::serve(router, client, dial, config);
    let router = router.await.context("failed to start the router")?;
    _ = own_router.set(router.connections());
    let (published, router_pod) = oneshot::channel();
    let (publisher, name) = (server.client("default"), node.name().to_owned());
    tasks.spawn(async move {
        router_pod::keep(publisher, &name, || _ = published.send(())).await;
        anyhow::bail!("the router's Pod is not kept any more")
    });
    let api = server.serve(api).await.context("failed to start the API server")?;
    server.serve_locally().context("failed to start the API server")?;
    tokio::select! {
        ready = async { tokio::try_join!(controllers, pods, router_pod) } => drop(ready.context("a part of the engine stopped")?),
        Some(ended) = tasks.join_next() => ended.context("a part of the engine failed")??,
    }
    let engine = Engine {
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        api: format!("https://{}", api.address),
        router: format!("http://{}", router.address),
        router_domain,
        router_path_prefix,
    };
    Ok(Running { engine, api: server, node, tasks, _api: api, router })
}

/// Lets browsers in too, by links that the key in the data directory signs.
fn with_links(base: Authorization, data_dir: &DataDir) -> anyhow::Result<Authorization> {
    let keys = Keys::new(data_dir.router_key()?.public_pem().as_bytes())?;
    // The router of one machine speaks plain HTTP.
    let links = Links { insecure: true, ..Links::default() };
    Ok(Authorization { scoped_v2: Some(Arc::new(keys)), links: Some(links), ..base })
}

impl Running {
    /// Waits for a part to end, which none should.
    pub async fn failed(&mut self) -> anyhow::Error {
        match self.tasks.join_next().await {
            Some(Ok(Ok(()))) | None => anyhow::anyhow!("a part of the engine ended"),
            Some(Ok(Err(error))) => error,
            Some(Err(error)) => anyhow::Error::new(error).context("a part of the engine failed"),
        }
    }

    /// Stops all parts, finishes what was begun, and flushes the store.
    pub async fn stop(mut self) {
        // First: requests in flight still need the node.
        self.router.drain(LAST_REQUESTS).await;
        self.tasks.shutdown().await;
        if tokio::time::timeout(LAST_PODS, self.node.ended()).await.is_err() {
            tracing::warn!("Pods are still shutting down; the next engine goes on with them");
        }
        self.node.close().await;
        self.api.shutdown().await;
    }
}

/// On one machine the router reaches a sandbox through the node.
struct ThroughNode(Node);

impl Dial for ThroughNode {
    fn dial<'a>(&'a self, target: &'a Target, port: u16) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let stream = self.0.dial(&target.pod_uid, port).await?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn services_have_the_addresses_that_the_network_keeps_for_them() {
        let (first, length) = asb_apiserver::SERVICE_RANGE;
        assert_eq!(asb_network::Cidr::new(first, length), Some(asb_network::SERVICES));
    }
}
