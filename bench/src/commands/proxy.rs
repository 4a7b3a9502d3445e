//! `proxy`: the router against nginx and haproxy, before the same backend, with kept connections.
//!
//! ```text
//! wrk ─► router │ nginx │ haproxy ─► nginx that returns a few bytes        all on loopback, one run
//!     └────────────────────────────►                                        what is left without a proxy
//! ```
//!
//! The load, the proxy and the backend share the machine's processors, so what counts is the ratio.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use asb_router::TcpDial;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::args::Args;
use crate::engine::directory;
use crate::report::Report;
use crate::table::{Table, number};
use crate::target::Target;

const ADDED_LATENCY_TARGET_MS: f64 = 0.15;
const RATE_TARGET: f64 = 1.0;
const P99_TARGET: f64 = 1.2;
const READY: Duration = Duration::from_secs(10);

/// What one run of wrk measured.
#[derive(Debug, Clone, Copy)]
struct Load {
    requests_per_second: f64,
    p50: f64,
    p99: f64,
}

/// Someone to send requests to.
struct Server {
    name: &'static str,
    address: SocketAddr,
    process: Child,
}

pub struct Plan {
    pub seconds: u64,
    pub rounds: usize,
    pub connections: Vec<usize>,
}

pub async fn run(args: &Args, plan: Plan) -> anyhow::Result<()> {
    let files = directory()?;
    let backend = nginx(files.path(), "no proxy", None)?;
    let before = backend.address;
    let servers = [
        router(before)?,
        nginx(files.path(), "nginx", Some(before))?,
        haproxy(files.path(), before)?,
        backend,
    ];
    let mut report = Report::new("proxy", args.json.as_deref());
    let mut table =
        Table::new(["connections", "proxy", "req/s", "p50 ms", "p99 ms", "req/s ÷ nginx", "p99 ÷ nginx"]);
    for &connections in [1].iter().chain(&plan.connections) {
        let loads = measure(&servers, connections, &plan)?;
        let peer = loads[1];
        for (server, load) in servers.iter().zip(&loads) {
            let rate = load.requests_per_second / peer.requests_per_second;
            let cells = [load.requests_per_second, load.p50, load.p99, rate, load.p99 / peer.p99];
            let names = [connections.to_string(), server.name.to_owned()];
            table.row(names.into_iter().chain(cells.map(|cell| number(Some(cell)))));
        }
        if connections == 1 {
            let added = |at: usize| loads[at].p50 - loads[3].p50;
            println!(
                "added by the proxy at one connection, p50: router {:.3} ms (target < {ADDED_LATENCY_TARGET_MS}), nginx {:.3}, haproxy {:.3}",
                added(0),
                added(1),
                added(2)
            );
        }
        report.put(&format!("connections{connections}"), to_json(&servers, &loads));
    }
    println!("{table}targets: req/s ≥ {RATE_TARGET} × nginx, p99 ≤ {P99_TARGET} × nginx");
    report.save()
}

/// The median of each server over all rounds; the servers take turns, so that a busy moment hits all of them.
fn measure(servers: &[Server], connections: usize, plan: &Plan) -> anyhow::Result<Vec<Load>> {
    let mut all = vec![Vec::new(); servers.len()];
    for round in 0..plan.rounds {
        for offset in 0..servers.len() {
            let at = (round + offset) % servers.len();
            all[at].push(wrk(servers[at].address, connections, plan.seconds)?);
        }
    }
    Ok(all.into_iter().map(|loads| median(&loads)).collect())
}

