//! `/sys/fs/cgroup`: the sandbox's own cgroups, to be read, so that programs size themselves by its limits.
//!
//! ```text
//! second version    /sys/fs/cgroup/memory.max                         the sandbox's cgroup itself
//! first version     /sys/fs/cgroup/memory/memory.limit_in_bytes       one of each hierarchy, in a directory in memory
//! both              /sys/fs/cgroup/unified/...                        beside those of the first
//! ```
//!
//! A sandbox sees the cgroups that it alone is in, and none above them. They are assembled while the slot is parked: a start
//! moves one mount.

use std::os::fd::OwnedFd;
use std::path::Path;

use asb_supervisor::launch::{CgroupView, Slot};
use rustix::fs::{Mode, OFlags, mkdirat, openat, symlinkat};
use rustix::io::Errno;

use crate::inside::Inside;
use crate::mount;
use crate::skeleton::{READ_ONLY, quiet};
use crate::step::{Result, Step};

const PLACE: &str = "/sys/fs/cgroup";
/// Where they wait in the scratch directory.
const WAITING: &str = "/cgroup";
const UNIFIED: &str = "unified";

/// Mounts the sandbox's cgroups where programs look for them, with nothing made ahead.
pub fn show(inside: &Inside, slot: &Slot, scratch: &OwnedFd) -> Result<()> {
    let frame = Inside::of(scratch, 0)?;
    prepare(&frame, &slot.cgroup_views)?;
    move_into(&frame, inside)
}

/// Assembles the sandbox's cgroups in the scratch directory, if it has any.
pub fn prepare(scratch: &Inside, views: &[CgroupView]) -> Result<()> {
    let [first, ..] = views else { return Ok(()) };
    let place = scratch.directory(Path::new(WAITING))?;
    if let ([only], None) = (views, &first.name) {
        let view = mount::view(&only.path, false).step_at("view cgroup", &only.path)?;
        mount::restrict(&view, quiet() | READ_ONLY, false).step_at("make read-only", &only.path)?;
        return mount::attach(&view, &place).step_at("attach cgroup", &only.path);
    }
    let options = [("mode", "755"), ("size", "64k")];
    let all = mount::filesystem("tmpfs", &options, quiet()).step_at("mount tmpfs", PLACE)?;
    mount::attach(&all, &place).step_at("attach", PLACE)?;
    for view in views {
        let name = view.name.as_deref().unwrap_or(UNIFIED);
        let cgroup = mount::view(&view.path, false).step_at("view cgroup", &view.path)?;
        mount::attach(&cgroup, &directory(&all, name)?).step_at("attach cgroup", &view.path)?;
        // Controllers of one hierarchy are looked for by each of their names.
        for alone in name.split(',').filter(|alone| *alone != name) {
            symlinkat(name, &all, alone).step_at("link cgroup", alone)?;
        }
    }
    mount::restrict(&all, quiet() | READ_ONLY, true).step_at("make read-only", PLACE)
}

/// Moves the assembled cgroups to where programs look for them. A kernel whose `/sys` has no such place has no cgroups.
pub fn move_into(scratch: &Inside, inside: &Inside) -> Result<()> {
    let from = match scratch.find(Path::new(WAITING)) {
        Err(Errno::NOENT) => return Ok(()),
        found => found.step_at("find", WAITING)?,
    };
    let Ok(target) = inside.find(Path::new(PLACE)) else { return Ok(()) };
    mount::attach(&from, &target).step_at("attach", PLACE)
}

fn directory(parent: &OwnedFd, name: &str) -> Result<OwnedFd> {
    mkdirat(parent, name, Mode::from_raw_mode(0o755)).step_at("make mount point", name)?;
    openat(parent, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .step_at("open", name)
}
