//! `asb down`: stops the engine. Sandboxes go on until they are removed.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};

use crate::data_dir::DataDir;

/// How long an engine may take to stop.
const STOP: Duration = Duration::from_secs(30);

pub async fn run(data_dir: &DataDir) -> anyhow::Result<ExitCode> {
    if !data_dir.path().is_dir() || data_dir.is_free()? {
        eprintln!("no engine runs in {}", data_dir.path().display());
        return Ok(ExitCode::SUCCESS);
    }
    let engine = data_dir.engine().context("the engine is just starting or stopping; try again")?;
    let pid =
        i32::try_from(engine.pid).ok().and_then(Pid::from_raw).context("engine.json holds no process id")?;
    // The lock is held, so the process that announced itself under this id is there.
    kill_process(pid, Signal::TERM)
        .with_context(|| format!("failed to stop the engine (process {})", engine.pid))?;
    let until = Instant::now() + STOP;
    while !data_dir.is_free()? {
        anyhow::ensure!(Instant::now() < until, "the engine (process {}) does not stop", engine.pid);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(ExitCode::SUCCESS)
}
