//! Whether a driver works on this machine: found out by really using it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use asb_supervisor::launch::SANDBOXD;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;

use super::{Abilities, Driver, Name, find};
use crate::{
    Exec, Exit, Kernel, Limits, Native, Process, RootFs, Sandbox, SandboxId, Spec, TerminalSize, leak, powers,
};

/// A whole probe takes a second or two.
const PATIENCE: Duration = Duration::from_secs(40);

/// What is known of a driver here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    pub name: Name,
    /// The program it is run by.
    pub program: Option<PathBuf>,
    /// What that says of itself.
    pub version: Option<String>,
    /// Why it cannot be used. `None`: a sandbox ran.
    pub problem: Option<String>,
    /// What worked; all of it is false when no sandbox ran.
    pub abilities: Abilities,
}

impl Probe {
    pub fn works(&self) -> bool {
        self.problem.is_none()
    }

    /// How to get it, for one that is not installed.
    pub fn hint(&self) -> Option<&'static str> {
        match (self.program.is_some() || powers::here().is_rootless(), self.name) {
            (true, _) | (_, Name::Native) => None,
            (_, Name::Runc) => Some("install the package `runc`"),
            (_, Name::Crun) => Some("install the package `crun`"),
            (_, Name::Gvisor) => Some(
                "install `runsc` 2023 or newer: on Debian 12 from bookworm-backports, else from gVisor's own packages",
            ),
        }
    }
}

/// Runs a sandbox with the driver and uses it. `directory` is for what that needs, and empty again afterwards.
pub async fn probe(name: Name, directory: &Path) -> Probe {
    let Some(driver) = find(name) else { return missing(name) };
    let version = driver.program().and_then(version);
    let (problem, abilities) = match run(driver.as_ref(), directory).await {
        Ok(abilities) => (None, abilities),
        Err(problem) => (Some(problem), NOTHING),
    };
    Probe { name, program: driver.program().map(Path::to_owned), version, problem, abilities }
}

/// What is known of a driver that is not installed.
pub fn missing(name: Name) -> Probe {
    let program = name.program().unwrap_or_default();
    let problem = match powers::here().is_rootless() {
        true => "needs an engine that root runs".to_owned(),
        false => format!("{program} is not installed: not in {}", super::PLACES.join(", ")),
    };
    Probe { name, program: None, version: None, problem: Some(problem), abilities: NOTHING }
}

/// Removes what a probe left that was cut short.
pub async fn clear(directory: &Path) -> io::Result<()> {
    if !directory.exists() {
        return Ok(());
    }
    let _one_at_a_time = lock(directory).await?;
    clear_locked(directory).await
}

const NOTHING: Abilities = Abilities {
    user_namespace: false,
    exec: false,
    terminal: false,
    freeze: false,
    checkpoint: false,
    memory_limit: false,
    process_limit: false,
    shared_network: false,
    kernel_of_the_machine: false,
};

async fn run(driver: &dyn Driver, directory: &Path) -> Result<Abilities, String> {
    let failed = |error: io::Error| format!("cannot prepare a probe in {}: {error}", directory.display());
    std::fs::create_dir_all(directory).map_err(failed)?;
    let _one_at_a_time = lock(directory).await.map_err(failed)?;
    let used = tokio::time::timeout(PATIENCE, use_it(driver, directory)).await;
    let cleared = clear_locked(directory).await;
    let abilities = used.map_err(|_| format!("a sandbox did not do its work within {PATIENCE:?}"))??;
    cleared.map_err(|error| format!("the sandbox left something behind: {error}"))?;
    Ok(abilities)
}

/// Held by whoever probes: the engine, or `asb doctor` beside it.
async fn lock(directory: &Path) -> io::Result<std::fs::File> {
    let directory = directory.to_owned();
    let lock = move || std::fs::File::open(directory).and_then(|file| file.lock().map(|()| file));
    tokio::task::spawn_blocking(lock).await?
}

async fn clear_locked(directory: &Path) -> io::Result<()> {
    let state = directory.join("state");
    if state.exists() {
        let native = Native::open(&state).map_err(io::Error::other)?;
        for sandbox in native.list().await.map_err(io::Error::other)? {
            sandbox.delete().await.map_err(io::Error::other)?;
        }
        if let Some(trace) = leak::check(&state).into_iter().next() {
            return Err(io::Error::other(trace));
        }
    }
    for entry in std::fs::read_dir(directory)? {
        crate::remove::directory(&entry?.path())?;
    }
    Ok(())
}

