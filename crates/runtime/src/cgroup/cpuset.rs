//! The hierarchy `cpuset` of the first version, in which a cgroup takes no process before it has processors and memory.

use std::path::Path;

use super::{Failure, make_directory, write};

const PROCESSORS: &str = "cpuset.cpus";
/// Written last: a cgroup that has it is complete.
const NODES: &str = "cpuset.mems";
/// Makes cgroups below begin with the same, so that a slot needs no write of its own.
const INHERIT: &str = "cgroup.clone_children";

/// Whether slots can have cgroups in this hierarchy. A machine may have given it away, or its processors to others alone.
pub(super) fn works(mount: &Path, parent: &Path) -> bool {
    // Another program removes the upper one with its last sandbox.
    let was_removed = |made: &Result<(), Failure>| {
        made.as_ref().is_err_and(|failure| failure.source.kind() == std::io::ErrorKind::NotFound)
    };
    let made = (0..16).map(|_| make(mount, parent)).find(|made| !was_removed(made));
    let is_filled = !read(&mount.join(parent).join(NODES)).is_empty();
    // Made again by the first slot. Those that are in use stay.
    for place in parent.ancestors().filter(|place| !place.as_os_str().is_empty()) {
        let _ = std::fs::remove_dir(mount.join(place));
    }
    made.is_some_and(|made| made.is_ok()) && is_filled
}

/// Makes the cgroups down to the parent of all slots, each with everything that the one above has.
pub(super) fn make(mount: &Path, parent: &Path) -> Result<(), Failure> {
    let mut place = mount.to_owned();
    for part in parent {
        let above = place.clone();
        place.push(part);
        make_directory(&place)?;
        if read(&place.join(NODES)).is_empty() {
            write(&place.join(INHERIT), "1")?;
            write(&place.join(PROCESSORS), &read(&above.join(PROCESSORS)))?;
            write(&place.join(NODES), &read(&above.join(NODES)))?;
        }
    }
    Ok(())
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchy_that_takes_no_cgroup_or_gives_it_nothing_does_not_work() {
        let top = tempfile::tempdir().expect("temporary directory");
        let at = |path: &str| top.path().join(path);
        let parent = Path::new("asb/0");
        assert!(!works(top.path(), parent), "there are no processors to give");
        std::fs::write(at(PROCESSORS), "0-3").expect("written");
        std::fs::write(at(NODES), "0").expect("written");
        std::fs::remove_dir_all(at("asb")).expect("removed");
        assert!(works(top.path(), parent));
        std::fs::remove_dir_all(at("asb")).expect("removed");
        std::fs::write(at("asb"), "in the way").expect("written");
        assert!(!works(top.path(), parent));
    }

    #[test]
    fn cgroups_have_what_the_ones_above_have_and_are_written_once() {
        let top = tempfile::tempdir().expect("temporary directory");
        let at = |path: &str| top.path().join(path);
        std::fs::write(at(PROCESSORS), "0-3\n").expect("written");
        std::fs::write(at(NODES), "0\n").expect("written");
        make(top.path(), Path::new("asb/0")).expect("made");
        for path in ["asb", "asb/0"] {
            let contents = [PROCESSORS, NODES, INHERIT].map(|file| read(&at(path).join(file)));
            assert_eq!(contents, ["0-3", "0", "1"], "{path}");
        }
        std::fs::write(at("asb/0").join(PROCESSORS), "2").expect("written");
        make(top.path(), Path::new("asb/0")).expect("made");
        assert_eq!(read(&at("asb/0").join(PROCESSORS)), "2", "an operator may choose");
    }
}
