//! Container images without a container engine: one static program each as an OCI archive.
//!
//! The same program, name and time give the same bytes, and so the same digest.
//!
//! ```text
//! program ─► layer (tar, gzip) ─► config ─► manifest ─► index.json ─► archive (tar)
//! ```

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Where images run; the programs are built for it.
const TARGET: &str = "x86_64-unknown-linux-musl";
/// How the one that is released is built.
pub const PROFILE: &str = "image";
/// Nobody in particular, but not root. A number, because the image has no list of users.
const USER: &str = "65532:65532";

/// A program that is released as an image.
struct Program {
    package: &'static str,
    /// What cargo calls it.
    bin: &'static str,
    /// What the image and the file in it are called.
    name: &'static str,
    description: &'static str,
}

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
    Program {
        package: "asb-sandboxd",
        bin: "asb-sandboxd",
        name: "sandboxd",
        description: "The daemon inside a sandbox that serves commands and files",
    },
];

/// What an image is made of.
struct Image<'a> {
    /// What the file in it is called.
    title: &'a str,
    description: &'a str,
    /// With its tag.
    name: &'a str,
    program: &'a [u8],
    created: Timestamp,
    revision: &'a str,
}

/// Builds every program and writes `NAME-TAG.tar` for each into a directory.
pub fn write(dir: &Path, tag: &str, profile: &str) -> anyhow::Result<()> {
    PROGRAMS.iter().try_for_each(|program| write_one(dir, tag, profile, program))
}

fn write_one(dir: &Path, tag: &str, profile: &str, program: &Program) -> anyhow::Result<()> {
    let machine = Machine::new();
    let built = build(profile, &machine, program)?;
    let bytes = std::fs::read(&built).with_context(|| format!("failed to read {}", built.display()))?;
    if let Some(folder) = named(&bytes, &[machine.cargo, machine.target, crate::root()]) {
        bail!("the program names {}: another machine would not build the same image", folder.display());
    }
    let created = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(epoch) => epoch,
        Err(_) => git(&["log", "-1", "--format=%ct"])?,
    };
    let created = created.parse().ok().and_then(|epoch| Timestamp::from_second(epoch).ok());
    let image = Image {
        title: program.name,
        description: program.description,
        name: &format!("{}:{tag}", program.name),
        program: &bytes,
        created: created.context("SOURCE_DATE_EPOCH must be a number of seconds")?,
        revision: &git(&["rev-parse", "HEAD"])?,
    };
    let path = dir.join(format!("{}-{tag}.tar", program.name));
    std::fs::write(&path, archive(&image)?).with_context(|| format!("failed to write {}", path.display()))?;
    println!("{}", path.display());
    Ok(())
}

/// Folders of this machine that the compiler would name.
struct Machine {
    cargo: PathBuf,
    target: PathBuf,
}

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

/// The first of these folders that a program names. One like `/src` is left out: its name says nothing.
fn named<'a>(program: &[u8], folders: &'a [PathBuf]) -> Option<&'a Path> {
    let telling = folders.iter().filter(|folder| folder.components().count() > 2);
    let names = |folder: &Path| {
        let name = folder.as_os_str().as_encoded_bytes();
        program.windows(name.len()).any(|bytes| bytes == name)
    };
    telling.map(PathBuf::as_path).find(|folder| names(folder))
}

/// Builds the static program. No path of this machine and no time gets into it, so that every machine builds the same.
fn build(profile: &str, machine: &Machine, program: &Program) -> anyhow::Result<PathBuf> {
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

fn git(arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("git").args(arguments).current_dir(crate::root()).output();
    let output = output.context("failed to run git")?;
    ensure!(output.status.success(), "git {} failed", arguments.join(" "));
    Ok(String::from_utf8(output.stdout).context("git's answer is not UTF-8")?.trim().to_owned())
}

fn archive(image: &Image) -> anyhow::Result<Vec<u8>> {
    let uncompressed = tar(&[(image.title.to_owned(), 0o755, image.program)], image.created)?;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut encoder, &uncompressed)?;
    let layer = encoder.finish()?;
    let created = image.created.to_string();
    let (_, tag) = image.name.split_once(':').context("the name of an image needs a tag")?;
    let labels = json!({
        "org.opencontainers.image.title": image.title,
        "org.opencontainers.image.description": image.description,
        "org.opencontainers.image.licenses": env!("CARGO_PKG_LICENSE"),
        "org.opencontainers.image.version": tag,
        "org.opencontainers.image.revision": image.revision,
        "org.opencontainers.image.created": created,
    });
    let config = serde_json::to_vec(&json!({
        "architecture": "amd64",
        "os": "linux",
        "created": created,
        "config": {"User": USER, "Entrypoint": [format!("/{}", image.title)], "WorkingDir": "/", "Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": [digest(&uncompressed)]},
        "history": [{"created": created, "created_by": "cargo xtask image"}],
    }))?;
    let manifest = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar+gzip", &layer)],
        "annotations": labels,
    }))?;
    let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
    entry["platform"] = json!({"architecture": "amd64", "os": "linux"});
    entry["annotations"] =
        json!({"io.containerd.image.name": image.name, "org.opencontainers.image.ref.name": tag});
    let index = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [entry],
    }))?;
    let blob = |bytes: &[u8]| format!("blobs/sha256/{}", &digest(bytes)["sha256:".len()..]);
    let files = [
        ("oci-layout".to_owned(), 0o644, &br#"{"imageLayoutVersion":"1.0.0"}"#[..]),
        ("index.json".to_owned(), 0o644, &index[..]),
        (blob(&manifest), 0o644, &manifest[..]),
        (blob(&config), 0o644, &config[..]),
        (blob(&layer), 0o644, &layer[..]),
    ];
    tar(&files, image.created)
}

