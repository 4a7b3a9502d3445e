//! How much a tree may take at most, where its filesystem keeps quotas for projects: ext4 and xfs with `prjquota`.
//!
//! What is made in a directory with a project belongs to that project. The directory itself is the record of it: nothing
//! has to be remembered elsewhere, and a project with files in it is in use. Inside a user namespace the kernel lets
//! nobody change the project of a file.
//!
//! The kernel stops sandboxes at the limit. Root of the machine it only counts (ext4), but tells how much is left, by
//! statvfs of the directory: who writes for a sandbox looks at that.

mod kernel;

use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FileType, Mode, OFlags, openat};
use rustix::io::Errno;

use self::kernel::{enforces, project, quota, set_limit, set_project};
use super::descend::{DEEPEST, End, Event, Step, descend};
use super::directory;

/// Ours are far from those that people choose by hand, and positive wherever they are shown.
const FIRST: u32 = 1 << 30;
const COUNT: u32 = 1 << 30;
/// The unit of limits.
const BLOCK: u64 = 1024;

/// Whether limits of trees in this directory hold: the filesystem enforces them, and this program may set them.
pub fn are_enforced(path: &Path) -> bool {
    directory(path).is_ok_and(|top| enforces(&top) && !matches!(quota(&top, FIRST), Err(Errno::PERM)))
}

/// Limits what a directory may take with all that is below it. What it has by now counts, even if that is more.
pub fn limit(path: &Path, bytes: u64) -> io::Result<()> {
    let top = directory(path)?;
    let project = match project(&top)? {
        0 => adopt(&top, path.file_name().unwrap_or_default())?,
        project => project,
    };
    let blocks = bytes.div_ceil(BLOCK).max(1);
    if quota(&top, project)?.dqb_bhardlimit == blocks {
        return Ok(());
    }
    Ok(set_limit(&top, project, blocks)?)
}

/// What a directory may take, if that is limited.
pub fn limit_of(path: &Path) -> Option<u64> {
    let top = directory(path).ok().filter(enforces)?;
    let project = project(&top).ok().filter(|project| *project != 0)?;
    let blocks = quota(&top, project).ok()?.dqb_bhardlimit;
    (blocks > 0).then(|| blocks.saturating_mul(BLOCK))
}

/// Lifts the limit of a directory that is about to be removed: then nothing is left of it. Fine when it has none.
pub fn lift(path: &Path) -> io::Result<()> {
    let top = match directory(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        top => top?,
    };
    match project(&top).unwrap_or(0) {
        project if project != 0 && enforces(&top) => Ok(set_limit(&top, project, 0)?),
        _ => Ok(()),
    }
}

/// Gives a directory, and all that is in it already, a project that nobody has.
fn adopt(top: &OwnedFd, name: &OsStr) -> io::Result<u32> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut free = candidates(name).map(|project| Ok((project, is_free(top, project)?)));
    let found = free.find(|it: &Result<_, Errno>| !matches!(it, Ok((_, false))));
    let (project, _) = found.unwrap_or(Err(Errno::NOSPC))?;
    let end = descend(top, |event| {
        match event {
            Event::Entry { parent, name, stat }
                if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile =>
            {
                // Should it have become something else meanwhile, opening that must not wait.
                let flags =
                    OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                match openat(parent, name, flags, Mode::empty()) {
                    Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => {}
                    file => set_project(&file?, project)?,
                }
            }
            Event::Enter { directory } => set_project(&directory, project)?,
            Event::Entry { .. } | Event::Leave => {} // links and the like take no blocks
        }
        Ok(Step::On)
    })?;
    if end == End::TooDeep {
        return Err(io::Error::other(format!("directories are nested deeper than {DEEPEST} levels")));
    }
    // Last: should this be cut short, all is done once more.
    set_project(top, project)?;
    Ok(project)
}

/// Projects to try for a directory of this name, which nobody else's is likely to be.
fn candidates(name: &OsStr) -> impl Iterator<Item = u32> {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    let first = hasher.finish() as u32;
    (0..COUNT).map(move |step| FIRST + first.wrapping_add(step) % COUNT)
}

/// Nobody has files in it or a limit for it.
fn is_free(top: &OwnedFd, project: u32) -> Result<bool, Errno> {
    match quota(top, project) {
        Err(Errno::NOENT) => Ok(true),
        quota => quota.map(|it| it.dqb_curinodes == 0 && it.dqb_curspace == 0 && it.dqb_bhardlimit == 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn projects_are_ours_and_differ_by_name() {
        let first = |name: &str| candidates(OsStr::new(name)).next().expect("there are some");
        assert_eq!(first("pvc-a"), first("pvc-a"));
        assert_ne!(first("pvc-a"), first("pvc-b"));
        let several: Vec<_> = candidates(OsStr::new("pvc-a")).take(3).collect();
        assert!(several.iter().all(|it| (FIRST..FIRST + COUNT).contains(it)), "{several:?}");
        assert!(several[0] != several[1] && several[1] != several[2], "{several:?}");
    }

    #[test]
    fn directory_without_a_limit_is_left_as_it_is() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(limit_of(directory.path()), None);
        lift(directory.path()).expect("nothing to lift");
        lift(&directory.path().join("gone")).expect("nothing there");
    }
}
