//! A store of its own for each test.

use std::path::{Path, PathBuf};
use std::time::Duration;

use asb_runtime::Images;
use asb_runtime::image::{Error, Keyring, Record, Reference, Registries};

pub struct World {
    pub images: Images,
    pub directory: tempfile::TempDir,
}

impl World {
    pub fn new() -> Self {
        Self::with(Registries::default())
    }

    pub fn with(registries: Registries) -> Self {
        assert!(
            rustix::process::getuid().is_root(),
            "\n\n  These tests unpack images and must be run as root.\n\n"
        );
        let directory = tempfile::Builder::new().prefix("asb-test-").tempdir().unwrap();
        // Tries follow each other at once: nobody wants to wait in a test.
        let registries = Registries { first_pause: Duration::from_millis(1), ..registries };
        Self { images: Images::with(&directory.path().join("images"), registries).unwrap(), directory }
    }

    pub async fn pull(&self, name: &str) -> Result<Record, Error> {
        self.pull_as(name, &Keyring::default()).await
    }

    pub async fn pull_as(&self, name: &str, keyring: &Keyring) -> Result<Record, Error> {
        self.images.pull(&reference(name), keyring, |_| {}).await
    }

    /// What the sandboxes would see, without mounting: the topmost file of this name.
    pub fn read(&self, name: &str, path: &str) -> Option<String> {
        let (image, _lease) = self.images.find(name).unwrap().unwrap_or_else(|| panic!("no image {name}"));
        image.root.layers.iter().find_map(|layer| std::fs::read_to_string(layer.join(path)).ok())
    }

    /// Diff ids of the layers on disk.
    pub fn layers(&self) -> Vec<String> {
        self.list("layers")
    }

    /// Nothing half made and nobody's hold is left. A pull that was dropped may need a moment to let go.
    pub fn assert_tidy(&self) {
        let until = std::time::Instant::now() + Duration::from_secs(10);
        loop {
            let left: Vec<_> =
                ["tmp", "leases", "downloads"].into_iter().flat_map(|name| self.list(name)).collect();
            if left.is_empty() {
                return;
            }
            assert!(std::time::Instant::now() < until, "left behind: {left:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn list(&self, name: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(name)).unwrap();
        let mut names: Vec<_> = entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("images").join(name)
    }

    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

pub fn reference(name: &str) -> Reference {
    Reference::parse(name).unwrap()
}

/// Everything an error says.
pub fn story(error: &Error) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

pub fn nobody() -> Result<Vec<asb_runtime::image::User>, Error> {
    Ok(Vec::new())
}

pub fn hex(digest: &str) -> String {
    digest["sha256:".len()..].to_owned()
}

pub fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}
