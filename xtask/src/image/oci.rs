//! OCI archives: layers, a config, a manifest and an index in one tar.
//!
//! ```text
//! files ─► layer (tar, gzip) ─► config ─► manifest ─► index.json ─► archive (tar)
//! ```

use std::io::{Read, Write};

use anyhow::Context;
use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// What an image is made of.
pub struct Image<'a> {
    pub title: &'a str,
    pub description: &'a str,
    pub tag: &'a str,
    /// The lowest first.
    pub layers: Vec<Layer>,
    pub entrypoint: &'a str,
    /// Numbers: an image need not have a list of users.
    pub user: &'a str,
    pub working_dir: &'a str,
    pub ports: &'a [u16],
    pub created: Timestamp,
    pub revision: &'a str,
}

pub struct Layer {
    compressed: Vec<u8>,
    /// The digest of the tar before compression.
    diff_id: String,
}

/// A file or directory of a layer.
pub struct Entry<'a> {
    /// Without a leading slash; a directory ends with one.
    pub path: &'a str,
    pub mode: u32,
    /// User and group.
    pub owner: u64,
    pub bytes: &'a [u8],
}

// === impl Layer ===

impl Layer {
    pub fn of_entries(entries: &[Entry], time: Timestamp) -> anyhow::Result<Self> {
        let tar = tar(entries, time)?;
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(&tar)?;
        Ok(Self { compressed: encoder.finish()?, diff_id: digest(&tar) })
    }

    /// A tar that is compressed already.
    pub fn of_gzip(compressed: Vec<u8>) -> anyhow::Result<Self> {
        let mut hash = Sha256::new();
        let mut decoder = flate2::read::GzDecoder::new(&compressed[..]);
        let mut buffer = vec![0; 1 << 20];
        loop {
            match decoder.read(&mut buffer).context("the layer is not a gzip archive")? {
                0 => break,
                count => hash.update(&buffer[..count]),
            }
        }
        let diff_id = format!("sha256:{}", hex(&hash.finalize()));
        Ok(Self { compressed, diff_id })
    }
}

// === impl Image ===

impl Image<'_> {
    /// The image as one archive. The same parts make the same bytes.
    pub fn archive(&self) -> anyhow::Result<Vec<u8>> {
        let config = serde_json::to_vec(&self.config())?;
        let layers: Vec<_> = self
            .layers
            .iter()
            .map(|layer| descriptor("application/vnd.oci.image.layer.v1.tar+gzip", &layer.compressed))
            .collect();
        let manifest = serde_json::to_vec(&json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
            "layers": layers,
            "annotations": self.labels(),
        }))?;
        let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
        entry["platform"] = json!({"architecture": "amd64", "os": "linux"});
        entry["annotations"] = json!({
            "io.containerd.image.name": format!("{}:{}", self.title, self.tag),
            "org.opencontainers.image.ref.name": self.tag,
        });
        let index = serde_json::to_vec(&json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [entry],
        }))?;
        let blobs = [&manifest[..], &config[..]].into_iter();
        let blobs = blobs.chain(self.layers.iter().map(|layer| &layer.compressed[..]));
        let blobs: Vec<(String, &[u8])> = blobs
            .map(|bytes| (format!("blobs/sha256/{}", &digest(bytes)["sha256:".len()..]), bytes))
            .collect();
        let named = [("oci-layout", &br#"{"imageLayoutVersion":"1.0.0"}"#[..]), ("index.json", &index[..])];
        let blobs = blobs.iter().map(|(path, bytes)| (path.as_str(), *bytes));
        let entries: Vec<_> = named
            .into_iter()
            .chain(blobs)
            .map(|(path, bytes)| Entry { path, mode: 0o644, owner: 0, bytes })
            .collect();
        tar(&entries, self.created)
    }

    fn config(&self) -> Value {
        let created = self.created.to_string();
        let ports: serde_json::Map<_, _> =
            self.ports.iter().map(|port| (format!("{port}/tcp"), json!({}))).collect();
        let diff_ids: Vec<_> = self.layers.iter().map(|layer| &layer.diff_id).collect();
        let history =
            self.layers.iter().map(|_| json!({"created": created, "created_by": "cargo xtask image"}));
        let mut config = json!({
            "User": self.user, "Entrypoint": [self.entrypoint], "WorkingDir": self.working_dir, "Labels": self.labels(),
        });
        if !ports.is_empty() {
            config["ExposedPorts"] = ports.into();
        }
        json!({
            "architecture": "amd64", "os": "linux", "created": created, "config": config,
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
            "history": history.collect::<Vec<_>>(),
        })
    }

    fn labels(&self) -> Value {
        json!({
            "org.opencontainers.image.title": self.title,
            "org.opencontainers.image.description": self.description,
            "org.opencontainers.image.licenses": env!("CARGO_PKG_LICENSE"),
            "org.opencontainers.image.version": self.tag,
            "org.opencontainers.image.revision": self.revision,
            "org.opencontainers.image.created": self.created.to_string(),
        })
    }
}

