//! Images made by hand, byte for byte: good ones, and those that nobody should ever make.

use std::collections::BTreeMap;
use std::io::Write;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// An image in the making.
#[derive(Debug, Clone, Default)]
pub struct ImageBuilder {
    /// Compressed form and diff id.
    layers: Vec<(Vec<u8>, String)>,
    config: Value,
}

/// An image with everything that a registry or a layout holds.
#[derive(Debug, Clone)]
pub struct Built {
    pub manifest: Vec<u8>,
    pub config: Vec<u8>,
    /// Layers, bottom first.
    pub layers: Vec<Vec<u8>>,
    pub diff_ids: Vec<String>,
}

/// A tar archive in the making.
pub struct TarBuilder(tar::Builder<Vec<u8>>);

pub fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

impl ImageBuilder {
    /// A layer of small files; a name that ends in a slash is a directory.
    pub fn files(self, files: &[(&str, &str)]) -> Self {
        let tar =
            files.iter().fold(TarBuilder::default(), |tar, (name, text)| match name.strip_suffix('/') {
                Some(_) => tar.entry(tar::EntryType::Directory, name, 0o755, "", b""),
                None => tar.entry(tar::EntryType::Regular, name, 0o755, "", text.as_bytes()),
            });
        self.tar(&tar.finish())
    }

    /// A layer from a tar archive, compressed by gzip.
    pub fn tar(self, tar: &[u8]) -> Self {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(tar).expect("memory takes everything");
        self.blob(encoder.finish().expect("memory takes everything"), digest(tar))
    }

    /// A layer in whatever form, with whatever diff id.
    pub fn blob(mut self, blob: Vec<u8>, diff_id: String) -> Self {
        self.layers.push((blob, diff_id));
        self
    }

    /// How it wants to run: `{"Entrypoint": […], …}`.
    pub fn config(mut self, config: Value) -> Self {
        self.config = config;
        self
    }

    pub fn build(self) -> Built {
        let (layers, diff_ids): (Vec<_>, Vec<_>) = self.layers.into_iter().unzip();
        let config = json!({
            "architecture": architecture(), "os": "linux", "config": self.config,
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        let config = config.to_string().into_bytes();
        let kind = "application/vnd.oci.image.layer.v1.tar+gzip";
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
            "layers": layers.iter().map(|layer| descriptor(kind, layer)).collect::<Vec<_>>(),
        });
        Built { manifest: manifest.to_string().into_bytes(), config, layers, diff_ids }
    }
}

impl Built {
    pub fn digest(&self) -> String {
        digest(&self.manifest)
    }

    /// Config and layers by digest.
    pub fn blobs(&self) -> BTreeMap<String, Vec<u8>> {
        let all = self.layers.iter().chain([&self.config]);
        all.map(|blob| (digest(blob), blob.clone())).collect()
    }

    /// An index that has this image for this machine and another for a machine that nobody has.
    pub fn index(&self) -> Vec<u8> {
        let of = |manifest: &[u8], architecture: &str| {
            let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", manifest);
            entry["platform"] = json!({"os": "linux", "architecture": architecture});
            entry
        };
        let manifests = [of(b"another", "s390x"), of(&self.manifest, architecture())];
        json!({"schemaVersion": 2, "manifests": manifests}).to_string().into_bytes()
    }

    /// The files of an OCI layout, under a name or without one.
    pub fn layout(&self, name: Option<&str>) -> BTreeMap<String, Vec<u8>> {
        let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", &self.manifest);
        if let Some(name) = name {
            entry["annotations"] = json!({"io.containerd.image.name": name});
        }
        let index = json!({"schemaVersion": 2, "manifests": [entry]}).to_string();
        let path = |digest: &str| format!("blobs/{}", digest.replace(':', "/"));
        let blobs = self.blobs().into_iter().map(|(digest, blob)| (path(&digest), blob));
        let rest = [
            ("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()),
            ("index.json".to_owned(), index.into_bytes()),
            (path(&self.digest()), self.manifest.clone()),
        ];
        blobs.chain(rest).collect()
    }

    /// What `docker save` writes; layers are not compressed there. `tars` are they, bottom first.
    pub fn docker_save(&self, name: &str, tars: &[Vec<u8>]) -> Vec<u8> {
        let hex = digest(&self.config)["sha256:".len()..].to_owned();
        let paths: Vec<_> = (0..tars.len()).map(|at| format!("{at}/layer.tar")).collect();
        let manifest =
            json!([{"Config": format!("{hex}.json"), "RepoTags": [name], "Layers": paths}]).to_string();
        let mut archive = TarBuilder::default().file("manifest.json", manifest.as_bytes());
        archive = archive.file(&format!("{hex}.json"), &self.config);
        for (path, tar) in paths.iter().zip(tars) {
            archive = archive.file(path, tar);
        }
        archive.finish()
    }
}

impl Default for TarBuilder {
    fn default() -> Self {
        Self(tar::Builder::new(Vec::new()))
    }
}

impl TarBuilder {
    /// Any entry, owned by root. Written as it is said: nothing refuses what attackers would write.
    pub fn entry(mut self, kind: tar::EntryType, path: &str, mode: u32, link: &str, data: &[u8]) -> Self {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(data.len() as u64);
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        self.0.append(&header, data).expect("memory takes everything");
        self
    }

    pub fn file(self, path: &str, data: &[u8]) -> Self {
        self.entry(tar::EntryType::Regular, path, 0o644, "", data)
    }

    pub fn directory(self, path: &str, mode: u32) -> Self {
        self.entry(tar::EntryType::Directory, path, mode, "", b"")
    }

    pub fn finish(self) -> Vec<u8> {
        self.0.into_inner().expect("memory takes everything")
    }
}

fn descriptor(media_type: &str, bytes: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": digest(bytes), "size": bytes.len()})
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
