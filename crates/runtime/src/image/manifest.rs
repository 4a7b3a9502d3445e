//! What a registry or an archive says an image is made of. Pure.
//!
//! ```text
//! index ─► manifest for this machine ─► config, layers
//! ```

use serde::Deserialize;

use super::config::Config;
use super::digest::Digest;
use super::error::malformed;
use super::{Error, Limits};

/// What we ask a registry for.
pub const ACCEPTED: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    #[serde(default)]
    pub media_type: String,
    pub digest: Digest,
    pub size: u64,
    #[serde(default)]
    pub platform: Option<Platform>,
    #[serde(default)]
    pub annotations: std::collections::BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Platform {
    pub architecture: String,
    pub os: String,
    #[serde(default)]
    pub variant: Option<String>,
}

/// Either of the two documents that a name can lead to.
#[derive(Debug)]
pub enum Document {
    Index(Vec<Descriptor>),
    Manifest(Manifest),
}

#[derive(Debug, Clone, Deserialize)]
pub struct Manifest {
    pub config: Descriptor,
    pub layers: Vec<Descriptor>,
}

/// The part of an image's config that is about its layers and the machine it is for.
#[derive(Debug, Deserialize)]
pub struct Described {
    #[serde(default)]
    pub architecture: String,
    #[serde(default)]
    pub os: String,
    #[serde(default)]
    pub config: Option<Config>,
    pub rootfs: RootFs,
}

#[derive(Debug, Deserialize)]
pub struct RootFs {
    pub diff_ids: Vec<Digest>,
}

impl Document {
    pub fn parse(text: &[u8]) -> Result<Self, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Either {
            #[serde(default)]
            schema_version: u64,
            manifests: Option<Vec<Descriptor>>,
            config: Option<Descriptor>,
            layers: Option<Vec<Descriptor>>,
        }
        let either: Either =
            serde_json::from_slice(text).map_err(|error| malformed("the manifest", error))?;
        match either {
            Either { manifests: Some(manifests), config: None, layers: None, .. } => {
                Ok(Self::Index(manifests))
            }
            Either { manifests: None, config: Some(config), layers: Some(layers), .. } => {
                Ok(Self::Manifest(Manifest { config, layers }))
            }
            Either { schema_version: 1, .. } => Err(malformed(
                "the manifest",
                "schema version 1 is no longer supported; push the image again",
            )),
            _ => Err(malformed("the manifest", "it is neither an index nor the manifest of one image")),
        }
    }
}

/// The manifest of an index that is for this machine.
pub fn choose<'a>(manifests: &'a [Descriptor], architecture: &str) -> Result<&'a Descriptor, Error> {
    let fits = |platform: &Platform| platform.os == "linux" && platform.architecture == architecture;
    let exact = manifests.iter().find(|it| it.platform.as_ref().is_some_and(fits));
    // An archive of one image often does not say which machine it is for.
    let only = || match manifests {
        [only] if only.platform.is_none() => Some(only),
        _ => None,
    };
    exact.or_else(only).ok_or_else(|| {
        let offered: Vec<_> = manifests
            .iter()
            .filter_map(|it| it.platform.as_ref())
            .filter(|platform| platform.os != "unknown")
            .map(|platform| format!("{}/{}", platform.os, platform.architecture))
            .collect();
        let problem = format!("it has nothing for linux/{architecture}, only for {}", offered.join(", "));
        malformed("the image", problem)
    })
}

/// How OCI calls the processor of this machine.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

impl Manifest {
    /// Reads the config and pairs every layer with its diff id.
    pub fn describe(
        &self,
        config: &[u8],
        limits: &Limits,
    ) -> Result<(Config, Vec<(Descriptor, Digest)>), Error> {
        let described: Described =
            serde_json::from_slice(config).map_err(|error| malformed("the config", error))?;
        if !matches!(described.os.as_str(), "" | "linux")
            || !(described.architecture.is_empty() || described.architecture == architecture())
        {
            let Described { os, architecture: other, .. } = described;
            let problem = format!("it is for {os}/{other}, this machine is linux/{}", architecture());
            return Err(malformed("the image", problem));
        }
        if let Some(layer) = self.layers.iter().find(|layer| !is_layer(&layer.media_type)) {
            let problem =
                format!("{} is of type {:?}, which is no layer of files", layer.digest, layer.media_type);
            return Err(malformed("the manifest", problem));
        }
        let ids = described.rootfs.diff_ids;
        if ids.len() != self.layers.len() {
            let problem = format!("it has {} diff ids for {} layers", ids.len(), self.layers.len());
            return Err(malformed("the config", problem));
        }
        if ids.is_empty() || ids.len() > limits.layers {
            let problem = format!("it has {} layers; 1 to {} are possible", ids.len(), limits.layers);
            return Err(malformed("the image", problem));
        }
        Ok((described.config.unwrap_or_default(), self.layers.iter().cloned().zip(ids).collect()))
    }
}

