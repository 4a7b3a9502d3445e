//! The controllers that are measured: in this process as in `asb up`, or as a process of their own as on a cluster.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use asb_controllers::{Caches, Config, Scope, run_all};
use kube::Client;
use tokio::task::JoinSet;

use crate::args::Args;
use crate::memory;
use crate::target::Target;

pub enum Controllers {
    InProcess { _tasks: JoinSet<()> },
    Process(Child),
}

impl Controllers {
    pub fn in_process(client: Client) -> Self {
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let caches = Arc::new(Caches::new(Scope { extensions: true, ..Scope::default() }));
            let controllers = run_all(client.clone(), caches.clone(), Config::default());
            tokio::join!(caches.run(&client), controllers);
        });
        Self::InProcess { _tasks: tasks }
    }

    /// The program that runs on clusters.
    pub fn process(args: &Args, target: &Target) -> anyhow::Result<Self> {
        let program = args.controller()?;
        let kubeconfig = target.kubeconfig().context("this API server has no kubeconfig")?;
        let mut command = Command::new(&program);
        command.arg("--kubeconfig").arg(kubeconfig).args([
            "--extensions",
            "--leader-elect=false",
            "--enable-webhook=false",
            "--metrics-bind-address=0",
            "--health-probe-bind-address=0",
        ]);
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn();
        Ok(Self::Process(child.with_context(|| format!("failed to start {}", program.display()))?))
    }

    /// Begins to measure what the process uses that holds the controllers.
    pub fn meter(&self) -> anyhow::Result<Meter> {
        let pid = match self {
            Controllers::InProcess { .. } => std::process::id(),
            Controllers::Process(child) => child.id(),
        };
        Ok(Meter { pid, before: memory::activity(pid)?.cpu })
    }
}

impl Drop for Controllers {
    fn drop(&mut self) {
        if let Controllers::Process(child) = self {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub struct Meter {
    pid: u32,
    before: Duration,
}

impl Meter {
    /// CPU time since the beginning, and resident kilobytes now.
    pub fn read(self) -> anyhow::Result<(Option<Duration>, Option<u64>)> {
        let used = memory::activity(self.pid)?.cpu.saturating_sub(self.before);
        Ok((Some(used), Some(memory::of(self.pid)?.rss)))
    }
}
