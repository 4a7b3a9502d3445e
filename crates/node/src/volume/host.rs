//! `hostPath`: parts of the machine that its operator has opened to Pods, and no others.
//!
//! What a Pod names is found below a directory that was opened, with that as its root: no link in it leads out.

use std::io;
use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::HostPathVolumeSource;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat, openat2};
use rustix::io::Errno;

use crate::pod::spec::Refusal;

/// Directories that Pods may use, or use parts of.
#[derive(Debug, Clone, Default)]
pub struct HostPaths(Vec<Opened>);

#[derive(Debug, Clone)]
struct Opened {
    /// As the operator and Pods call it.
    name: PathBuf,
    /// Without links.
    path: PathBuf,
}

/// A part of the machine, as the runtime wants it.
#[derive(Debug, PartialEq, Eq)]
pub struct Place {
    pub root: PathBuf,
    pub below: PathBuf,
}

impl HostPaths {
    /// Opens directories to Pods. Never the engine's own: whoever can write there is the engine.
    pub fn new(directories: &[PathBuf], data_dir: &Path) -> Result<Self, String> {
        let data_dir = data_dir.canonicalize().unwrap_or_else(|_| data_dir.to_owned());
        let open = |name: &PathBuf| {
            let shown = name.display();
            let path = name.canonicalize().map_err(|error| format!("{shown}: {error}"))?;
            if !name.is_absolute() || !path.is_dir() {
                return Err(format!("{shown} is not the absolute path of a directory"));
            }
            if data_dir.starts_with(&path) || path.starts_with(&data_dir) {
                return Err(format!("{shown} and the data directory {} overlap", data_dir.display()));
            }
            Ok(Opened { name: name.clone(), path })
        };
        directories.iter().map(open).collect::<Result<_, _>>().map(Self)
    }

    /// Finds what a volume names, and makes it where its type says so. `field` is that of the volume.
    pub fn place(&self, source: &HostPathVolumeSource, field: &str) -> Result<Place, Refusal> {
        let place = self.find(&source.path).ok_or_else(|| {
            let allowed: Vec<_> = self.0.iter().map(|it| it.name.display().to_string()).collect();
            let allowed = match allowed.is_empty() {
                true => "none is: `asb up --allow-host-path DIR` opens one".to_owned(),
                false => format!("these are: {}", allowed.join(", ")),
            };
            let message = format!(
                "{field}.hostPath.path: {:?} is not in a directory of this machine that is open to Pods; {allowed}",
                source.path
            );
            Refusal::new("Unsupported", message)
        })?;
        let wanted = Wanted::parse(source.type_.as_deref().unwrap_or_default()).ok_or_else(|| {
            let known = "\"Directory\", \"DirectoryOrCreate\", \"File\", \"FileOrCreate\" or none";
            let message = format!("{field}.hostPath.type: {:?} is not available; use {known}", source.type_);
            Refusal::new("Unsupported", message)
        })?;
        let failed = |problem: String| {
            Refusal::new("FailedMount", format!("hostPath type check failed: {} {problem}", source.path))
        };
        let found = kind(&place).map_err(|error| failed(format!("cannot be looked at: {error}")))?;
        match (wanted, found) {
            (Wanted::Any | Wanted::Directory { .. }, Some(FileType::Directory))
            | (Wanted::Any | Wanted::File { .. }, Some(FileType::RegularFile)) => {}
            (Wanted::Any, Some(_)) => {
                return Err(failed("is neither a file nor a directory".to_owned()));
            }
            // The runtime makes directories that are missing.
            (Wanted::Any | Wanted::Directory { made: true }, None) => {}
            (Wanted::File { made: true }, None) => {
                make_file(&place).map_err(|error| failed(format!("cannot be made: {error}")))?;
            }
            (Wanted::Directory { .. }, _) => return Err(failed("is not a directory".to_owned())),
            (Wanted::File { .. }, _) => return Err(failed("is not a file".to_owned())),
        }
        Ok(place)
    }

    /// In the innermost directory that was opened.
    fn find(&self, path: &str) -> Option<Place> {
        let path = Path::new(path);
        let plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
        if !path.is_absolute() || !path.components().all(plain) {
            return None;
        }
        let below = |opened: &Opened| {
            let rest = path.strip_prefix(&opened.name).or_else(|_| path.strip_prefix(&opened.path)).ok()?;
            Some(Place { root: opened.path.clone(), below: rest.to_owned() })
        };
        self.0.iter().filter_map(below).min_by_key(|place| place.below.components().count())
    }
}

/// What `hostPath.type` asks for.
#[derive(Clone, Copy)]
enum Wanted {
    Any,
    Directory { made: bool },
    File { made: bool },
}

