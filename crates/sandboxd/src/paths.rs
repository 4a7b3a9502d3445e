//! Finds the place a caller's path means, without ever leaving the base directory.
//!
//! The walk goes one component at a time and holds a descriptor for every directory it has entered:
//!
//! - each component is opened relative to the directory above it and never followed by the kernel, so a symlink swapped in
//!   between two steps is seen as what it is;
//! - `..` returns to a descriptor we hold, never to the kernel's idea of a parent, so a directory moved elsewhere during the
//!   walk cannot carry us out;
//! - a symlink's target is walked by the same rules. An absolute target must name the base directory or something below it.
//!
//! The result is again relative to a held descriptor: there is no moment between the check and the use. This is what
//! `openat2(RESOLVE_BENEATH)` does, but it also works where that call does not exist (gVisor), understands absolute links
//! that stay inside, and tells "leaves the base directory" from "does not exist" for paths that are partly missing.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

/// The same limit as the kernel's.
const MAX_LINKS: usize = 40;

/// The base directory, held open.
pub struct Root {
    directory: OwnedFd,
    /// As configured and as it really is: absolute links may be written either way.
    names: [PathBuf; 2],
}

/// Where a path leads.
#[derive(Debug)]
pub enum Place {
    Directory(OwnedFd),
    /// Something that is neither a directory nor a symlink.
    File {
        parent: OwnedFd,
        name: OsString,
    },
    /// Nothing there yet: the deepest directory that exists, and the components below it. Never empty, never `..`.
    Missing {
        parent: OwnedFd,
        rest: Vec<OsString>,
    },
}

#[derive(Debug)]
pub enum Error {
    /// The path leaves the base directory.
    Escape,
    Io(io::Error),
}

/// The base directory: `SANDBOX_BASE_DIR`, else `/app` where there is one, else the working directory.
pub fn base_directory() -> PathBuf {
    let configured = std::env::var_os("SANDBOX_BASE_DIR").unwrap_or_default();
    let configured = configured.as_bytes().trim_ascii();
    if !configured.is_empty() {
        return OsStr::from_bytes(configured).into();
    }
    let usual = Path::new("/app");
    if usual.is_dir() { usual.into() } else { std::env::current_dir().unwrap_or_else(|_| "/".into()) }
}

/// Takes the percent signs out of a URL path, once.
pub fn decode(raw: &str) -> Vec<u8> {
    percent_encoding::percent_decode_str(raw).collect()
}

// === impl Root ===

impl Root {
    pub fn open(path: &Path) -> io::Result<Self> {
        let directory =
            rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let real = path.canonicalize()?;
        Ok(Self { directory, names: [path.to_owned(), real] })
    }

    /// Walks `path`, which is relative to the base directory even when it starts with a slash.
    pub fn resolve(&self, path: &[u8]) -> Result<Place, Error> {
        if path.contains(&0) {
            return Err(Error::Escape);
        }
        let mut walk = Walk { root: self, entered: Vec::new(), missing: Vec::new(), file_first: false };
        let mut links = 0;
        let mut pending = components(path);
        while let Some(component) = pending.pop() {
            match component.as_bytes() {
                b"" | b"." => {}
                b".." => walk.up()?,
                _ => {
                    let Some(target) = walk.down(component)? else { continue };
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Errno::LOOP.into());
                    }
                    pending.extend(walk.follow(&target)?);
                }
            }
        }
        walk.finish()
    }

    /// The part of an absolute `target` below the base directory.
    fn below<'a>(&self, target: &'a Path) -> Option<&'a Path> {
        self.names.iter().filter(|name| name.is_absolute()).find_map(|name| target.strip_prefix(name).ok())
    }
}

/// A walk in progress.
struct Walk<'a> {
    root: &'a Root,
    entered: Vec<OwnedFd>,
    /// Components that do not exist; below one of them everything is only text.
    missing: Vec<OsString>,
    /// The first of `missing` does exist, but is not a directory.
    file_first: bool,
}

// === impl Walk ===

impl Walk<'_> {
    fn current(&self) -> BorrowedFd<'_> {
        self.entered.last().unwrap_or(&self.root.directory).as_fd()
    }

    fn up(&mut self) -> Result<(), Error> {
        if self.missing.pop().is_some() || self.entered.pop().is_some() { Ok(()) } else { Err(Error::Escape) }
    }

    /// Enters `name`; gives the target when it is a symlink.
    fn down(&mut self, name: OsString) -> Result<Option<PathBuf>, Error> {
        if !self.missing.is_empty() {
            self.missing.push(name);
            return Ok(None);
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = match rustix::fs::openat(self.current(), &name, flags, Mode::empty()) {
            Ok(found) => found,
            Err(Errno::NOENT) => {
                self.missing.push(name);
                self.file_first = false;
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        match FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) {
            FileType::Directory => self.entered.push(found),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&found, "", Vec::new())?;
                return Ok(Some(OsString::from_vec(target.into_bytes()).into()));
            }
            _ => {
                self.missing.push(name);
                self.file_first = true;
            }
        }
        Ok(None)
    }

    /// What is to be walked instead of a link to `target`.
    fn follow(&mut self, target: &Path) -> Result<Vec<OsString>, Error> {
        if !target.is_absolute() {
            return Ok(components(target.as_os_str().as_bytes()));
        }
        // Only text so far: a `..` in the target is dealt with when it is walked.
        let normal = target.components().all(|component| component != Component::ParentDir);
        let below = self.root.below(target).filter(|_| normal).ok_or(Error::Escape)?;
        self.entered.clear();
        Ok(components(below.as_os_str().as_bytes()))
    }

    fn finish(mut self) -> Result<Place, Error> {
        let parent = match self.entered.pop() {
            Some(directory) => directory,
            None => self.root.directory.try_clone().map_err(Error::Io)?,
        };
        if self.missing.is_empty() {
            return Ok(Place::Directory(parent));
        }
        match self.missing.pop() {
            Some(name) if self.file_first && self.missing.is_empty() => Ok(Place::File { parent, name }),
            last => {
                self.missing.extend(last);
                Ok(Place::Missing { parent, rest: self.missing })
            }
        }
    }
}