/// The compression is told by the data itself.
fn is_layer(media_type: &str) -> bool {
    const KNOWN: [&str; 4] = [
        "",
        "application/vnd.oci.image.layer.v1.tar",
        "application/vnd.docker.image.rootfs.diff.tar",
        "application/vnd.oci.image.layer.nondistributable.v1.tar",
    ];
    let base = media_type.strip_suffix("+gzip").or_else(|| media_type.strip_suffix("+zstd"));
    let base = base.or_else(|| media_type.strip_suffix(".gzip")).unwrap_or(media_type);
    KNOWN.contains(&base)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn descriptor(media_type: &str, platform: Option<(&str, &str)>) -> Descriptor {
        let mut value = json!({"mediaType": media_type, "digest": Digest::of(b"x"), "size": 1});
        if let Some((os, architecture)) = platform {
            value["platform"] = json!({"os": os, "architecture": architecture});
        }
        serde_json::from_value(value).expect("valid")
    }

    #[test]
    fn index_leads_to_the_manifest_for_this_machine() {
        let of = |os, architecture| descriptor("m", Some((os, architecture)));
        let all =
            [of("linux", "arm64"), of("windows", "amd64"), of("linux", "amd64"), of("unknown", "unknown")];
        assert_eq!(choose(&all, "amd64").expect("there"), &all[2]);
        let refused = choose(&all, "s390x").expect_err("not there").to_string();
        assert!(refused.contains("linux/s390x") && refused.contains("linux/arm64"), "{refused}");
        assert!(choose(&[descriptor("m", None)], "amd64").is_ok());
    }

    #[test]
    fn what_is_not_an_image_is_refused_by_its_type() {
        let layer = |media_type| {
            let config = json!({"rootfs": {"diff_ids": [Digest::of(b"y")]}}).to_string();
            let manifest =
                Manifest { config: descriptor("", None), layers: vec![descriptor(media_type, None)] };
            manifest.describe(config.as_bytes(), &Limits::default())
        };
        for known in [
            "application/vnd.oci.image.layer.v1.tar+gzip",
            "application/vnd.oci.image.layer.v1.tar+zstd",
            "application/vnd.docker.image.rootfs.diff.tar.gzip",
        ] {
            layer(known).expect("a layer");
        }
        for other in ["application/vnd.oci.image.layer.v1.tar+gzip+encrypted", "application/x-helm"] {
            assert!(layer(other).expect_err("no layer").to_string().contains(other));
        }
    }

    #[test]
    fn diff_ids_must_be_as_many_as_layers() {
        let manifest = Manifest { config: descriptor("", None), layers: vec![descriptor("", None)] };
        let config = json!({"rootfs": {"diff_ids": []}}).to_string();
        assert!(manifest.describe(config.as_bytes(), &Limits::default()).is_err());
    }

    #[test]
    fn documents_are_told_apart_by_what_they_hold() {
        let d = json!({"digest": Digest::of(b"x"), "size": 1});
        let parse = |value: serde_json::Value| Document::parse(value.to_string().as_bytes());
        assert!(matches!(parse(json!({"manifests": [d]})), Ok(Document::Index(_))));
        assert!(matches!(parse(json!({"config": d, "layers": []})), Ok(Document::Manifest(_))));
        // Both at once: two readers could take it for different images.
        assert!(parse(json!({"manifests": [], "config": d, "layers": []})).is_err());
        assert!(parse(json!({"schemaVersion": 1})).expect_err("old").to_string().contains("version 1"));
    }
}
