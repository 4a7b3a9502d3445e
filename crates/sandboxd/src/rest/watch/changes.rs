//! Watched directories and what the kernel reports about them.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::inotify::{CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{FileType, inotify};
use rustix::io::Errno;
use serde::Serialize;

use crate::paths::{Place, Root};
use crate::rest::problem::Problem;
use crate::rest::tree;

/// Of one watch.
const MAX_DIRECTORIES: usize = 4096;
/// What is reported about each directory.
const FLAGS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::EXCL_UNLINK);
const TOO_MANY: &str = "too many directories; some are not watched";
/// Read at once.
const MAX_BATCH: usize = 256;
const BUFFER: usize = 16 * 1024;

/// One event. Paths begin at the root, with a slash.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Change {
    Create {
        path: String,
        directory: bool,
    },
    Modify {
        path: String,
        directory: bool,
    },
    Remove {
        path: String,
        directory: bool,
    },
    Rename {
        from: String,
        path: String,
        directory: bool,
    },
    /// Some events are missing.
    Overflow {
        reason: &'static str,
    },
    /// The watched path itself is gone; nothing comes any more.
    Gone,
}

/// What the kernel reports.
struct Raw {
    watch: i32,
    flags: ReadFlags,
    cookie: u32,
    name: Vec<u8>,
}

pub struct Watcher {
    root: Root,
    queue: OwnedFd,
    top: i32,
    recursive: bool,
    /// The path of each watched directory below the root.
    paths: HashMap<i32, Vec<u8>>,
}

impl Change {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Create { .. } => "create",
            Self::Modify { .. } => "modify",
            Self::Remove { .. } => "remove",
            Self::Rename { .. } => "rename",
            Self::Overflow { .. } => "overflow",
            Self::Gone => "gone",
        }
    }
}

impl Watcher {
    pub fn new(root: Root, path: Vec<u8>, recursive: bool) -> Result<Self, Problem> {
        let queue = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(limits)?;
        let mut watcher = Self { root, queue, top: 0, recursive, paths: HashMap::new() };
        let found = match watcher.root.resolve(&path)? {
            Place::Directory(directory) => directory,
            Place::File { parent, name } => {
                use rustix::fs::{Mode, OFlags};
                rustix::fs::openat(
                    &parent,
                    &name,
                    OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                    Mode::empty(),
                )?
            }
            Place::Missing { .. } => return Err(Problem::NotFound),
        };
        // Below the top, the directory above reports a move.
        let flags = FLAGS | WatchFlags::MOVE_SELF;
        watcher.top = watcher.add_with(&found, path.clone(), flags).map_err(limits)?;
        if recursive {
            let complete = watcher.add_below(&found, &path, &mut Vec::new()).map_err(limits)?;
            if !complete {
                return Err(Problem::TooMany("the directory has too many directories for a recursive watch"));
            }
        }
        Ok(watcher)
    }

    pub fn queue(&self) -> io::Result<OwnedFd> {
        self.queue.try_clone()
    }

    /// What has happened since the last call; `None` when the kernel's queue is empty.
    pub fn changes(&mut self) -> Option<Vec<Change>> {
        let batch = self.read();
        if batch.is_empty() {
            return None;
        }
        let mut batch = batch.into_iter().peekable();
        let mut changes = Vec::new();
        while let Some(raw) = batch.next() {
            let renamed = raw.flags.contains(ReadFlags::MOVED_FROM);
            let target = batch.next_if(|next| {
                renamed && next.flags.contains(ReadFlags::MOVED_TO) && next.cookie == raw.cookie
            });
            match target {
                Some(target) => self.rename(&raw, &target, &mut changes),
                None => self.translate(&raw, &mut changes),
            }
        }
        Some(changes)
    }

    fn read(&self) -> Vec<Raw> {
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut reader = inotify::Reader::new(&self.queue, &mut buffer);
        let mut batch = Vec::new();
        while batch.len() < MAX_BATCH || !reader.is_buffer_empty() {
            let Ok(event) = reader.next() else { break };
            let name = event.file_name().map(|name| name.to_bytes().to_vec()).unwrap_or_default();
            batch.push(Raw { watch: event.wd(), flags: event.events(), cookie: event.cookie(), name });
        }
        batch
    }

