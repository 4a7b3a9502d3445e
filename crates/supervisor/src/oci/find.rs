//! Whether a program is there, before a runtime is asked to start it: so every runtime fails in the same words.

use std::path::{Path, PathBuf};

use asb_supervisor::wire::Failed;
use rustix::fs::{FileType, fstat};
use rustix::io::Errno;

use crate::inside::Inside;
use crate::spawn::{Prepared, Program, not_entered, not_executed};

/// What is here cannot be seen from outside the container.
const UNSEEN: [&str; 2] = ["/proc", "/dev"];

/// What cannot be seen from here is left to the runtime.
pub fn program(inside: &Inside, program: &Program) -> Result<(), Failed> {
    let cwd = Path::new(&program.cwd);
    let kind = kind_of(inside, cwd).map_err(|errno| not_entered(errno, &program.cwd))?;
    if kind.is_some_and(|(kind, _)| kind != FileType::Directory) {
        return Err(not_entered(Errno::NOTDIR, &program.cwd));
    }
    let mut reason = Errno::NOENT;
    for candidate in Prepared::new(program)?.candidates() {
        let path: PathBuf = cwd.join(candidate);
        match kind_of(inside, &path) {
            Ok(None) => return Ok(()),
            Ok(Some((FileType::RegularFile, mode))) if mode & 0o111 != 0 => return Ok(()),
            Ok(Some(_)) => reason = Errno::ACCESS,
            Err(_) => {}
        }
    }
    Err(not_executed(reason, program.argv.first().map_or("", String::as_str)))
}

/// What is there, and its mode; `None` for what cannot be seen from here, as a directory that its user has closed.
fn kind_of(inside: &Inside, path: &Path) -> Result<Option<(FileType, u32)>, Errno> {
    if UNSEEN.iter().any(|place| path.starts_with(place)) {
        return Ok(None);
    }
    let found = match inside.find(path) {
        Err(Errno::ACCESS) => return Ok(None),
        found => found?,
    };
    let mode = fstat(found)?.st_mode;
    Ok(Some((FileType::from_raw_mode(mode), mode)))
}
