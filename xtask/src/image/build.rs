//! Static programs that every machine builds to the same bytes.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use serde_json::Value;

/// Where images run; the programs are built for it.
const TARGET: &str = "x86_64-unknown-linux-musl";

/// A program that is released in an image.
pub struct Program {
    pub package: &'static str,
    /// What cargo calls it.
    pub bin: &'static str,
    /// What the image and the file in it are called.
    pub name: &'static str,
    pub description: &'static str,
}

/// Directories of this machine that the compiler would name.
struct Machine {
    cargo: PathBuf,
    target: PathBuf,
}

// === impl Program ===

impl Program {
    /// Builds it and returns its bytes.
    pub fn build(&self, profile: &str) -> anyhow::Result<Vec<u8>> {
        let machine = Machine::new();
        let built = cargo_build(profile, &machine, self)?;
        let bytes = std::fs::read(&built).with_context(|| format!("failed to read {}", built.display()))?;
        if let Some(folder) = named(&bytes, &[machine.cargo, machine.target, crate::root()]) {
            bail!("the program names {}: another machine would not build the same image", folder.display());
        }
        Ok(bytes)
    }
}

// === impl Machine ===

impl Machine {
    fn new() -> Self {
        let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cargo");
        let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
        Self {
            cargo: std::env::var_os("CARGO_HOME").map_or_else(home, PathBuf::from),
            // Cargo starts in the root.
            target: crate::root().join(target),
        }
    }
}

/// The first of these directories that a program names. One like `/src` is left out: its name says nothing.
fn named<'a>(program: &[u8], folders: &'a [PathBuf]) -> Option<&'a Path> {
    let telling = folders.iter().filter(|folder| folder.components().count() > 2);
    let names = |folder: &Path| {
        let name = folder.as_os_str().as_encoded_bytes();
        program.windows(name.len()).any(|bytes| bytes == name)
    };
    telling.map(PathBuf::as_path).find(|folder| names(folder))
}

/// Builds the static program. No path of this machine and no time gets into it, so that every machine builds the same.
fn cargo_build(profile: &str, machine: &Machine, program: &Program) -> anyhow::Result<PathBuf> {
    // Cargo names our own sources relative to the workspace. Flags with the path of this clone in them would have
    // clones that share a build cache build everything anew.
    let remap = |from: &Path, to| format!("--remap-path-prefix={}={to}", from.display());
    let flags = [remap(&machine.cargo, "/cargo"), remap(&machine.target, "/target")].join("\x1f");
    // The allocator is in C and would tell when it was compiled. As flags, because a change of these has C compiled anew.
    let timeless = r#"-Wno-builtin-macro-redefined -D__DATE__="" -D__TIME__="""#;
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--locked", "--package", program.package, "--bin", program.bin])
        .args(["--target", TARGET, "--profile", profile, "--message-format", "json-render-diagnostics"])
        .env("CARGO_ENCODED_RUSTFLAGS", flags)
        .env(format!("CFLAGS_{}", TARGET.replace('-', "_")), timeless)
        .current_dir(crate::root())
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("failed to run cargo")?;
    ensure!(output.status.success(), "cargo could not build {} for {TARGET}", program.name);
    let messages = String::from_utf8(output.stdout).context("cargo's messages are not UTF-8")?;
    let built = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let program = built.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).next_back();
    program.context("cargo does not say where the program is")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_names_a_folder_of_this_machine_is_found() {
        let folders = ["/src", "/home/me/.cargo", "/home/me/target"].map(PathBuf::from);
        let found = |program: &[u8]| named(program, &folders).map(Path::to_owned);
        assert_eq!(found(b"\0lib.rs/home/me/target/out/x.rs\xff"), Some("/home/me/target".into()));
        assert_eq!(found(b"/cargo/registry/src/a-1.0/src/lib.rs /home/me"), None);
    }
}
