//! Looks into stacked layers as overlayfs will show them, without mounting anything.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fgetxattr, openat, readlinkat, statat};
use rustix::io::Errno;

use super::layer::place::is_whiteout;
use crate::powers;

/// Links that are followed at most, as in the kernel.
const LINKS: usize = 40;

/// Layers, topmost first.
pub struct Stack(Vec<Part>);

/// One layer's part of a directory.
pub struct Part {
    /// Which layer, counted from the top.
    pub layer: usize,
    pub directory: OwnedFd,
}

enum Child {
    Missing,
    /// Merged from these, topmost first.
    Directory(Vec<Part>),
    Link(OsString),
    File {
        parent: usize,
    },
}

impl Stack {
    pub fn open(layers: &[PathBuf]) -> io::Result<Self> {
        let part = |(layer, path): (usize, &PathBuf)| {
            let directory = openat(CWD, path, directory_flags(), Mode::empty())?;
            Ok(Part { layer, directory })
        };
        layers.iter().enumerate().map(part).collect::<io::Result<_>>().map(Self)
    }

    /// The parts of a directory, topmost first; none when there is no such directory.
    pub fn directory(&self, path: &Path) -> io::Result<Vec<Part>> {
        match self.walk(path)? {
            Some((parts, None)) => Ok(parts),
            _ => Ok(Vec::new()),
        }
    }

    /// The text of a file, at most `most` bytes of it; `None` when there is none.
    pub fn read(&self, path: &Path, most: u64) -> io::Result<Option<String>> {
        let Some((parts, Some((parent, name)))) = self.walk(path)? else { return Ok(None) };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = std::fs::File::from(openat(&parts[parent].directory, &name, flags, Mode::empty())?);
        let mut text = Vec::new();
        file.take(most).read_to_end(&mut text)?;
        Ok(Some(String::from_utf8_lossy(&text).into_owned()))
    }

    /// Follows a path from the root: to a directory, or to a file of the part at an index of the last directory.
    #[expect(clippy::type_complexity, reason = "used twice, above")]
    fn walk(&self, path: &Path) -> io::Result<Option<(Vec<Part>, Option<(usize, OsString)>)>> {
        let root = || self.0.iter().map(Part::again).collect::<io::Result<Vec<_>>>();
        let mut waiting: VecDeque<OsString> = names(path);
        let mut trail = vec![root()?];
        let mut links = 0;
        while let Some(name) = waiting.pop_front() {
            if name == ".." {
                if trail.len() > 1 {
                    trail.pop();
                }
                continue;
            }
            let parts = trail.last().map_or(&[][..], Vec::as_slice);
            match child(parts, &name)? {
                Child::Missing => return Ok(None),
                Child::Directory(parts) => trail.push(parts),
                Child::Link(target) => {
                    links += 1;
                    if links > LINKS {
                        return Ok(None);
                    }
                    let target = Path::new(&target);
                    if target.is_absolute() {
                        trail.truncate(1);
                    }
                    names(target).into_iter().rev().for_each(|name| waiting.push_front(name));
                }
                Child::File { parent } if waiting.is_empty() => {
                    return Ok(trail.pop().map(|parts| (parts, Some((parent, name)))));
                }
                Child::File { .. } => return Ok(None),
            }
        }
        Ok(trail.pop().map(|parts| (parts, None)))
    }
}

impl Part {
    fn again(&self) -> io::Result<Self> {
        Ok(Self { layer: self.layer, directory: self.directory.try_clone()? })
    }

    /// Whether it brings anything that is visible.
    pub fn is_empty(&self) -> io::Result<bool> {
        for entry in Dir::read_from(&self.directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if name != c"."
                && name != c".."
                && !is_whiteout(&stat(&self.directory, OsStr::from_bytes(name.to_bytes()))?)
            {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn child(parts: &[Part], name: &OsStr) -> io::Result<Child> {
    let mut merged = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        let found = match stat(&part.directory, name) {
            Err(Errno::NOENT) => continue,
            found => found?,
        };
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => {
                let directory = openat(&part.directory, name, directory_flags(), Mode::empty())?;
                let opaque = fgetxattr(&directory, powers::here().opaque(), &mut [0u8; 2][..]) == Ok(1);
                merged.push(Part { layer: part.layer, directory });
                if opaque {
                    break;
                }
            }
            // A file below a directory is hidden by it, and hides what is below.
            _ if !merged.is_empty() || is_whiteout(&found) => break,
            FileType::Symlink => {
                let target = readlinkat(&part.directory, name, Vec::new())?;
                return Ok(Child::Link(OsStr::from_bytes(target.to_bytes()).to_owned()));
            }
            FileType::RegularFile => return Ok(Child::File { parent: at }),
            _ => return Ok(Child::Missing),
        }
    }
    Ok(if merged.is_empty() { Child::Missing } else { Child::Directory(merged) })
}

fn stat(directory: &OwnedFd, name: &OsStr) -> Result<Stat, Errno> {
    statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
}

fn directory_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

fn names(path: &Path) -> VecDeque<OsString> {
    let name = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    };
    path.components().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn upper_layers_hide_replace_and_link() {
        let top = tempfile::tempdir().expect("temporary directory");
        let [upper, lower] = ["upper", "lower"].map(|name| top.path().join(name));
        for directory in ["upper/etc", "upper/opaque", "lower/etc", "lower/opaque", "lower/usr/etc"] {
            std::fs::create_dir_all(top.path().join(directory)).expect("made");
        }
        for (file, text) in [
            ("upper/etc/both", "upper"),
            ("lower/etc/both", "lower"),
            ("lower/etc/one", "one"),
            ("lower/etc/gone", "gone"),
            ("lower/opaque/file", "hidden"),
            ("lower/usr/etc/deep", "deep"),
        ] {
            std::fs::write(top.path().join(file), text).expect("written");
        }
        symlink("/usr/etc/deep", upper.join("etc/link")).expect("linked");
        symlink("../../../../etc/one", lower.join("etc/up")).expect("linked");
        symlink("loop", lower.join("loop")).expect("linked");
        let gone = upper.join("etc/gone");
        rustix::fs::mknodat(CWD, &gone, FileType::CharacterDevice, Mode::empty(), 0).expect("made");
        rustix::fs::setxattr(
            upper.join("opaque"),
            powers::here().opaque(),
            b"y",
            rustix::fs::XattrFlags::empty(),
        )
        .expect("set");

        let stack = Stack::open(&[upper, lower]).expect("opened");
        let read = |path: &str| stack.read(Path::new(path), 100).expect("readable");
        for (path, expected) in [
            ("/etc/both", Some("upper")),
            ("/etc/one", Some("one")),
            ("/etc/gone", None),
            ("/opaque/file", None),
            ("/etc/link", Some("deep")),
            ("/etc/up", Some("one")),
            ("/loop", None),
            ("/etc", None),
            ("/etc/one/x", None),
        ] {
            assert_eq!(read(path).as_deref(), expected, "{path}");
        }
        let layers = |path| -> Vec<_> {
            stack.directory(Path::new(path)).expect("known").iter().map(|part| part.layer).collect()
        };
        assert_eq!((layers("/etc"), layers("/opaque"), layers("/usr")), (vec![0, 1], vec![0], vec![1]));
    }
}
