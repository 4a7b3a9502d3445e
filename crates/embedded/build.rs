//! Builds the two static programs that travel inside `asb`, by a cargo of their own.

use std::path::{Path, PathBuf};
use std::process::{Command, exit};

const PROGRAMS: [&str; 2] = ["asb-supervisor", "asb-sandboxd"];
const PROFILE: &str = "tiny";

fn main() {
    let workspace = Path::new(&variable("CARGO_MANIFEST_DIR")).join("../..");
    for source in ["Cargo.lock", "Cargo.toml", "crates/supervisor", "crates/sandboxd"] {
        println!("cargo::rerun-if-changed={}", workspace.join(source).display());
    }
    let target = format!("{}-unknown-linux-musl", variable("CARGO_CFG_TARGET_ARCH"));
    require(&target);
    let out = PathBuf::from(variable("OUT_DIR"));
    // OUT_DIR is TARGET_DIR/PROFILE/build/PACKAGE/out. The outer cargo holds the lock of TARGET_DIR/PROFILE.
    let beside = out.ancestors().nth(4).unwrap_or(&out).join("embedded");
    build(&workspace, &target, &beside);

    let mut hash = Fnv::default();
    for program in PROGRAMS {
        let built = beside.join(&target).join(PROFILE).join(program);
        let contents = std::fs::read(&built)
            .unwrap_or_else(|error| fail(&format!("cannot read {}: {error}", built.display())));
        hash.add(&contents);
        std::fs::write(out.join(program), &contents)
            .unwrap_or_else(|error| fail(&format!("cannot write to {}: {error}", out.display())));
    }
    println!("cargo::rustc-env=ASB_EMBEDDED_VERSION={:016x}", hash.0);
}

fn build(workspace: &Path, target: &str, target_dir: &Path) {
    let mut cargo = clean(Command::new(variable("CARGO")));
    cargo.current_dir(workspace).args([
        "build",
        "--locked",
        "--profile",
        PROFILE,
        "--target",
        target,
        "--target-dir",
    ]);
    cargo.arg(target_dir);
    for program in PROGRAMS {
        cargo.args(["--package", program, "--bin", program]);
    }
    match cargo.status() {
        Ok(status) if status.success() => {}
        Ok(_) => {
            fail(&format!("could not build {} for {target}; its errors are above", PROGRAMS.join(" and ")))
        }
        Err(error) => fail(&format!("could not run cargo: {error}")),
    }
}

/// Makes sure the standard library for the target is there.
fn require(target: &str) {
    let installed = || {
        let sysroot = clean(Command::new(variable("RUSTC"))).args(["--print", "sysroot"]).output();
        let sysroot = sysroot.ok().and_then(|output| String::from_utf8(output.stdout).ok());
        sysroot.is_some_and(|sysroot| {
            Path::new(sysroot.trim()).join("lib/rustlib").join(target).join("lib").is_dir()
        })
    };
    if installed() {
        return;
    }
    let added = clean(Command::new("rustup")).args(["target", "add", target]).status();
    if !added.is_ok_and(|status| status.success()) || !installed() {
        fail(&format!("the Rust target `{target}` is missing; install it with `rustup target add {target}`"));
    }
}

/// Without what the outer cargo says about *its* build: flags, wrappers, features, the job server.
fn clean(mut command: Command) -> Command {
    const KEPT: [&str; 6] =
        ["CARGO_HOME", "CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTRIES_", "CARGO_REGISTRY_", "CARGO_SOURCE_"];
    const DROPPED: [&str; 14] = [
        "DEBUG",
        "HOST",
        "LD_LIBRARY_PATH",
        "MAKEFLAGS",
        "MFLAGS",
        "NUM_JOBS",
        "OPT_LEVEL",
        "OUT_DIR",
        "PROFILE",
        "RUSTC",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTDOC",
        "RUSTFLAGS",
        "TARGET",
    ];
    for (name, _) in std::env::vars_os() {
        let Some(name) = name.to_str() else { continue };
        let of_cargo = name.starts_with("CARGO") && !KEPT.iter().any(|kept| name.starts_with(kept));
        if of_cargo || name.starts_with("DEP_") || DROPPED.contains(&name) {
            command.env_remove(name);
        }
    }
    command
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| fail(&format!("cargo did not set {name}")))
}

fn fail(message: &str) -> ! {
    println!("cargo::error={message}");
    exit(1)
}

/// FNV-1a: tells builds apart; nothing relies on it being hard to forge.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        self.0 =
            bytes.iter().fold(self.0, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    }
}
