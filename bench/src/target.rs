//! API servers that objects are created on: ours in two ways, and the real one.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::Context;
use asb_apiserver::{ApiServer, Config};
use asb_testing::Kubernetes;
use kube::Client;
use tempfile::TempDir;

use crate::engine;

pub struct Target {
    pub name: &'static str,
    pub client: Client,
    server: Server,
}

/// What must live as long as the client is used.
enum Server {
    InProcess { server: ApiServer, directory: TempDir },
    Child { _child: Serving, directory: TempDir },
    Kubernetes { kubernetes: Kubernetes },
}

/// Our API server in a process of its own; it ends when its standard input does.
struct Serving {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Target {
    /// Our server, asked without a connection, as the controllers in `asb up` do.
    pub async fn in_process() -> anyhow::Result<Self> {
        let directory = engine::directory()?;
        let server = open(directory.path(), None).await?;
        Ok(Self {
            name: "ours, in process",
            client: server.client("default"),
            server: Server::InProcess { server, directory },
        })
    }

    /// The same, with Pods bound to the fake kubelet's node at creation, as `asb up` does.
    pub async fn with_node() -> anyhow::Result<Self> {
        let directory = engine::directory()?;
        let server = open(directory.path(), Some(asb_testing::kubelet::NODE.to_owned())).await?;
        let client = server.client("default");
        asb_testing::node::add(&client).await;
        Ok(Self { name: "ours, in process", client, server: Server::InProcess { server, directory } })
    }

    /// Our server alone in a process of its own, over loopback TLS, as kubectl asks it.
    pub async fn over_tls() -> anyhow::Result<Self> {
        let directory = engine::directory()?;
        let program = std::env::current_exe().context("failed to find my own program file")?;
        let mut command = Command::new(program);
        command.arg("serve").arg(directory.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("failed to start our API server")?;
        let stdin = child.stdin.take();
        let mut kubeconfig = String::new();
        let stdout = child.stdout.take().context("stdout is a pipe")?;
        let child = Serving { child, stdin };
        BufReader::new(stdout).read_line(&mut kubeconfig)?;
        let client = engine::client(Path::new(kubeconfig.trim())).await?;
        Ok(Self { name: "ours, loopback TLS", client, server: Server::Child { _child: child, directory } })
    }

    /// A real kube-apiserver with etcd, over loopback TLS, with the same client.
    pub async fn kubernetes() -> anyhow::Result<Self> {
        eprintln!("starting kube-apiserver and etcd (the first time they are built, which takes minutes)");
        let started = tokio::task::spawn_blocking(Kubernetes::start).await;
        let kubernetes =
            started.context("kube-apiserver did not start; --without-kubernetes leaves it out")?;
        let client = kubernetes.client().await;
        Ok(Self { name: "kube-apiserver + etcd", client, server: Server::Kubernetes { kubernetes } })
    }

    /// What controllers in this process talk through.
    pub fn controller_client(&self) -> Client {
        match &self.server {
            Server::InProcess { server, .. } => server.controller_client("default"),
            Server::Child { .. } | Server::Kubernetes { .. } => self.client.clone(),
        }
    }

    /// How other programs reach it.
    pub fn kubeconfig(&self) -> Option<&Path> {
        match &self.server {
            Server::Kubernetes { kubernetes } => Some(&kubernetes.kubeconfig),
            Server::InProcess { .. } | Server::Child { .. } => None,
        }
    }

    /// Stops the server and removes what it stored.
    pub async fn close(self) -> anyhow::Result<()> {
        drop(self.client);
        match self.server {
            Server::InProcess { server, directory } => {
                server.shutdown().await;
                directory.close()?;
            }
            Server::Child { _child, directory } => {
                drop(_child);
                directory.close()?;
            }
            Server::Kubernetes { kubernetes } => drop(kubernetes),
        }
        Ok(())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.child.wait();
    }
}

/// The process behind [`Target::over_tls`].
pub async fn serve(data_dir: &Path) -> anyhow::Result<()> {
    // No node: with one, Pods would be bound, and the other server does not do that.
    let server = open(data_dir, None).await?;
    let serving = server.serve(([127, 0, 0, 1], 0).into()).await?;
    println!("{}", serving.kubeconfig.display());
    std::io::stdout().flush()?;
    tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink())).await??;
    server.shutdown().await;
    Ok(())
}

async fn open(data_dir: &Path, node_name: Option<String>) -> anyhow::Result<ApiServer> {
    let config = Config { data_dir: data_dir.to_owned(), crds: asb_types::crd::all(), node_name };
    ApiServer::open(config).await.context("failed to open our API server")
}