fn tar(files: &[(String, u32, &[u8])], time: Timestamp) -> anyhow::Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, mode, bytes) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        header.set_mode(*mode);
        header.set_mtime(time.as_second().try_into().context("images are not older than 1970")?);
        header.set_uid(0);
        header.set_gid(0);
        builder.append_data(&mut header, name, *bytes)?;
    }
    Ok(builder.into_inner()?)
}

fn descriptor(media_type: &str, bytes: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": digest(bytes), "size": bytes.len()})
}

fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read;

    use super::*;

    fn example(program: &[u8]) -> Vec<u8> {
        let created = Timestamp::from_second(1_700_000_000).unwrap();
        let (title, description) = ("agent-sandbox-controller", "controllers");
        let name = "agent-sandbox-controller:1.2";
        archive(&Image { title, description, name, program, created, revision: "abc" }).unwrap()
    }

    fn unpack(tar: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut archive = tar::Archive::new(tar);
        let file = |entry: Result<tar::Entry<'_, &[u8]>, _>| {
            let mut entry = entry.unwrap();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            (entry.path().unwrap().display().to_string(), bytes)
        };
        archive.entries().unwrap().map(file).collect()
    }

    #[test]
    fn the_same_program_makes_the_same_image() {
        assert_eq!(example(b"program"), example(b"program"));
        assert_ne!(example(b"program"), example(b"another"));
    }

    #[test]
    fn a_program_that_names_a_folder_of_this_machine_is_found() {
        let folders = ["/src", "/home/me/.cargo", "/home/me/target"].map(PathBuf::from);
        let found = |program: &[u8]| named(program, &folders).map(Path::to_owned);
        assert_eq!(found(b"\0lib.rs/home/me/target/out/x.rs\xff"), Some("/home/me/target".into()));
        assert_eq!(found(b"/cargo/registry/src/a-1.0/src/lib.rs /home/me"), None);
    }

    #[test]
    fn every_digest_of_an_image_is_that_of_its_blob() {
        let files = unpack(&example(b"program"));
        let blob = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().unwrap();
            let bytes = &files[&format!("blobs/{}", digest.replace(':', "/"))];
            assert_eq!(super::digest(bytes), digest);
            assert_eq!(bytes.len() as u64, descriptor["size"].as_u64().unwrap());
            bytes
        };
        let index: Value = serde_json::from_slice(&files["index.json"]).unwrap();
        assert_eq!(
            index["manifests"][0]["annotations"]["io.containerd.image.name"],
            "agent-sandbox-controller:1.2"
        );
        let manifest: Value = serde_json::from_slice(blob(&index["manifests"][0])).unwrap();
        let config: Value = serde_json::from_slice(blob(&manifest["config"])).unwrap();
        let mut layer = Vec::new();
        flate2::read::GzDecoder::new(&blob(&manifest["layers"][0])[..]).read_to_end(&mut layer).unwrap();
        assert_eq!(config["rootfs"]["diff_ids"], json!([super::digest(&layer)]));
        assert_eq!(
            unpack(&layer),
            BTreeMap::from([("agent-sandbox-controller".to_owned(), b"program".to_vec())])
        );
    }

    #[test]
    fn the_program_runs_as_a_user_who_is_not_root() {
        let files = unpack(&example(b"program"));
        let configs = files.values().filter_map(|bytes| serde_json::from_slice::<Value>(bytes).ok());
        let users: Vec<_> = configs.filter_map(|config| config["config"].get("User").cloned()).collect();
        assert_eq!(users, [json!("65532:65532")]);
    }
}
