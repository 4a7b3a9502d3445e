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
//! The result is again relative to a held descriptor: there is no moment between the check and the use.
//!
//! The usual path takes a shortcut: `openat2(RESOLVE_BENEATH)` opens its parent directory in one call. The walk remains for
//! everything that the call refuses, because it also works where the call does not exist (gVisor), understands absolute
//! links that stay inside, and reports paths that are partly missing.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
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
    /// The path contains a NUL byte.
    Nul,
    Io(io::Error),
}

/// A name in a directory, which may be a symlink.
#[derive(Debug)]
pub enum Link {
    Root(OwnedFd),
    Entry { parent: OwnedFd, name: OsString, kind: FileType },
    Missing { parent: OwnedFd, rest: Vec<OsString> },
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

/// The root of the REST and gRPC APIs where no flag names one: `SANDBOX_BASE_DIR`, else `/workspace` where there is one,
/// else the base directory of the legacy API.
pub fn workspace() -> PathBuf {
    let usual = Path::new("/workspace");
    let configured = std::env::var_os("SANDBOX_BASE_DIR").unwrap_or_default();
    if configured.as_bytes().trim_ascii().is_empty() && usual.is_dir() {
        usual.into()
    } else {
        base_directory()
    }
}

/// Takes the percent signs out of a URL path, once.
pub fn decode(raw: &str) -> Vec<u8> {
    percent_encoding::percent_decode_str(raw).collect()
}

/// Cleans a path of the REST and gRPC APIs: `..` is taken by the text, before any symlink is looked at. An absolute path
/// that already names the root is meant relative to it.
pub fn clean(path: &[u8], root: &Root) -> Result<Vec<u8>, Error> {
    let mut kept: Vec<&[u8]> = Vec::new();
    for component in path.split(|&byte| byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." => drop(kept.pop().ok_or(Error::Escape)?),
            other => kept.push(other),
        }
    }
    let cleaned = kept.join(&b'/');
    if path.starts_with(b"/") {
        let absolute = [b"/", &cleaned[..]].concat();
        if let Some(below) = root.below(Path::new(OsStr::from_bytes(&absolute))) {
            return Ok(below.as_os_str().as_bytes().to_owned());
        }
    }
    Ok(cleaned)
}

/// Opens a regular file for reading. Anything else is refused: reading a pipe or a device could wait for ever.
pub fn open_regular(parent: &OwnedFd, name: &OsStr) -> Result<std::fs::File, Error> {
    let check = |stat: Stat| match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(()),
        _ => Err(Errno::NXIO), // what opening a socket returns, too
    };
    // Opening alone has effects: it lets the writer of a pipe go on, into nothing.
    check(rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?)?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    check(rustix::fs::fstat(&file)?)?; // it may have been exchanged
    Ok(file.into())
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
            return Err(Error::Nul);
        }
        match self.shortcut(path) {
            Some(place) => Ok(place),
            None => self.walk(path, true)?.finish(),
        }
    }

    /// Like [`Root::resolve`], but a symlink at the end is not followed: the caller wants the link itself.
    pub fn resolve_link(&self, path: &[u8]) -> Result<Link, Error> {
        if path.contains(&0) {
            return Err(Error::Nul);
        }
        self.walk(path, false)?.finish_link()
    }

    /// The place of a path without `..` whose last component is not a symlink, if the kernel finds its directory beneath
    /// the base directory.
    fn shortcut(&self, path: &[u8]) -> Option<Place> {
        let trimmed = &path[path.iter().position(|&byte| byte != b'/').unwrap_or(path.len())..];
        let (parent, name) = match trimmed.iter().rposition(|&byte| byte == b'/') {
            Some(slash) => (&trimmed[..slash], &trimmed[slash + 1..]),
            None => (&b"."[..], trimmed),
        };
        if matches!(name, b"" | b"." | b"..") || trimmed.split(|&byte| byte == b'/').any(|part| part == b"..")
        {
            return None;
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let parent = OsStr::from_bytes(parent);
        let parent = rustix::fs::openat2(&self.directory, parent, flags, Mode::empty(), beneath).ok()?;
        let name = OsStr::from_bytes(name).to_owned();
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(&parent, &name, flags, Mode::empty()) {
            Ok(found) => match FileType::from_raw_mode(rustix::fs::fstat(&found).ok()?.st_mode) {
                FileType::Directory => Some(Place::Directory(found)),
                FileType::Symlink => None,
                _ => Some(Place::File { parent, name }),
            },
            Err(Errno::NOENT) => Some(Place::Missing { parent, rest: vec![name] }),
            Err(_) => None,
        }
    }

    fn walk(&self, path: &[u8], follow_last: bool) -> Result<Walk<'_>, Error> {
        let mut walk = Walk { root: self, entered: Vec::new(), missing: Vec::new(), first: None };
        let mut links = 0;
        let mut pending = components(path);
        while let Some(component) = pending.pop() {
            match component.as_bytes() {
                b"" | b"." => {}
                b".." => walk.up()?,
                _ => {
                    let follow = follow_last || !pending.is_empty();
                    let Some(target) = walk.down(component, follow)? else { continue };
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Errno::LOOP.into());
                    }
                    pending.extend(walk.follow(&target)?);
                }
            }
        }
        Ok(walk)
    }

    /// The part of an absolute `target` below the base directory.
    fn below<'a>(&self, target: &'a Path) -> Option<&'a Path> {
        self.names.iter().filter(|name| name.is_absolute()).find_map(|name| target.strip_prefix(name).ok())
    }
}