    fn translate(&mut self, raw: &Raw, changes: &mut Vec<Change>) {
        if raw.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            changes.push(Change::Overflow { reason: "events came faster than they were read" });
            self.rescan(changes);
            return;
        }
        if raw.flags.contains(ReadFlags::MOVE_SELF) {
            changes.push(Change::Gone);
            return;
        }
        if raw.flags.contains(ReadFlags::IGNORED) {
            self.paths.remove(&raw.watch);
            if raw.watch == self.top {
                changes.push(Change::Gone);
            }
            return;
        }
        let Some(at) = self.path(raw) else { return };
        let directory = raw.flags.contains(ReadFlags::ISDIR);
        let path = shown(&at);
        if raw.flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            changes.push(Change::Create { path, directory });
            if directory {
                self.enter(&at, changes);
            }
        } else if raw.flags.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
            self.forget(&at);
            changes.push(Change::Remove { path, directory });
        } else if raw.flags.contains(ReadFlags::MODIFY) {
            changes.push(Change::Modify { path, directory });
        }
    }

    fn rename(&mut self, from: &Raw, to: &Raw, changes: &mut Vec<Change>) {
        let (Some(old), Some(new)) = (self.path(from), self.path(to)) else { return };
        for path in self.paths.values_mut() {
            if let Some(below) = below(path, &old) {
                *path = [&new[..], below].concat();
            }
        }
        let directory = to.flags.contains(ReadFlags::ISDIR);
        changes.push(Change::Rename { from: shown(&old), path: shown(&new), directory });
    }

    /// The path that an event is about.
    fn path(&self, raw: &Raw) -> Option<Vec<u8>> {
        self.paths.get(&raw.watch).map(|directory| join(directory, &raw.name))
    }

    /// Watches a new directory, and reports what was put into it before that.
    fn enter(&mut self, path: &[u8], changes: &mut Vec<Change>) {
        if !self.recursive {
            return;
        }
        let Ok(Place::Directory(directory)) = self.root.resolve(path) else { return };
        let mut found = Vec::new();
        let added =
            self.add(&directory, path.to_vec()).and_then(|_| self.add_below(&directory, path, &mut found));
        let is_full = found.len() >= MAX_DIRECTORIES;
        changes.extend(found);
        if !matches!(added, Ok(true) | Err(Errno::NOENT)) {
            changes.push(Change::Overflow { reason: TOO_MANY });
        } else if is_full {
            changes.push(Change::Overflow { reason: "too many new files; some are not reported" });
        }
    }

    /// Finds the directories that came, went or were renamed while events were lost.
    fn rescan(&mut self, changes: &mut Vec<Change>) {
        let Some(path) = self.paths.get(&self.top).cloned().filter(|_| self.recursive) else { return };
        let Ok(Place::Directory(directory)) = self.root.resolve(&path) else { return };
        let before = std::mem::take(&mut self.paths);
        self.paths.insert(self.top, path.clone());
        let added = self.add_below(&directory, &path, &mut Vec::new());
        for watch in before.into_keys().filter(|watch| !self.paths.contains_key(watch)) {
            let _ = inotify::remove_watch(&self.queue, watch);
        }
        if !matches!(added, Ok(true)) {
            changes.push(Change::Overflow { reason: TOO_MANY });
        }
    }

    /// A directory that has left takes its watches with it.
    fn forget(&mut self, path: &[u8]) {
        let gone: Vec<i32> = self
            .paths
            .iter()
            .filter(|(_, other)| below(other, path).is_some())
            .map(|(&watch, _)| watch)
            .collect();
        for watch in gone.into_iter().filter(|&watch| watch != self.top) {
            let _ = inotify::remove_watch(&self.queue, watch);
            self.paths.remove(&watch);
        }
    }

    /// By descriptor, so that no link put there meanwhile is followed.
    fn add(&mut self, directory: &OwnedFd, path: Vec<u8>) -> Result<i32, Errno> {
        self.add_with(directory, path, FLAGS)
    }

    fn add_with(&mut self, directory: &OwnedFd, path: Vec<u8>, flags: WatchFlags) -> Result<i32, Errno> {
        let watch =
            inotify::add_watch(&self.queue, format!("/proc/self/fd/{}", directory.as_raw_fd()), flags)?;
        self.paths.insert(watch, path);
        Ok(watch)
    }

    /// Returns whether there was room for all directories.
    fn add_below(
        &mut self,
        directory: &OwnedFd,
        path: &[u8],
        found: &mut Vec<Change>,
    ) -> Result<bool, Errno> {
        let mut waiting = vec![(directory.try_clone().map_err(|_| Errno::MFILE)?, path.to_vec())];
        while let Some((directory, path)) = waiting.pop() {
            let Ok(names) = tree::names(&directory) else { continue };
            for (name, kind) in names {
                let path = join(&path, name.as_bytes());
                let is_directory = kind == FileType::Directory;
                if found.len() < MAX_DIRECTORIES {
                    found.push(Change::Create { path: shown(&path), directory: is_directory });
                }
                if !is_directory {
                    continue;
                }
                let Some(entered) = enter(&directory, &name) else { continue };
                // Each directory that waits holds a descriptor.
                if self.paths.len() >= MAX_DIRECTORIES || waiting.len() >= MAX_BATCH {
                    return Ok(false);
                }
                self.add(&entered, path.clone())?;
                waiting.push((entered, path));
            }
        }
        Ok(true)
    }
}