impl Wanted {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "" => Self::Any,
            "Directory" => Self::Directory { made: false },
            "DirectoryOrCreate" => Self::Directory { made: true },
            "File" => Self::File { made: false },
            "FileOrCreate" => Self::File { made: true },
            _ => return None,
        })
    }
}

const LOOK: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// What is there; `None`: nothing.
fn kind(place: &Place) -> io::Result<Option<FileType>> {
    let root = open(&place.root, LOOK | OFlags::DIRECTORY, Mode::empty())?;
    if place.below.as_os_str().is_empty() {
        return Ok(Some(FileType::Directory));
    }
    match openat2(&root, &place.below, LOOK, Mode::empty(), ResolveFlags::IN_ROOT) {
        Ok(found) => Ok(Some(FileType::from_raw_mode(fstat(&found)?.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn make_file(place: &Place) -> io::Result<()> {
    let (Some(parent), Some(name)) = (place.below.parent(), place.below.file_name()) else { return Ok(()) };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let root = open(&place.root, LOOK | OFlags::DIRECTORY, Mode::empty())?;
    let parent = openat2(&root, parent, LOOK | OFlags::DIRECTORY, Mode::empty(), ResolveFlags::IN_ROOT)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(&parent, name, flags, Mode::from_raw_mode(0o644))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &Path, kind: &str) -> HostPathVolumeSource {
        HostPathVolumeSource { path: path.display().to_string(), type_: Some(kind.to_owned()) }
    }

    /// A directory that is open to Pods, one that is not, and the data directory.
    fn world() -> (tempfile::TempDir, HostPaths) {
        let top = tempfile::tempdir().unwrap();
        for name in ["open", "closed", "data"] {
            std::fs::create_dir(top.path().join(name)).unwrap();
        }
        let paths = HostPaths::new(&[top.path().join("open")], &top.path().join("data")).unwrap();
        (top, paths)
    }

    #[test]
    fn only_what_was_opened_is_found_and_by_no_detour() {
        let (top, paths) = world();
        let open = top.path().join("open");
        let place = paths.place(&source(&open.join("a/b"), ""), "v").unwrap();
        assert_eq!((place.root, place.below), (open.canonicalize().unwrap(), PathBuf::from("a/b")));
        for path in ["closed", "open/../closed", "openly", "."] {
            let refused = paths.place(&source(&top.path().join(path), ""), "spec.volumes[0]").unwrap_err();
            assert_eq!(refused.reason, "Unsupported");
            assert!(refused.message.starts_with("spec.volumes[0].hostPath.path: "), "{}", refused.message);
        }
        let none = HostPaths::default().place(&source(&open, ""), "v").unwrap_err();
        assert!(none.message.contains("--allow-host-path"), "{}", none.message);
    }

    #[test]
    fn link_that_leads_elsewhere_leads_nowhere() {
        let (top, paths) = world();
        std::fs::write(top.path().join("closed/secret"), "x").unwrap();
        std::os::unix::fs::symlink(top.path().join("closed"), top.path().join("open/link")).unwrap();
        let refused = paths.place(&source(&top.path().join("open/link/secret"), "File"), "v").unwrap_err();
        assert!(refused.message.contains("is not a file"), "{}", refused.message);
        assert!(paths.place(&source(&top.path().join("open/link/new"), "FileOrCreate"), "v").is_err());
        assert!(!top.path().join("closed/new").exists());
    }

    #[test]
    fn types_are_checked_and_files_made() {
        let (top, paths) = world();
        let open = top.path().join("open");
        std::fs::create_dir(open.join("dir")).unwrap();
        let ok = |path: &str, kind: &str| paths.place(&source(&open.join(path), kind), "v").is_ok();
        assert!(ok("dir", "Directory") && ok("dir", "DirectoryOrCreate") && ok("", "Directory"));
        assert!(ok("new", "DirectoryOrCreate") && !ok("new", "Directory") && !ok("new", "File"));
        assert!(ok("dir/file", "FileOrCreate") && open.join("dir/file").is_file() && ok("dir/file", "File"));
        assert!(!ok("dir/file", "Directory") && !ok("dir", "FileOrCreate"));
        assert!(!ok("dir", "Socket") && !ok("dir", "CharDevice"));
    }

    #[test]
    fn what_is_the_engines_own_is_never_opened() {
        let (top, _) = world();
        let data = top.path().join("data");
        std::fs::create_dir(data.join("volumes")).unwrap();
        for path in [top.path().to_owned(), data.clone(), data.join("volumes"), "/".into()] {
            let refused = HostPaths::new(std::slice::from_ref(&path), &data).unwrap_err();
            assert!(refused.contains("overlap"), "{path:?}: {refused}");
        }
        assert!(HostPaths::new(&["relative".into()], &data).is_err());
        assert!(HostPaths::new(&[top.path().join("none")], &data).is_err());
    }
}
