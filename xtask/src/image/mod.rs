//! Container images without a container engine, as OCI archives.
//!
//! | image | what is in it |
//! |---|---|
//! | `agent-sandbox-controller`, `sandbox-router`, `sandboxd` | one static program |
//! | `sandbox-runtime` | Debian with a shell and Python, and sandboxd as its first process |
//!
//! The same programs, packages and time give the same bytes, and so the same digest.

mod build;
mod oci;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use jiff::Timestamp;

pub use build::RELEASED;
use build::{Program, build};
use oci::{Entry, Image, Layer};

/// User and group that are not root. Numbers, because these images have no /etc/passwd.
const NON_ROOT: &str = "65532:65532";
/// The user of the runtime, whom `tools/runtime/base` adds, and where its files are.
const RUNTIME_USER: u64 = 1000;
const RUNTIME_DIR: &str = "/workspace";
/// Where clients expect sandboxd.
const RUNTIME_PORTS: [u16; 3] = [8888, 8080, 9090];

const SANDBOXD: Program = Program {
    package: "asb-sandboxd",
    bin: "asb-sandboxd",
    name: "sandboxd",
    description: "The daemon inside a sandbox that serves commands and files",
};

const PROGRAMS: [Program; 3] = [
    Program {
        package: "asb-operator",
        bin: "agent-sandbox-controller",
        name: "agent-sandbox-controller",
        description: "The Agent Sandbox controllers",
    },
    Program {
        package: "asb-sandbox-router",
        bin: "sandbox-router",
        name: "sandbox-router",
        description: "The Agent Sandbox router",
    },
    // An init container copies it into a volume: `sandboxd install DIR`.
    SANDBOXD,
];

/// Builds every program and writes `NAME-TAG.tar` for each into a directory.
pub fn write(dir: &Path, tag: &str, profile: &str) -> anyhow::Result<()> {
    let built = build(&PROGRAMS, profile)?;
    PROGRAMS.iter().zip(&built).try_for_each(|(program, bytes)| write_program(dir, tag, program, bytes))
}

fn write_program(dir: &Path, tag: &str, program: &Program, bytes: &[u8]) -> anyhow::Result<()> {
    let created = created()?;
    let entry = Entry { path: program.name, mode: 0o755, owner: 0, bytes };
    let image = Image {
        title: program.name,
        description: program.description,
        tag,
        layers: vec![Layer::of_entries(&[entry], created)?],
        entrypoint: &format!("/{}", program.name),
        user: NON_ROOT,
        working_dir: "/",
        ports: &[],
        created,
        revision: &git(&["rev-parse", "HEAD"])?,
    };
    save(dir, &image)
}

/// Writes `sandbox-runtime-TAG.tar` into a directory: a sandbox that takes commands and files as it is.
pub fn write_runtime(dir: &Path, tag: &str, profile: &str) -> anyhow::Result<()> {
    let created = created()?;
    let sandboxd = sandboxd(profile)?;
    let owned = |path, mode, owner, bytes| Entry { path, mode, owner, bytes };
    let own = [
        owned("usr/local/bin/sandboxd", 0o755, 0, &sandboxd[..]),
        owned("workspace/", 0o755, RUNTIME_USER, &[]),
    ];
    let image = Image {
        title: "sandbox-runtime",
        description: "A sandbox with a shell, Python and sandboxd",
        tag,
        layers: vec![Layer::of_gzip(debian()?)?, Layer::of_entries(&own, created)?],
        entrypoint: "/usr/local/bin/sandboxd",
        user: &format!("{RUNTIME_USER}:{RUNTIME_USER}"),
        working_dir: RUNTIME_DIR,
        ports: &RUNTIME_PORTS,
        created,
        revision: &git(&["rev-parse", "HEAD"])?,
    };
    save(dir, &image)
}

fn sandboxd(profile: &str) -> anyhow::Result<Vec<u8>> {
    if profile == RELEASED {
        let [sandboxd] = build(&[SANDBOXD], profile)?;
        return Ok(sandboxd);
    }
    // Cargo has it already, from the call that built all of them.
    let [_, _, sandboxd] = build(&PROGRAMS, profile)?;
    Ok(sandboxd)
}

/// A root filesystem of Debian's packages.
fn debian() -> anyhow::Result<Vec<u8>> {
    let base = crate::root().join("tools/runtime/base");
    let output = Command::new(&base).stderr(std::process::Stdio::inherit()).output();
    let output = output.with_context(|| format!("failed to run {}", base.display()))?;
    ensure!(output.status.success(), "tools/runtime/base failed");
    let path = String::from_utf8(output.stdout).context("the path of the root filesystem is not UTF-8")?;
    std::fs::read(path.trim()).with_context(|| format!("failed to read {}", path.trim()))
}

fn save(dir: &Path, image: &Image) -> anyhow::Result<()> {
    let path = dir.join(format!("{}-{}.tar", image.title, image.tag));
    std::fs::write(&path, image.archive()?).with_context(|| format!("failed to write {}", path.display()))?;
    println!("{}", path.display());
    Ok(())
}

/// The time of the last commit, unless the caller says another.
fn created() -> anyhow::Result<Timestamp> {
    let epoch = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(epoch) => epoch,
        Err(_) => git(&["log", "-1", "--format=%ct"])?,
    };
    let created = epoch.parse().ok().and_then(|epoch| Timestamp::from_second(epoch).ok());
    created.context("SOURCE_DATE_EPOCH must be a number of seconds")
}

fn git(arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("git").args(arguments).current_dir(crate::root()).output();
    let output = output.context("failed to run git")?;
    ensure!(output.status.success(), "git {} failed", arguments.join(" "));
    Ok(String::from_utf8(output.stdout).context("git's answer is not UTF-8")?.trim().to_owned())
}
