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

/// How the programs are built that are released.
pub const RELEASED: &str = "image";

/// Builds the programs and returns the bytes of each.
///
/// A released program is built by itself, so that it has no more than its own features. Others are built in one call,
/// which compiles only once what they share.
pub fn build<const N: usize>(programs: &[Program; N], profile: &str) -> anyhow::Result<[Vec<u8>; N]> {
    let machine = Machine::new();
    let calls = if profile == RELEASED { programs.chunks(1) } else { programs.chunks(N) };
    let mut built = Vec::with_capacity(N);
    for call in calls {
        built.extend(cargo_build(profile, &machine, call)?);
    }
    let folders = [machine.cargo, machine.target, crate::root()];
    let read = |path: PathBuf| {
        let bytes = std::fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
        match named(&bytes, &folders) {
            Some(folder) => bail!(
                "the program names {}: another machine would not build the same image",
                folder.display()
            ),
            None => Ok(bytes),
        }
    };
    let bytes: Vec<_> = built.into_iter().map(read).collect::<anyhow::Result<_>>()?;
    bytes.try_into().map_err(|_| anyhow::anyhow!("cargo built fewer programs than it was asked for"))
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

/// Builds static programs. No path of this machine and no time gets into them, so that every machine builds the same.
fn cargo_build(profile: &str, machine: &Machine, programs: &[Program]) -> anyhow::Result<Vec<PathBuf>> {
    // Cargo names our own sources relative to the workspace. Flags with the path of this clone in them would have
    // clones that share a build cache rebuild everything.
    let remap = |from: &Path, to| format!("--remap-path-prefix={}={to}", from.display());
    let flags = [remap(&machine.cargo, "/cargo"), remap(&machine.target, "/target")].join("\x1f");
    // The allocator's C code embeds the time of its compilation. As CFLAGS, because a change of these recompiles it.
    let timeless = r#"-Wno-builtin-macro-redefined -D__DATE__="" -D__TIME__="""#;
    let chosen = programs.iter().flat_map(|program| ["--package", program.package, "--bin", program.bin]);
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--locked"])
        .args(chosen)
        .args(["--target", TARGET, "--profile", profile, "--message-format", "json-render-diagnostics"])
        .env("CARGO_ENCODED_RUSTFLAGS", flags)
        .env(format!("CFLAGS_{}", TARGET.replace('-', "_")), timeless)
        .current_dir(crate::root())
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("failed to run cargo")?;
    ensure!(output.status.success(), "cargo could not build the programs for {TARGET}");
    let messages = String::from_utf8(output.stdout).context("cargo's messages are not UTF-8")?;
    let messages: Vec<Value> = messages.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let executable = |program: &Program| {
        let built = messages.iter().filter(|message| message["target"]["name"] == program.bin);
        let path = built.filter_map(|message| message["executable"].as_str()).next_back();
        path.map(PathBuf::from).with_context(|| format!("cargo does not say where {} is", program.bin))
    };
    programs.iter().map(executable).collect()
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