fn enter(parent: &OwnedFd, name: &OsStr) -> Option<OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty()).ok()
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match (directory, name) {
        (directory, b"") => directory.to_vec(),
        (b"", name) => name.to_vec(),
        (directory, name) => [directory, b"/", name].concat(),
    }
}

/// What follows `directory` in `path`, if it is that directory or below.
fn below<'a>(path: &'a [u8], directory: &[u8]) -> Option<&'a [u8]> {
    path.strip_prefix(directory).filter(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

fn shown(path: &[u8]) -> String {
    format!("/{}", String::from_utf8_lossy(path))
}

fn limits(error: Errno) -> Problem {
    match error {
        Errno::NOSPC | Errno::MFILE => Problem::TooMany("the kernel allows no more watches"),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::path::Path;

    use super::*;

    fn watch(base: &Path, path: &str) -> Watcher {
        Watcher::new(Root::open(base).unwrap(), path.into(), true).unwrap()
    }

    /// Everything that the kernel has queued.
    fn drain(watcher: &mut Watcher) -> Vec<Change> {
        std::iter::from_fn(|| watcher.changes()).flatten().collect()
    }

    #[test]
    fn a_directory_made_while_events_were_lost_is_watched_afterwards() {
        let world = tempfile::tempdir().unwrap();
        let at = |name: &str| world.path().join(name);
        fs::create_dir(at("gone")).unwrap();
        let mut watcher = watch(world.path(), "");
        let queue = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
        // In turns: the kernel reports the same event twice in a row as one.
        let mut files = ["a", "b"].map(|name| fs::File::create(at(name)).unwrap());
        for number in 0..=queue.trim().parse().unwrap() {
            files[number % 2].write_all(b"x").unwrap();
        }
        fs::remove_dir(at("gone")).unwrap();
        fs::create_dir_all(at("late/deep")).unwrap();
        assert!(drain(&mut watcher).iter().any(|change| matches!(change, Change::Overflow { .. })));
        assert_eq!(watcher.paths.len(), 3, "the top, `late` and `late/deep`");
        fs::write(at("late/deep/f"), "").unwrap();
        let path = "/late/deep/f".to_owned();
        assert_eq!(drain(&mut watcher), [Change::Create { path, directory: false }]);
    }

    #[test]
    fn a_watched_path_that_is_renamed_is_gone() {
        let world = tempfile::tempdir().unwrap();
        let at = |name: &str| world.path().join(name);
        fs::create_dir_all(at("top/sub")).unwrap();
        let mut watcher = watch(world.path(), "top");
        fs::rename(at("top/sub"), at("top/bus")).unwrap();
        assert!(matches!(&drain(&mut watcher)[..], [Change::Rename { .. }]), "not one below it");
        fs::rename(at("top"), at("other")).unwrap();
        assert_eq!(drain(&mut watcher), [Change::Gone]);
    }
}