fn median(loads: &[Load]) -> Load {
    let middle = |of: fn(&Load) -> f64| {
        let mut values: Vec<f64> = loads.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    Load {
        requests_per_second: middle(|load| load.requests_per_second),
        p50: middle(|load| load.p50),
        p99: middle(|load| load.p99),
    }
}

fn to_json(servers: &[Server], loads: &[Load]) -> Value {
    let of = |(server, load): (&Server, &Load)| {
        let value =
            json!({"requestsPerSecond": load.requests_per_second, "p50Ms": load.p50, "p99Ms": load.p99});
        (server.name.to_owned(), value)
    };
    servers.iter().zip(loads).map(of).collect::<serde_json::Map<_, _>>().into()
}

fn wrk(address: SocketAddr, connections: usize, seconds: u64) -> anyhow::Result<Load> {
    let output = Command::new("wrk")
        .args(["--latency", "--threads", "1", "--connections", &connections.to_string()])
        .args([
            "--duration",
            &format!("{seconds}s"),
            "--header",
            "X-Sandbox-ID: web",
            &format!("http://{address}/"),
        ])
        .output()
        .context("failed to run wrk; `apt-get install wrk nginx-light haproxy` has all three programs")?;
    let said = String::from_utf8_lossy(&output.stdout);
    anyhow::ensure!(!said.contains("Non-2xx") && !said.contains("Socket errors"), "requests failed: {said}");
    let field =
        |name: &str| said.lines().find_map(|line| line.trim().strip_prefix(name)?.split_whitespace().next());
    let parsed = || {
        Some(Load {
            requests_per_second: field("Requests/sec:")?.parse().ok()?,
            p50: milliseconds(field("50%")?)?,
            p99: milliseconds(field("99%")?)?,
        })
    };
    parsed().with_context(|| format!("wrk said something unexpected: {said}"))
}

/// `84.00us`, `1.20ms`, `1.03s`
fn milliseconds(text: &str) -> Option<f64> {
    let (number, factor) = match text {
        _ if text.ends_with("us") => (text.strip_suffix("us")?, 0.001),
        _ if text.ends_with("ms") => (text.strip_suffix("ms")?, 1.0),
        _ => (text.strip_suffix('s')?, 1000.0),
    };
    Some(number.parse::<f64>().ok()? * factor)
}

// === The servers ===

impl Server {
    fn start(name: &'static str, address: SocketAddr, command: &mut Command) -> anyhow::Result<Self> {
        let process = command.spawn().with_context(|| format!("failed to start {name}"))?;
        let until = Instant::now() + READY;
        while TcpStream::connect(address).is_err() {
            anyhow::ensure!(Instant::now() < until, "{name} does not listen on {address}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Self { name, address, process })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // nginx ends its workers on SIGTERM only.
        if let Some(pid) = rustix::process::Pid::from_raw(self.process.id().cast_signed()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.process.wait();
    }
}

fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// A backend, or a proxy before one.
fn nginx(files: &Path, name: &'static str, backend: Option<SocketAddr>) -> anyhow::Result<Server> {
    let address = free_address()?;
    let own = files.join(name.replace(' ', "-"));
    std::fs::create_dir_all(&own)?;
    let (workers, location) = match backend {
        None => ("1", "return 200 'some bytes that a program in a sandbox returns';".to_owned()),
        Some(_) => (
            "auto",
            "proxy_pass http://sandbox; proxy_http_version 1.1; proxy_set_header Connection ''; proxy_set_header Host $proxy_host; proxy_buffering off;".to_owned(),
        ),
    };
    let upstream =
        backend.map(|it| format!("upstream sandbox {{ server {it}; keepalive 512; }}")).unwrap_or_default();
    let configuration = format!(
        "daemon off; worker_processes {workers}; pid {own}/pid; error_log stderr crit;
         events {{ worker_connections 4096; }}
         http {{ access_log off; keepalive_requests 100000000; client_body_temp_path {own}/body; proxy_temp_path {own}/proxy;
           fastcgi_temp_path {own}/f; uwsgi_temp_path {own}/u; scgi_temp_path {own}/s;
           {upstream}
           server {{ listen {address} backlog=4096; location / {{ {location} }} }} }}",
        own = own.display()
    );
    let file = own.join("nginx.conf");
    std::fs::write(&file, configuration)?;
    let mut command = Command::new("nginx");
    command.arg("-c").arg(&file).arg("-e").arg("stderr").stderr(Stdio::null());
    Server::start(name, address, &mut command)
}

fn haproxy(files: &Path, backend: SocketAddr) -> anyhow::Result<Server> {
    let address = free_address()?;
    let configuration = format!(
        "global\n  maxconn 8192\ndefaults\n  mode http\n  timeout connect 5s\n  timeout client 1m\n  timeout server 1m\n  http-reuse always\n\
         frontend in\n  bind {address}\n  default_backend sandbox\nbackend sandbox\n  server one {backend}\n"
    );
    let file = files.join("haproxy.cfg");
    std::fs::write(&file, configuration)?;
    let mut command = Command::new("haproxy");
    command.arg("-db").arg("-f").arg(&file).stderr(Stdio::null()).stdout(Stdio::null());
    Server::start("haproxy", address, &mut command)
}

/// Our router in a process of its own, which watches our API server.
fn router(backend: SocketAddr) -> anyhow::Result<Server> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["route", &backend.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = command.spawn().context("failed to start our router")?;
    let mut line = String::new();
    BufReader::new(process.stdout.take().context("stdout is a pipe")?).read_line(&mut line)?;
    let address = line.trim().parse().with_context(|| format!("our router said {line:?}"))?;
    Ok(Server { name: "router", address, process })
}

/// The process behind [`router`]: a Sandbox whose Pod is `backend`, until this process is stopped.
pub async fn route(backend: SocketAddr) -> anyhow::Result<()> {
    let target = Target::in_process().await?;
    let sandboxes: Api<asb_types::Sandbox> = Api::namespaced(target.client.clone(), "default");
    let sandbox = json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "web"},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "host"}]}}},
    });
    let sandbox = sandboxes.create(&PostParams::default(), &serde_json::from_value(sandbox)?).await?;
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(target.client.clone(), "default");
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "web", "labels": {"agents.x-k8s.io/sandbox-name-hash": "bench"},
            "ownerReferences": [{
                "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": "web",
                "uid": sandbox.metadata.uid, "controller": true,
            }],
        },
        "spec": {"containers": [{"name": "main", "image": "host"}]},
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    let status = json!({"status": {
        "phase": "Running", "podIP": backend.ip().to_string(), "conditions": [{"type": "Ready", "status": "True"}],
    }});
    pods.patch_status("web", &PatchParams::default(), &Patch::Merge(status)).await?;
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let dial = Arc::new(ToBackend(backend.port()));
    let authorization = asb_router::Authorization::allow_all();
    let config = asb_router::Config { authorization, ..Default::default() };
    let router = asb_router::serve(any, target.client.clone(), dial, config).await?;
    println!("{}", router.address);
    std::io::stdout().flush()?;
    std::future::pending().await
}

/// Requests name no port, so that wrk sends the same to all; this one knows it.
struct ToBackend(u16);

impl asb_router::Dial for ToBackend {
    fn dial<'a>(
        &'a self,
        target: &'a asb_router::Target,
        _: u16,
    ) -> futures::future::BoxFuture<'a, std::io::Result<Box<dyn asb_router::Stream>>> {
        TcpDial.dial(target, self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_wrk_are_read() {
        assert_eq!(
            ["84.00us", "1.20ms", "1.03s", "x"].map(milliseconds),
            [Some(0.084), Some(1.2), Some(1030.0), None]
        );
    }
}