/// The components of `path`, last one first.
fn components(path: &[u8]) -> Vec<OsString> {
    path.split(|&byte| byte == b'/').rev().map(|component| OsStr::from_bytes(component).to_owned()).collect()
}

// === impl Error ===

impl From<Errno> for Error {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A base directory with a neighbour that nobody may reach.
    struct World {
        directory: tempfile::TempDir,
    }

    impl World {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            fs::create_dir_all(directory.path().join("base/dir/deep")).unwrap();
            fs::write(directory.path().join("base/file.txt"), "inside").unwrap();
            fs::create_dir(directory.path().join("base-evil")).unwrap();
            fs::write(directory.path().join("base-evil/secret"), "outside").unwrap();
            Self { directory }
        }

        fn base(&self) -> PathBuf {
            self.directory.path().join("base")
        }

        fn link(&self, name: &str, target: impl AsRef<Path>) {
            symlink(target, self.base().join(name)).unwrap();
        }

        /// The place as a word: `dir`, `file NAME`, `missing A/B`, `escape` or `error`.
        fn place(&self, path: &str) -> String {
            match Root::open(&self.base()).unwrap().resolve(path.as_bytes()) {
                Ok(Place::Directory(_)) => "dir".to_owned(),
                Ok(Place::File { name, .. }) => format!("file {}", name.display()),
                Ok(Place::Missing { rest, .. }) => {
                    format!("missing {}", rest.join(OsStr::new("/")).display())
                }
                Err(Error::Escape) => "escape".to_owned(),
                Err(Error::Io(_)) => "error".to_owned(),
            }
        }
    }

    #[test]
    fn plain_paths_lead_where_they_say() {
        let world = World::new();
        for (path, place) in [
            ("", "dir"),
            (".", "dir"),
            ("/", "dir"),
            ("dir/deep", "dir"),
            ("///dir//deep/", "dir"),
            ("file.txt", "file file.txt"),
            ("///file.txt", "file file.txt"),
            ("dir/../file.txt", "file file.txt"),
            ("foo/bar.txt", "missing foo/bar.txt"),
            ("dir/new", "missing new"),
            ("nothing/../file.txt", "file file.txt"),
            ("nothing/..", "dir"),
            ("file.txt/below", "missing file.txt/below"),
            ("file.txt/..", "dir"),
        ] {
            assert_eq!(world.place(path), place, "{path:?}");
        }
    }

    #[test]
    fn paths_that_leave_the_base_directory_are_refused() {
        let world = World::new();
        for path in [
            "..",
            "../../etc/passwd",
            "foo/../../bar",
            "/../etc/passwd",
            "dir/../../base-evil/secret",
            "../base-evil/secret",
            "a/b/../../../x",
            "nul\0byte",
        ] {
            assert_eq!(world.place(path), "escape", "{path:?}");
        }
    }

    #[test]
    fn links_inside_are_followed_and_links_to_the_outside_refused() {
        let world = World::new();
        world.link("to-file", "file.txt");
        world.link("to-dir", "dir");
        world.link("absolute", world.base().join("dir/deep"));
        world.link("to-root", world.base());
        world.link("dangling", "dir/nothing");
        world.link("out", "/etc");
        world.link("up", "../base-evil");
        world.link("sly", world.base().join("../base-evil"));
        world.link("prefix", world.directory.path().join("base-evil"));
        for (path, place) in [
            ("to-file", "file file.txt"),
            ("to-dir/deep", "dir"),
            ("to-dir/../file.txt", "file file.txt"),
            ("absolute/../../file.txt", "file file.txt"),
            ("to-root/file.txt", "file file.txt"),
            ("dangling", "missing nothing"),
            ("out", "escape"),
            ("out/passwd", "escape"),
            ("up/secret", "escape"),
            ("sly/secret", "escape"),
            ("prefix/secret", "escape"),
        ] {
            assert_eq!(world.place(path), place, "{path:?}");
        }
    }

    #[test]
    fn a_loop_of_links_ends() {
        let world = World::new();
        world.link("a", "b");
        world.link("b", "a");
        assert_eq!(world.place("a"), "error");
    }

    #[test]
    fn a_path_is_decoded_exactly_once() {
        assert_eq!(decode("%2E%2E"), b"..");
        assert_eq!(decode("a%2Fb%20c"), b"a/b c");
        assert_eq!(decode("report%2520name.txt"), b"report%20name.txt");
        assert_eq!(decode("100%"), b"100%");
        assert_eq!(decode("%C3%BC"), "ü".as_bytes());
    }
}
