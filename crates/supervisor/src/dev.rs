//! `/dev`: the few devices every program expects, terminals of its own, and shared memory.

use std::os::fd::OwnedFd;
use std::path::Path;

use asb_supervisor::confine::TERMINALS;
use asb_supervisor::powers::Powers;
use rustix::fs::{AtFlags, OFlags, openat};
use rustix::fs::{FileType, Mode, chmodat, makedev, mkdirat, mknodat, symlinkat};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

use crate::inside::Inside;
use crate::mount;
use crate::step::{Result, Step};

/// Name, major and minor number. All of them are harmless in every hand.
const DEVICES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];

const LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

/// What the supervisor keeps of `/dev`, whatever is put in its place later.
pub struct Devices {
    pub null: OwnedFd,
    /// The directory of terminals.
    pub terminals: OwnedFd,
}

/// Mounts `/dev`.
pub fn mount(inside: &Inside, first_id: u32, powers: Powers) -> Result<Devices> {
    let owner = first_id.to_string();
    let options = [("mode", "755"), ("size", "64k"), ("uid", owner.as_str()), ("gid", owner.as_str())];
    let dev = mount::filesystem("tmpfs", &options, MountAttrFlags::MOUNT_ATTR_NOSUID)
        .step_at("mount tmpfs", "/dev")?;
    mount::attach(&dev, &inside.directory(Path::new("/dev"))?).step_at("attach", "/dev")?;

    for (name, major, minor) in DEVICES {
        match powers {
            Powers::Machine => make(&dev, name, makedev(major, minor)).step_at("make device", name)?,
            Powers::Range | Powers::One => borrow(inside, name)?,
        }
    }
    for (name, target) in LINKS {
        symlinkat(target, &dev, name).step_at("make link", name)?;
    }
    for name in ["pts", "shm"] {
        mkdirat(&dev, name, Mode::from_raw_mode(0o755)).step_at("make directory", name)?;
    }
    shared_memory(inside, &owner)?;
    let null = openat(&dev, "null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let null = null.step_at("open", "/dev/null")?;
    Ok(Devices { null, terminals: terminals(inside, first_id, powers)? })
}

fn make(dev: &OwnedFd, name: &str, number: u64) -> std::result::Result<(), Errno> {
    let mode = Mode::from_raw_mode(0o666);
    mknodat(dev, name, FileType::CharacterDevice, mode, number)?;
    chmodat(dev, name, mode, AtFlags::empty())
}

/// The machine's own device: the root of a user namespace can make none.
fn borrow(inside: &Inside, name: &str) -> Result<()> {
    let path = Path::new("/dev").join(name);
    let device = mount::view(&path, false).step_at("open device", &path)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    mount::restrict(&device, attributes, false).step_at("restrict device", &path)?;
    mount::attach(&device, &inside.file(&path)?).step_at("attach device", &path)
}

fn shared_memory(inside: &Inside, owner: &str) -> Result<()> {
    let options = [("mode", "1777"), ("size", "64m"), ("uid", owner), ("gid", owner)];
    let quiet = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let shm = mount::filesystem("tmpfs", &options, quiet).step_at("mount tmpfs", "/dev/shm")?;
    mount::attach(&shm, &inside.directory(Path::new("/dev/shm"))?).step_at("attach", "/dev/shm")
}

fn terminals(inside: &Inside, first_id: u32, powers: Powers) -> Result<OwnedFd> {
    // Group 5 is `tty` nearly everywhere.
    let group = (first_id + powers.owner(5)).to_string();
    let options =
        [("mode", "620"), ("ptmxmode", "666"), ("gid", group.as_str()), ("max", &TERMINALS.to_string())];
    let quiet = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let pts = mount::filesystem("devpts", &options, quiet).step_at("mount devpts", "/dev/pts")?;
    mount::attach(&pts, &inside.directory(Path::new("/dev/pts"))?).step_at("attach", "/dev/pts")?;
    openat(&pts, ".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .step_at("open", "/dev/pts")
}