/// A walk in progress.
struct Walk<'a> {
    root: &'a Root,
    /// Each with its name in the one before.
    entered: Vec<(OwnedFd, OsString)>,
    /// Components that do not exist; below one of them everything is only text.
    missing: Vec<OsString>,
    /// What the first of `missing` is, if it does exist but is not a directory.
    first: Option<FileType>,
}

// === impl Walk ===

impl Walk<'_> {
    fn current(&self) -> BorrowedFd<'_> {
        self.entered.last().map_or(self.root.directory.as_fd(), |(directory, _)| directory.as_fd())
    }

    fn up(&mut self) -> Result<(), Error> {
        if self.missing.pop().is_some() || self.entered.pop().is_some() { Ok(()) } else { Err(Error::Escape) }
    }

    /// Enters `name`; gives the target when it is a symlink.
    fn down(&mut self, name: OsString, follow: bool) -> Result<Option<PathBuf>, Error> {
        if !self.missing.is_empty() {
            self.missing.push(name);
            return Ok(None);
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = match rustix::fs::openat(self.current(), &name, flags, Mode::empty()) {
            Ok(found) => found,
            Err(Errno::NOENT) => {
                self.missing.push(name);
                self.first = None;
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        match FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) {
            FileType::Directory => self.entered.push((found, name)),
            FileType::Symlink if follow => {
                let target = rustix::fs::readlinkat(&found, "", Vec::new())?;
                return Ok(Some(OsString::from_vec(target.into_bytes()).into()));
            }
            kind => {
                self.missing.push(name);
                self.first = Some(kind);
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

    fn finish(self) -> Result<Place, Error> {
        if self.missing.is_empty() {
            return Ok(Place::Directory(self.current().try_clone_to_owned().map_err(Error::Io)?));
        }
        Ok(match self.finish_link()? {
            Link::Entry { parent, name, .. } => Place::File { parent, name },
            Link::Missing { parent, rest } => Place::Missing { parent, rest },
            Link::Root(directory) => Place::Directory(directory),
        })
    }

    fn finish_link(mut self) -> Result<Link, Error> {
        let name = match (&self.missing[..], self.first) {
            ([], _) => self.entered.pop().map(|(_, name)| (name, FileType::Directory)),
            ([_], Some(kind)) => self.missing.pop().map(|name| (name, kind)),
            _ => None,
        };
        let parent = self.current().try_clone_to_owned().map_err(Error::Io)?;
        Ok(match name {
            Some((name, kind)) => Link::Entry { parent, name, kind },
            None if self.missing.is_empty() => Link::Root(parent),
            None => Link::Missing { parent, rest: self.missing },
        })
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

    /// A base directory with a neighbour that must not be reachable.
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
            let root = Root::open(&self.base()).unwrap();
            let [resolved, walked] =
                [root.resolve(path.as_bytes()), root.walk(path.as_bytes(), true).and_then(Walk::finish)]
                    .map(Self::word);
            assert!(resolved == walked || resolved == "nul", "the shortcut agrees with the walk on {path:?}");
            resolved
        }

        fn word(place: Result<Place, Error>) -> String {
            match place {
                Ok(Place::Directory(_)) => "dir".to_owned(),
                Ok(Place::File { name, .. }) => format!("file {}", name.display()),
                Ok(Place::Missing { rest, .. }) => {
                    format!("missing {}", rest.join(OsStr::new("/")).display())
                }
                Err(Error::Escape) => "escape".to_owned(),
                Err(Error::Nul) => "nul".to_owned(),
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
        ] {
            assert_eq!(world.place(path), "escape", "{path:?}");
        }
        assert_eq!(world.place("nul\0byte"), "nul");
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

    #[test]
    fn the_link_itself_is_found_for_calls_that_must_not_follow_it() {
        let world = World::new();
        world.link("to-dir", "dir");
        world.link("out", "/etc");
        let root = Root::open(&world.base()).unwrap();
        for (path, wanted) in
            [("to-dir", FileType::Symlink), ("out", FileType::Symlink), ("dir/deep", FileType::Directory)]
        {
            let Ok(Link::Entry { kind, .. }) = root.resolve_link(path.as_bytes()) else { panic!("{path}") };
            assert_eq!(kind, wanted, "{path}");
        }
        let Ok(Link::Entry { name, .. }) = root.resolve_link(b"to-dir/deep") else { panic!() };
        assert_eq!(name, "deep");
        assert!(matches!(root.resolve_link(b""), Ok(Link::Root(_))));
        assert!(matches!(root.resolve_link(b"out/passwd"), Err(Error::Escape)));
    }

    #[test]
    fn a_cleaned_path_has_no_dots_and_does_not_repeat_the_root() {
        let world = World::new();
        let root = Root::open(&world.base()).unwrap();
        let base = world.base().display().to_string();
        for (path, wanted) in [
            ("a/../b", Some("b")),
            ("/f.txt", Some("f.txt")),
            ("", Some("")),
            ("./d/..", Some("")),
            (&format!("{base}/f"), Some("f")),
            (&format!("{base}-evil/f"), Some(&format!("{base}-evil/f")[1..])),
            ("..", None),
            ("a/../../etc", None),
            ("/../etc", None),
        ] {
            let cleaned = clean(path.as_bytes(), &root).ok();
            assert_eq!(cleaned.as_deref(), wanted.map(str::as_bytes), "{path}");
        }
    }

    proptest::proptest! {
        #[test]
        fn an_encoded_path_is_decoded_to_itself(path: Vec<u8>) {
            let encoded = percent_encoding::percent_encode(&path, percent_encoding::NON_ALPHANUMERIC).to_string();
            proptest::prop_assert_eq!(decode(&encoded), path);
        }

        /// Of components that exist, are missing, lead up, out or around, in any order.
        #[test]
        fn no_path_reaches_the_neighbour(parts in proptest::collection::vec(0_usize..10, 0..8)) {
            const WORDS: [&str; 10] =
                ["..", ".", "", "dir", "deep", "file.txt", "up", "out", "round", "secret"];
            let world = World::new();
            world.link("up", "../base-evil");
            world.link("out", world.directory.path().join("base-evil"));
            world.link("round", "dir/../round");
            let path = parts.iter().map(|&part| WORDS[part]).collect::<Vec<_>>().join("/");
            let root = Root::open(&world.base()).unwrap();
            let real = |directory: &OwnedFd| {
                std::fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(directory))).unwrap()
            };
            let base = world.base().canonicalize().unwrap();
            for path in [Some(path.clone().into_bytes()), clean(path.as_bytes(), &root).ok()].into_iter().flatten() {
                let held = match root.resolve(&path) {
                    Ok(Place::Directory(held) | Place::File { parent: held, .. } | Place::Missing { parent: held, .. }) => held,
                    Err(_) => continue,
                };
                proptest::prop_assert!(real(&held).starts_with(&base), "{:?}", path);
                let Ok(Link::Root(held) | Link::Entry { parent: held, .. } | Link::Missing { parent: held, .. }) = root.resolve_link(&path) else { continue };
                proptest::prop_assert!(real(&held).starts_with(&base), "{:?}", path);
            }
        }
    }
}
