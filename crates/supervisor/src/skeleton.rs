//! What every root has, whatever the image: `/proc`, `/dev` and `/run`.
//!
//! Made ahead in a directory in memory, while a slot is parked, and moved into the root when there is one.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use asb_supervisor::confine::{MASKED_IN_PROC, MASKED_IN_SYS, READ_ONLY_PATHS};
use asb_supervisor::launch::{Slot, file};
use rustix::fs::{CWD, FileType, OFlags, fstat, openat};
use rustix::mount::MountAttrFlags;

use crate::cgroups;
use crate::dev::{self, Devices};
use crate::identity::with_child;
use crate::inside::Inside;
use crate::mount;
use crate::step::{Result, Step};

pub const READ_ONLY: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_RDONLY;

/// No set-user-id programs, no devices.
pub fn plain() -> MountAttrFlags {
    MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV
}

/// For what the kernel shows of itself.
pub fn quiet() -> MountAttrFlags {
    plain() | MountAttrFlags::MOUNT_ATTR_NOEXEC
}

pub struct Skeleton {
    /// A directory in memory for mount points and small files: on a disk they would take most of a start's time.
    pub scratch: OwnedFd,
    pub devices: Devices,
    /// `None`: nothing is hidden or sealed.
    masks: Option<Masks>,
}

/// What is put over paths that are not shown.
struct Masks {
    file: OwnedFd,
    directory: OwnedFd,
}

impl Skeleton {
    /// Makes it in the slot's directory, which is the current one. One that is `open` shows whatever the kernel shows.
    pub fn new(slot: &Slot, open: bool) -> Result<Self> {
        let scratch = scratch()?;
        let inside = frame(&scratch)?;
        mount_proc(&inside)?;
        let devices = dev::mount(&inside, slot.first_id, slot.powers)?;
        runtime_directory(&inside, slot.first_id)?;
        let masks = (!open).then(|| masks(&inside)).transpose()?;
        if let Some(masks) = &masks {
            make_read_only(&inside)?;
            hide(&inside, &MASKED_IN_PROC, masks)?;
        }
        cgroups::prepare(&inside, &slot.cgroup_views)?;
        Ok(Self { scratch, devices, masks })
    }

    /// Moves it into the root.
    pub fn move_into(&self, inside: &Inside) -> Result<()> {
        let frame = frame(&self.scratch)?;
        for path in ["/proc", "/dev", "/run"] {
            let path = Path::new(path);
            let from = frame.find(path).step_at("find", path)?;
            mount::attach(&from, &inside.directory(path)?).step_at("attach", path)?;
        }
        inside.directory(Path::new("/sys")).map(drop)
    }

    /// Adds `/sys`, which shows the interfaces of the network that it is mounted in, with the cgroups below it.
    pub fn add_sys(&self, inside: &Inside) -> Result<()> {
        sysfs(inside, self.masks.is_none())?;
        cgroups::move_into(&frame(&self.scratch)?, inside)?;
        self.masks.as_ref().map_or(Ok(()), |masks| hide(inside, &MASKED_IN_SYS, masks))
    }
}

/// Mounted by a child: `/proc` shows the pid namespace of the process that mounts it, and children of this process alone are in the
/// sandbox's.
fn mount_proc(inside: &Inside) -> Result<()> {
    let target = inside.directory(Path::new("/proc"))?;
    let mount = || mount::filesystem("proc", &[], quiet()).and_then(|proc| mount::attach(&proc, &target));
    with_child("mount /proc", mount, |_| Ok(()))
}

pub fn sysfs(inside: &Inside, open: bool) -> Result<()> {
    let attributes = if open { quiet() } else { quiet() | READ_ONLY };
    let sys = mount::filesystem("sysfs", &[], attributes).step_at("mount", "/sys")?;
    mount::attach(&sys, &inside.directory(Path::new("/sys"))?).step_at("attach", "/sys")
}

/// It covers `run`, which nothing needs by name any more, and is seen by nobody else.
fn scratch() -> Result<OwnedFd> {
    let options = [("mode", "700"), ("size", "256k")];
    let scratch = mount::filesystem("tmpfs", &options, plain()).step("mount a scratch directory")?;
    let run =
        openat(CWD, file::RUN, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, rustix::fs::Mode::empty())
            .step_at("open", file::RUN)?;
    mount::attach(&scratch, &run).step_at("attach the scratch directory", file::RUN)?;
    Ok(scratch)
}

/// The scratch directory as if it were a root.
fn frame(scratch: &OwnedFd) -> Result<Inside> {
    Inside::of(scratch, 0)
}

pub fn runtime_directory(inside: &Inside, first_id: u32) -> Result<()> {
    let owner = first_id.to_string();
    let options = [("mode", "755"), ("size", "64m"), ("uid", owner.as_str()), ("gid", owner.as_str())];
    let run = mount::filesystem("tmpfs", &options, plain()).step_at("mount tmpfs", "/run")?;
    mount::attach(&run, &inside.directory(Path::new("/run"))?).step_at("attach", "/run")
}

fn masks(inside: &Inside) -> Result<Masks> {
    let file = inside.find(Path::new("/dev/null")).step_at("open", "/dev/null")?;
    let options = [("size", "0"), ("nr_inodes", "1"), ("mode", "555")];
    let directory =
        mount::filesystem("tmpfs", &options, plain() | READ_ONLY).step("mount an empty directory")?;
    // Before Linux 6.15 there are no further views of a mount that is attached nowhere.
    mount::attach(&directory, &inside.directory(Path::new("/masked"))?).step("attach an empty directory")?;
    Ok(Masks { file, directory })
}

/// Paths that this kernel does not have are skipped, here and below.
pub fn make_read_only(inside: &Inside) -> Result<()> {
    for path in READ_ONLY_PATHS {
        let Ok(target) = inside.find(Path::new(path)) else { continue };
        let view = mount::view_of(&target).step_at("view", path)?;
        mount::restrict(&view, READ_ONLY, false).step_at("make read-only", path)?;
        mount::attach(&view, &target).step_at("attach", path)?;
    }
    Ok(())
}

fn hide(inside: &Inside, paths: &[&str], masks: &Masks) -> Result<()> {
    for path in paths {
        let Ok(target) = inside.find(Path::new(path)) else { continue };
        let kind = FileType::from_raw_mode(fstat(&target).step_at("inspect", path)?.st_mode);
        let mask = if kind == FileType::Directory { &masks.directory } else { &masks.file };
        let mask = mount::view_of(&mask.as_fd()).step_at("view the mask of", path)?;
        mount::attach(&mask, &target).step_at("mask", path)?;
    }
    Ok(())
}