/// One sandbox, and everything a sandbox is for.
async fn use_it(driver: &dyn Driver, directory: &Path) -> Result<Abilities, String> {
    clear_locked(directory).await.map_err(|error| causes(&error))?;
    let native = Native::open(&directory.join("state")).map_err(|error| causes(&error))?;
    let sandbox = native.start(&spec(driver.name())).await.map_err(|error| causes(&error))?;
    let said = |result: Result<(), String>, what: &str| {
        result.inspect_err(|error| tracing::info!(driver = %driver.name(), error, "{what} does not work"))
    };
    let exec = said(exec(&sandbox, None).await, "exec").is_ok();
    let terminal = TerminalSize { columns: 80, rows: 24 };
    let terminal = said(self::exec(&sandbox, Some(terminal)).await, "a terminal").is_ok();
    let dial = sandbox.dial_sandboxd().await.map(drop).map_err(|error| causes(&error));
    said(dial, "a connection to a port")?;
    let freeze = said(freeze(&sandbox).await, "freezing").is_ok();
    sandbox.delete().await.map_err(|error| causes(&error))?;
    let shared = said(share(&native, driver).await, "a network for several sandboxes").is_ok();
    let (can, enforced) = (driver.abilities(), native.enforced());
    Ok(Abilities {
        exec: can.exec && exec,
        terminal: can.terminal && terminal,
        freeze: can.freeze && freeze,
        memory_limit: can.memory_limit && enforced.memory,
        process_limit: can.process_limit && enforced.processes,
        shared_network: can.shared_network && shared,
        user_namespace: can.user_namespace && !powers::here().is_rootless(),
        ..can
    })
}

async fn exec(sandbox: &Sandbox, terminal: Option<TerminalSize>) -> Result<(), String> {
    let argv = [SANDBOXD, "--version"].map(str::to_owned).to_vec();
    let exec = Exec { argv, env: Vec::new(), cwd: None, stdin: false, terminal };
    let mut session = sandbox.exec(&exec).await.map_err(|error| causes(&error))?;
    let mut output = String::new();
    session.stdout.read_to_string(&mut output).await.map_err(|error| causes(&error))?;
    match session.control.wait().await.map_err(|error| causes(&error))? {
        Exit::Code(0) if !output.is_empty() => Ok(()),
        exit => Err(format!("a program ended with {exit:?} and said {output:?}")),
    }
}

async fn freeze(sandbox: &Sandbox) -> Result<(), String> {
    sandbox.freeze().await.map_err(|error| causes(&error))?;
    match exec(sandbox, None).await {
        Err(_) if sandbox.is_frozen() => {}
        other => return Err(format!("it goes on when it is frozen: {other:?}")),
    }
    sandbox.thaw().await.map_err(|error| causes(&error))?;
    exec(sandbox, None).await
}

/// Two sandboxes with one network between them: with a kernel of its own, a driver has to have one for both.
async fn share(native: &Native, driver: &dyn Driver) -> Result<(), String> {
    let (kernel, joined) = match driver.abilities().kernel_of_the_machine {
        true => (Kernel::Own, Kernel::Own),
        false => (Kernel::Shared, Kernel::Of(id("first"))),
    };
    let spec = |name, kernel| Spec { id: id(name), kernel, ..spec(driver.name()) };
    let first = native.start(&spec("first", kernel)).await.map_err(|error| causes(&error))?;
    let network = first.network().map_err(|error| causes(&error))?.ok_or("it has ended")?;
    let second = native.start_in(network, &spec("second", joined)).await.map_err(|error| causes(&error))?;
    let used = exec(&second, None).await;
    for sandbox in [second, first] {
        sandbox.delete().await.map_err(|error| causes(&error))?;
    }
    used
}

fn id(name: &str) -> SandboxId {
    SandboxId::new(name).expect("is a valid id")
}

fn spec(driver: Name) -> Spec {
    Spec {
        id: id("probe"),
        driver,
        kernel: Default::default(),
        hostname: "probe".to_owned(),
        root: RootFs { layers: Vec::new(), host_dirs: Vec::new() },
        read_only_root: false,
        capabilities: Default::default(),
        privileged: false,
        mounts: Vec::new(),
        memory_dirs: Vec::new(),
        extra_ids: Vec::new(),
        beside: None,
        process: Process::idle(),
        limits: Limits {
            memory_bytes: Some(256 << 20),
            cpu_millis: None,
            cpu_share_millis: None,
            pids: 64,
            log_bytes: 1 << 16,
        },
        address: None,
        network: false,
        resolv_conf: None,
        hosts: None,
        last_words: None,
        labels: Default::default(),
    }
}

/// The first line of what a program says of its version.
fn version(program: &Path) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().next()?.trim();
    let words = line.split_once(" version ").map_or(line, |(_, version)| version);
    Some(words.to_owned())
}

/// An error and what it came from, in one line.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
