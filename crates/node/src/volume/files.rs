//! Volumes that are files: made anew at each start of a Pod, below the Pod's own directory, which only we may enter.
//!
//! They are on disk, not in memory, so that a later engine or a restart of the container needs nothing to make them
//! visible again. Secrets are there no clearer than in the API server's own store beside them, and go with the Pod.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::pod::volumes::Files;

/// Makes `directory` hold exactly these files. Only for when no sandbox has it mounted.
pub fn write(directory: &Path, files: &Files) -> io::Result<()> {
    super::remove(directory)?;
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

    #[test]
    fn directory_holds_exactly_the_files_each_with_its_mode() {
        let root = tempfile::tempdir().unwrap();
        let volume = root.path().join("v");
        let files = |paths: &[&str]| -> Files {
            let file = |path: &&str| ((*path).into(), File { bytes: path.as_bytes().to_vec(), mode: 0o440 });
            paths.iter().map(file).collect()
        };
        write(&volume, &files(&["a", "deep/er/b", "deep/c"])).unwrap();
        let b = volume.join("deep/er/b");
        assert_eq!(fs::read_to_string(&b).unwrap(), "deep/er/b");
        assert_eq!(b.metadata().unwrap().permissions().mode() & 0o7777, 0o440);
        assert_eq!(volume.join("deep").metadata().unwrap().permissions().mode() & 0o7777, 0o755);
        write(&volume, &files(&["other"])).unwrap();
        let names: Vec<_> = fs::read_dir(&volume).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(names, ["other"], "nothing old is left");
        assert!(write(&volume, &files(&["a", "a/b"])).is_err(), "a file is no directory");
    }
}