fn tar(entries: &[Entry], time: Timestamp) -> anyhow::Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    for entry in entries {
        let mut header = tar::Header::new_ustar();
        let is_directory = entry.path.ends_with('/');
        header.set_entry_type(if is_directory { tar::EntryType::Directory } else { tar::EntryType::Regular });
        header.set_size(entry.bytes.len() as u64);
        header.set_mode(entry.mode);
        header.set_mtime(time.as_second().try_into().context("images are not older than 1970")?);
        header.set_uid(entry.owner);
        header.set_gid(entry.owner);
        builder.append_data(&mut header, entry.path, entry.bytes)?;
    }
    Ok(builder.into_inner()?)
}

fn descriptor(media_type: &str, bytes: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": digest(bytes), "size": bytes.len()})
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(bytes)))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const TIME: i64 = 1_700_000_000;

    fn example(program: &[u8]) -> Vec<u8> {
        let created = Timestamp::from_second(TIME).unwrap();
        let entry = |path, mode, owner, bytes| Entry { path, mode, owner, bytes };
        let lower = Layer::of_entries(&[entry("bin/program", 0o755, 0, program)], created).unwrap();
        let upper = Layer::of_entries(&[entry("work/", 0o755, 1000, &[])], created).unwrap();
        let image = Image {
            title: "agent-sandbox-controller",
            description: "controllers",
            tag: "1.2",
            layers: vec![lower, Layer::of_gzip(upper.compressed).unwrap()],
            entrypoint: "/bin/program",
            user: "65532:65532",
            working_dir: "/",
            ports: &[8888],
            created,
            revision: "abc",
        };
        image.archive().unwrap()
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

    fn config(files: &BTreeMap<String, Vec<u8>>) -> Value {
        let configs = files.values().filter_map(|bytes| serde_json::from_slice::<Value>(bytes).ok());
        configs.into_iter().find(|config| config.get("rootfs").is_some()).unwrap()
    }

    #[test]
    fn the_same_program_makes_the_same_image() {
        assert_eq!(example(b"program"), example(b"program"));
        assert_ne!(example(b"program"), example(b"another"));
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
        let layers: Vec<_> = [0, 1]
            .map(|layer| {
                let mut tar = Vec::new();
                let compressed = &blob(&manifest["layers"][layer])[..];
                flate2::read::GzDecoder::new(compressed).read_to_end(&mut tar).unwrap();
                tar
            })
            .into();
        assert_eq!(config["rootfs"]["diff_ids"], json!([digest(&layers[0]), digest(&layers[1])]));
        assert_eq!(unpack(&layers[0]), BTreeMap::from([("bin/program".to_owned(), b"program".to_vec())]));
    }

    #[test]
    fn a_layer_keeps_modes_and_owners() {
        let directory = [Entry { path: "work/", mode: 0o750, owner: 1000, bytes: &[] }];
        let bytes = tar(&directory, Timestamp::from_second(TIME).unwrap()).unwrap();
        let mut archive = tar::Archive::new(&bytes[..]);
        let entry = archive.entries().unwrap().next().unwrap().unwrap();
        let header = entry.header();
        assert_eq!((header.uid().unwrap(), header.gid().unwrap()), (1000, 1000));
        assert_eq!((header.mode().unwrap(), header.entry_type()), (0o750, tar::EntryType::Directory));
    }

    #[test]
    fn the_program_runs_as_a_user_who_is_not_root() {
        let config = config(&unpack(&example(b"program")));
        assert_eq!(config["config"]["User"], "65532:65532");
        assert_eq!(config["config"]["Entrypoint"], json!(["/bin/program"]));
        assert_eq!(config["config"]["ExposedPorts"], json!({"8888/tcp": {}}));
    }
}
