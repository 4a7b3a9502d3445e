//! Times other programs: from before one is started to its first output byte.
//!
//! The clock runs in a small process of its own. It can live in a private mount namespace, where the hybrid cgroup
//! hierarchy that Debian's crun refuses is hidden, and none of that set-up is inside the time that is taken.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::{Deserialize, Serialize};

/// Hidden from programs that are timed, since with it crun 1.8 does not start at all.
const UNIFIED: &str = "/sys/fs/cgroup/unified";

/// The process that times.
pub struct Stopwatch {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

/// How long one program took.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Timing {
    pub first_byte: Duration,
    pub end: Duration,
}

impl Stopwatch {
    pub fn start() -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("failed to find my own program file")?;
        let mut command = match Path::new(UNIFIED).exists() {
            false => Command::new(&program),
            true => {
                let hide = format!("mount -t tmpfs none {UNIFIED} && exec \"$0\" \"$@\"");
                let mut command = Command::new("unshare");
                command.args(["--mount", "--propagation", "private", "sh", "-c", &hide]).arg(&program);
                command
            }
        };
        let mut child = command.arg("stopwatch").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().context("stdout is a pipe")?);
        Ok(Self { child, stdin, stdout })
    }

    /// Runs a program to its end. It must print something and succeed.
    pub fn time(&mut self, argv: &[String]) -> anyhow::Result<Timing> {
        let mut stdin = self.stdin.as_ref().context("the stopwatch was stopped")?;
        writeln!(stdin, "{}", serde_json::to_string(argv)?)?;
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        let timed: Result<Timing, String> = serde_json::from_str(&line).context("the stopwatch stopped")?;
        timed.map_err(|message| anyhow::anyhow!("`{}` failed: {message}", argv.join(" ")))
    }
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.child.wait();
    }
}

/// The process itself: one command line as JSON in, one result as JSON out.
pub fn serve() -> anyhow::Result<()> {
    for line in std::io::stdin().lines() {
        let argv: Vec<String> = serde_json::from_str(&line?)?;
        let timed = time(&argv).map_err(|error| format!("{error:#}"));
        let mut stdout = std::io::stdout();
        writeln!(stdout, "{}", serde_json::to_string(&timed)?)?;
        stdout.flush()?;
    }
    Ok(())
}

fn time(argv: &[String]) -> anyhow::Result<Timing> {
    let (program, arguments) = argv.split_first().context("no program was named")?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let begun = Instant::now();
    let mut child = command.spawn()?;
    let mut stdout = child.stdout.take().context("stdout is a pipe")?;
    let first = stdout.read(&mut [0; 1])?;
    let first_byte = begun.elapsed();
    stdout.read_to_end(&mut Vec::new())?;
    let status = child.wait()?;
    let end = begun.elapsed();
    let mut said = String::new();
    child.stderr.take().context("stderr is a pipe")?.read_to_string(&mut said)?;
    anyhow::ensure!(status.success(), "{status}: {}", said.trim());
    anyhow::ensure!(first == 1, "it printed nothing; {}", said.trim());
    Ok(Timing { first_byte, end })
}
