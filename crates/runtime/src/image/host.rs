//! The zero-download image: the machine's programs, and nothing else of it.
//!
//! `/usr` is shown as it is. Around it stands a skeleton of our own making: empty directories, and the few public
//! files of `/etc` without which interpreters and TLS do not work. A file is copied only if it is named here and every
//! user of the machine may read it.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::{Config, Image, RootFs, Users};
use crate::powers;

/// Counted up when what is made below changes.
const RECIPE: u32 = 4;

/// Where programs and libraries are, either in `/usr` through a link or in directories of their own.
const SYSTEM: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

const DIRECTORIES: [(&str, u32); 19] = [
    ("app", 0o755),
    ("dev", 0o755),
    ("etc", 0o755),
    ("home", 0o755),
    ("home/user", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("proc", 0o755),
    ("root", 0o700),
    ("run", 0o755),
    ("srv", 0o755),
    ("sys", 0o755),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("var", 0o755),
    ("var/cache", 0o755),
    ("var/lib", 0o755),
    ("var/log", 0o755),
    ("var/tmp", 0o1777),
];

/// Settings of programs that are the same on every machine of this distribution.
const PUBLIC: [&str; 32] = [
    "alternatives",
    "bash.bashrc",
    "ca-certificates",
    "ca-certificates.conf",
    "debian_version",
    "fonts",
    "gai.conf",
    "host.conf",
    "inputrc",
    "java-17-openjdk",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "localtime",
    "magic",
    "magic.mime",
    "mime.types",
    "networks",
    "os-release",
    "perl",
    "pki/ca-trust/extracted",
    "pki/tls/certs",
    "profile",
    "protocols",
    "python3",
    "python3.11",
    "python3.12",
    "python3.13",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
];

const FILES: [(&str, &str); 7] = [
    // Something of the sandbox's own is mounted over these.
    ("etc/hostname", ""),
    ("etc/hosts", ""),
    ("etc/resolv.conf", ""),
    (
        "etc/passwd",
        "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000:user:/home/user:/bin/bash\n\
         nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    ),
    ("etc/group", "root:x:0:\ntty:x:5:\nuser:x:1000:\nnogroup:x:65534:\n"),
    (
        "etc/nsswitch.conf",
        "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\nprotocols: files\n",
    ),
    ("etc/shells", "/bin/sh\n/bin/bash\n"),
];

/// Makes the skeleton unless it is there, and describes the image.
pub fn build(directory: &Path) -> io::Result<Image> {
    let layer = directory.join(name()?);
    if !layer.exists() {
        // One at a time, in this program or another; a second one then finds it done.
        let lock = std::fs::File::create(directory.join("lock"))?;
        lock.lock()?;
        let temporary = directory.join("host.tmp");
        crate::remove::directory(&temporary)?;
        if !layer.exists() {
            skeleton(&temporary)?;
            std::fs::rename(&temporary, &layer)?;
        }
        drop(lock);
    }
    let file = |wanted: &str| FILES.iter().find(|(name, _)| *name == wanted).map_or("", |(_, text)| text);
    let env = ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"];
    Ok(Image {
        root: RootFs { layers: vec![layer], host_dirs: host_dirs() },
        config: Config {
            env: env.map(str::to_owned).to_vec(),
            working_dir: "/root".to_owned(),
            ..Config::default()
        },
        users: Users::parse(file("etc/passwd"), file("etc/group")),
        volumes: Vec::new(),
        // Kubernetes has no word for it; the recipe and the libraries of the machine make it what it is.
        id: format!("host@{}", name()?),
        bytes: 0,
    })
}

/// A layer in use is never changed: another recipe or another set of libraries gets another name.
fn name() -> io::Result<String> {
    let cache = match std::fs::metadata("/etc/ld.so.cache") {
        Ok(cache) => cache.modified()?.duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs(),
        Err(_) => 0,
    };
    Ok(format!("host-{RECIPE}-{cache:x}"))
}

fn host_dirs() -> Vec<PathBuf> {
    let own = SYSTEM
        .iter()
        .map(|name| Path::new("/").join(name))
        .filter(|path| path.is_dir() && !path.is_symlink());
    std::iter::once(PathBuf::from("/usr")).chain(own).collect()
}

fn skeleton(root: &Path) -> io::Result<()> {
    std::fs::create_dir(root)?;
    std::fs::set_permissions(root, Permissions::from_mode(0o755))?;
    for (name, mode) in DIRECTORIES {
        let path = root.join(name);
        std::fs::create_dir(&path)?;
        std::fs::set_permissions(&path, Permissions::from_mode(mode))?;
    }
    let user = powers::here().owner(1000);
    std::os::unix::fs::chown(root.join("home/user"), Some(user), Some(user))?;
    for name in SYSTEM {
        let path = Path::new("/").join(name);
        match std::fs::read_link(&path) {
            Ok(target) => symlink(target, root.join(name))?,
            Err(_) if path.is_dir() => std::fs::create_dir(root.join(name))?,
            Err(_) => {}
        }
    }
    for name in PUBLIC {
        copy(&Path::new("/etc").join(name), &root.join("etc").join(name))?;
    }
    for (name, contents) in FILES {
        std::fs::write(root.join(name), contents)?;
        std::fs::set_permissions(root.join(name), Permissions::from_mode(0o644))?;
    }
    Ok(())
}

/// Copies what is there and public: links as links, files and directories that everybody may read.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let Ok(found) = std::fs::symlink_metadata(from) else { return Ok(()) };
    if let Some(parent) = to.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let public = |wanted: u32| found.permissions().mode() & wanted == wanted;
    if found.is_symlink() {
        let target = std::fs::read_link(from)?;
        // Hundreds of alternatives are manual pages; nobody reads them in a sandbox, and every link costs a start.
        if target.starts_with("/usr/share/man") { Ok(()) } else { symlink(target, to) }
    } else if found.is_dir() && public(0o005) {
        std::fs::create_dir_all(to)?;
        for entry in std::fs::read_dir(from)? {
            let name = entry?.file_name();
            copy(&from.join(&name), &to.join(&name))?;
        }
        std::fs::set_permissions(to, Permissions::from_mode(0o755))
    } else if found.is_file() && public(0o004) {
        std::fs::copy(from, to)?;
        std::fs::set_permissions(to, Permissions::from_mode(if public(0o001) { 0o755 } else { 0o644 }))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_at_once_get_the_same_whole_image() {
        let directory = tempfile::tempdir().expect("temporary directory");
        std::thread::scope(|scope| {
            let builders: Vec<_> =
                (0..4).map(|_| scope.spawn(|| build(directory.path()).expect("built"))).collect();
            for builder in builders {
                let layer = builder.join().expect("finished").root.layers[0].clone();
                assert!(layer.join("etc/shells").exists(), "{} is not whole", layer.display());
            }
        });
    }

    #[test]
    fn host_image_is_built_once_and_holds_no_secret() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let first = build(directory.path()).expect("built");
        let second = build(directory.path()).expect("found");
        assert_eq!(first.root.layers, second.root.layers);
        let etc = first.root.layers[0].join("etc");
        assert!(etc.join("passwd").exists());
        for secret in ["shadow", "gshadow", "ssl/private", "ssh", "machine-id"] {
            assert!(!etc.join(secret).exists(), "{secret} is in the image");
        }
        assert!(!directory.path().join("host.tmp").exists(), "nothing half made is left");
    }
}
