//! Volumes that are files: below the Pod's own directory, which only we may enter, and replaced as a whole.
//!
//! ```text
//! volume/..data ─► ..7          a link; replaced by rename, so that readers see all files of one time
//!        ..7/deep/file          the files
//!        deep ─► ..data/deep    what users name
//! ```
//!
//! They are on disk, not in memory, so that a later engine or a restart of the container needs nothing to make them
//! visible again. Secrets are there no clearer than in the API server's own store beside them, and go with the Pod.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Component, Path};

use asb_runtime::tree;

use super::ownership;
use crate::pod::groups::FsGroup;
use crate::pod::volumes::Files;

/// The link to the files of now.
const DATA: &str = "..data";

/// Makes `directory` hold exactly these files, given to the group; leaves it alone when it does. Those who have it
/// mounted see the change at once and as a whole.
pub fn write(directory: &Path, files: &Files, group: Option<FsGroup>) -> io::Result<()> {
    make(directory)?;
    let current = fs::read_link(directory.join(DATA)).ok();
    if let Some(current) = &current
        && holds(&directory.join(current), files)
    {
        return Ok(());
    }
    let next = number(current.as_deref()) + 1;
    let fresh = directory.join(format!("..{next}"));
    tree::remove(&fresh)?;
    write_all(&fresh, files)?;
    if let Some(group) = group {
        // Its top may be right already while the files in it are not.
        ownership::give(&fresh, FsGroup { only_if_the_top_differs: false, ..group }, true)?;
    }
    let link = directory.join("..tmp");
    let _ = fs::remove_file(&link);
    symlink(format!("..{next}"), &link)?;
    fs::rename(&link, directory.join(DATA))?;
    let names: BTreeSet<_> = files.keys().filter_map(|path| first(path)).collect();
    for name in &names {
        let (place, target) = (directory.join(name), Path::new(DATA).join(name));
        if fs::read_link(&place).is_ok_and(|found| found == target) {
            continue;
        }
        // Files of an engine that kept them without links.
        tree::remove(&place).or_else(|_| fs::remove_file(&place))?;
        symlink(target, place)?;
    }
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let keep = entry.file_name() == DATA || entry.path() == fresh || names.contains(&entry.file_name());
        if keep {
            continue;
        }
        match entry.file_type()?.is_dir() {
            true => tree::remove(&entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    if let Some(group) = group {
        ownership::give(directory, group, true)?;
    }
    Ok(())
}

/// Whether a directory has these files and no others.
fn holds(directory: &Path, files: &Files) -> bool {
    let same = files.iter().all(|(path, file)| {
        let path = directory.join(path);
        fs::read(&path).is_ok_and(|bytes| bytes == file.bytes)
            && path.metadata().is_ok_and(|it| it.permissions().mode() & file.mode == file.mode)
    });
    same && count(directory).is_ok_and(|count| count == files.len())
}

fn count(directory: &Path) -> io::Result<usize> {
    let mut files = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        files += if entry.file_type()?.is_dir() { count(&entry.path())? } else { 1 };
    }
    Ok(files)
}

fn write_all(directory: &Path, files: &Files) -> io::Result<()> {
    make(directory)?;
    for (path, file) in files {
        let parents = path.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty());
        // Outermost first.
        parents.collect::<Vec<_>>().into_iter().rev().try_for_each(|parent| make(&directory.join(parent)))?;
        let path = directory.join(path);
        let mut opened = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        io::Write::write_all(&mut opened, &file.bytes)?;
        opened.set_permissions(Permissions::from_mode(file.mode))?;
    }
    Ok(())
}

/// The name at the top of a volume under which a file is found.
fn first(path: &Path) -> Option<OsString> {
    path.components().find_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        _ => None,
    })
}

fn number(current: Option<&Path>) -> u64 {
    let text = current.and_then(Path::to_str).and_then(|name| name.strip_prefix(".."));
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// A directory that every user inside may read.
fn make(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(0o755)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::volumes::File;
    use std::path::PathBuf;

    fn files(of: &[(&str, &str)]) -> Files {
        let file = |(path, text): &(&str, &str)| {
            (PathBuf::from(path), File { bytes: text.as_bytes().to_vec(), mode: 0o440 })
        };
        of.iter().map(file).collect()
    }

    fn names(volume: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(volume).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn directory_holds_exactly_the_files_each_with_its_mode() {
        let root = tempfile::tempdir().unwrap();
        let volume = root.path().join("v");
        write(&volume, &files(&[("a", "1"), ("deep/er/b", "2"), ("deep/c", "3")]), None).unwrap();
        let b = volume.join("deep/er/b");
        assert_eq!(fs::read_to_string(&b).unwrap(), "2");
        assert_eq!(b.metadata().unwrap().permissions().mode() & 0o7777, 0o440);
        assert_eq!(volume.join("deep").metadata().unwrap().permissions().mode() & 0o7777, 0o755);
        write(&volume, &files(&[("other", "x")]), None).unwrap();
        assert_eq!(names(&volume), ["..2", "..data", "other"], "nothing old is left");
        assert!(write(&volume, &files(&[("a", ""), ("a/b", "")]), None).is_err(), "a file is no directory");
        assert_eq!(fs::read_to_string(volume.join("other")).unwrap(), "x", "what failed changed nothing");
    }

    #[test]
    fn change_is_seen_as_a_whole_and_only_when_there_is_one() {
        let root = tempfile::tempdir().unwrap();
        let volume = root.path().join("v");
        write(&volume, &files(&[("a", "1"), ("b", "1")]), None).unwrap();
        // Held open as by somebody who is reading.
        let seen = fs::canonicalize(volume.join(DATA)).unwrap();
        write(&volume, &files(&[("a", "1"), ("b", "1")]), None).unwrap();
        assert_eq!(fs::canonicalize(volume.join(DATA)).unwrap(), seen, "the same again is no change");
        write(&volume, &files(&[("a", "2"), ("b", "2")]), None).unwrap();
        let link = fs::read_link(volume.join("a")).unwrap();
        assert_eq!(link, Path::new("..data/a"), "what users name stays the same link");
        assert_eq!(fs::read_to_string(volume.join("a")).unwrap(), "2");
    }

    #[test]
    fn files_without_links_of_an_earlier_engine_are_replaced() {
        let root = tempfile::tempdir().unwrap();
        let volume = root.path().join("v");
        fs::create_dir_all(volume.join("deep")).unwrap();
        fs::write(volume.join("a"), "old").unwrap();
        fs::write(volume.join("deep/b"), "old").unwrap();
        write(&volume, &files(&[("a", "new"), ("deep/b", "new")]), None).unwrap();
        assert_eq!(fs::read_to_string(volume.join("deep/b")).unwrap(), "new");
        assert_eq!(names(&volume), ["..1", "..data", "a", "deep"]);
    }
}
