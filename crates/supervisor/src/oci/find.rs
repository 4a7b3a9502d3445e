//! Whether a program is there, before a runtime is asked to start it: so every runtime fails in the same words.

use std::path::{Path, PathBuf};

use asb_supervisor::wire::Failed;
use rustix::fs::{FileType, fstat};
use rustix::io::Errno;

use crate::inside::Inside;
use crate::spawn::{Prepared, Program, not_entered, not_executed};

/// What is here cannot be seen from outside the container.
const UNSEEN: [&str; 2] = ["/proc", "/dev"];

pub fn program(inside: &Inside, program: &Program) -> Result<(), Failed> {
    let cwd = Path::new(&program.cwd);
    if !unseen(cwd) {
        let kind = kind_of(inside, cwd).map_err(|errno| not_entered(errno, &program.cwd))?.0;
        if kind != FileType::Directory {
            return Err(not_entered(Errno::NOTDIR, &program.cwd));
        }
    }
    let mut reason = Errno::NOENT;
    for candidate in Prepared::new(program)?.candidates() {
        let path: PathBuf = cwd.join(candidate);
        match kind_of(inside, &path) {
            _ if unseen(&path) => return Ok(()),
            Ok((FileType::RegularFile, mode)) if mode & 0o111 != 0 => return Ok(()),
            Ok(_) => reason = Errno::ACCESS,
            Err(_) => {}
        }
    }
    Err(not_executed(reason, program.argv.first().map_or("", String::as_str)))
}

fn unseen(path: &Path) -> bool {
    UNSEEN.iter().any(|place| path.starts_with(place))
}

fn kind_of(inside: &Inside, path: &Path) -> Result<(FileType, u32), Errno> {
    let mode = fstat(inside.find(path)?)?.st_mode;
    Ok((FileType::from_raw_mode(mode), mode))
}
