//! How much a tree takes on the disk, while a sandbox may be writing to it.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::time::Instant;

use rustix::fs::{FileType, Stat};

use super::descend::{End, Event, Step, descend};
use super::directory;

/// Files that are remembered, so as not to be counted twice.
const REMEMBERED: usize = 1 << 20;
/// A file of this size is remembered: it may be moved while the tree is gone through, and must still count once.
const LARGE: u64 = 1 << 20;
/// Entries between two looks at the clock.
const PACE: u64 = 1024;

/// How much a tree takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// On the disk; a file with several names counts once.
    pub bytes: u64,
    pub files: u64,
    /// Otherwise it takes at least this much.
    pub complete: bool,
    /// Directories are nested deeper than [`super::DEEPEST`] levels; what is in the deepest was not counted.
    pub too_deep: bool,
}

impl Default for Size {
    fn default() -> Self {
        Self { bytes: 0, files: 0, complete: true, too_deep: false }
    }
}

impl std::ops::AddAssign for Size {
    fn add_assign(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.files = self.files.saturating_add(other.files);
        self.complete &= other.complete;
        self.too_deep |= other.too_deep;
    }
}

/// When counting may end early.
#[derive(Debug, Clone, Copy, Default)]
pub struct Enough {
    /// More than this need not be known.
    pub bytes: Option<u64>,
    pub until: Option<Instant>,
}

/// How much a directory and everything below it takes.
pub fn size(path: &Path) -> io::Result<Size> {
    measure(path, Enough::default())
}

/// The same, up to the point where enough is known.
pub fn measure(path: &Path, enough: Enough) -> io::Result<Size> {
    let root = directory(path)?;
    let (mut size, mut seen) = (Size::default(), HashSet::new());
    let end = descend(&root, |event| {
        let Event::Entry { stat, .. } = event else { return Ok(Step::On) };
        let bytes = allocated(stat);
        let twice = bytes >= LARGE || stat.st_nlink > 1;
        let twice = twice && FileType::from_raw_mode(stat.st_mode) != FileType::Directory;
        // Beyond what is remembered every name counts: more than there is, but never less.
        if !twice || seen.len() >= REMEMBERED || seen.insert((stat.st_dev, stat.st_ino)) {
            size.bytes = size.bytes.saturating_add(bytes);
            size.files += 1;
        }
        let late = || enough.until.is_some_and(|until| Instant::now() >= until);
        let over = enough.bytes.is_some_and(|most| size.bytes > most);
        Ok(if over || (size.files.is_multiple_of(PACE) && late()) { Step::Stop } else { Step::On })
    })?;
    size.too_deep = end == End::TooDeep;
    size.complete = end == End::Complete;
    Ok(size)
}

/// Not how long a file is: one of holes takes nothing.
fn allocated(stat: &Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use rustix::fs::{Mode, OFlags, mkdirat, open, openat};

    use super::*;

    fn blocks(path: &Path) -> u64 {
        path.symlink_metadata().expect("there").blocks() * 512
    }

    #[test]
    fn blocks_count_and_each_file_counts_once_and_no_link_leads_out() {
        let (top, outside) = (tempfile::tempdir().expect("made"), tempfile::tempdir().expect("made"));
        let path = |name: &str| top.path().join(name);
        fs::write(outside.path().join("huge"), vec![1; 8 << 20]).expect("written");
        fs::create_dir(path("d")).expect("made");
        fs::write(path("d/file"), vec![1; 100_000]).expect("written");
        fs::hard_link(path("d/file"), path("same")).expect("linked");
        symlink(outside.path(), path("directory")).expect("linked");
        symlink(outside.path().join("huge"), path("link")).expect("linked");
        fs::File::create(path("holes")).and_then(|file| file.set_len(1 << 40)).expect("made");
        let expected: u64 =
            ["d", "d/file", "directory", "link", "holes"].iter().map(|name| blocks(&path(name))).sum();
        let size = size(top.path()).expect("measured");
        assert_eq!((size.bytes, size.files), (expected, 5));
        assert!(size.complete && size.bytes < 1 << 20, "{size:?}");
    }

    #[test]
    fn counting_ends_when_enough_is_known() {
        let top = tempfile::tempdir().expect("made");
        for name in 0..3000 {
            fs::write(top.path().join(name.to_string()), "some bytes").expect("written");
        }
        let each = blocks(&top.path().join("0"));
        let some = measure(top.path(), Enough { bytes: Some(each * 10), until: None }).expect("measured");
        assert!(!some.complete && some.files < 3000 && some.bytes > each * 10, "{some:?}");
        let late = Enough { bytes: None, until: Some(Instant::now()) };
        let late = measure(top.path(), late).expect("measured");
        assert!(!late.complete && late.files <= PACE, "{late:?}");
    }

    #[test]
    fn tree_deeper_than_any_path_is_told_of() {
        let parent = tempfile::tempdir().expect("made");
        let top = parent.path().join("top");
        fs::create_dir(&top).expect("made");
        let mut here = open(&top, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("opened");
        for _ in 0..2_100 {
            mkdirat(&here, "d", Mode::RWXU).expect("made");
            here = openat(&here, "d", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("opened");
        }
        drop(here);
        let size = size(&top).expect("measured");
        assert!(size.too_deep && !size.complete, "{size:?}");
        assert_eq!(size.files, super::super::DEEPEST as u64 + 1);
        crate::remove::directory(&top).expect("removed");
    }

    #[test]
    fn file_that_is_moved_about_counts_once_and_directories_that_are_swapped_lead_nowhere() {
        let (top, outside) = (tempfile::tempdir().expect("made"), tempfile::tempdir().expect("made"));
        fs::write(outside.path().join("huge"), vec![1; 64 << 20]).expect("written");
        let path = |name: &str| top.path().join(name);
        for name in ["a", "b", "swap"] {
            fs::create_dir(path(name)).expect("made");
        }
        for name in 0..500 {
            fs::write(path("b").join(name.to_string()), "x").expect("written");
        }
        fs::write(path("a/large"), vec![1; 4 << 20]).expect("written");
        symlink(outside.path(), path("link")).expect("linked");
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let _ = fs::rename(path("a/large"), path("b/large"));
                    let exchange = rustix::fs::RenameFlags::EXCHANGE;
                    let (one, other) = (path("swap"), path("link"));
                    let _ = rustix::fs::renameat_with(rustix::fs::CWD, one, rustix::fs::CWD, other, exchange);
                    let _ = fs::rename(path("b/large"), path("a/large"));
                }
            });
            let until = Instant::now() + Duration::from_millis(500);
            while Instant::now() < until {
                let size = size(top.path()).expect("measured");
                assert!(size.bytes < (4 << 20) + (3 << 20), "{size:?}");
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}
