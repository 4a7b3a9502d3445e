//! The mount namespace that a runtime is run in: what it needs is there, what it must not touch is read-only.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use asb_supervisor::launch::{Kernel, Launch};
use asb_supervisor::powers::Powers;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, UnmountFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};

use crate::beside::Shared;
use crate::dev::{self, Devices};
use crate::inside::Inside;
use crate::skeleton::{make_read_only, plain};
use crate::step::{Result, Step};
use crate::{init, mount, root};

/// Directories that every machine has, and that may be covered where nobody else sees it.
const PLACES: [&str; 4] = ["/run", "/mnt", "/srv", "/media"];

/// One that nothing of this launch is in. Short, for sockets are made there.
pub fn choose(launch: &Launch, program: &Path, kernel: &Kernel) -> PathBuf {
    let volumes = launch.binds.iter().map(|bind| &bind.source);
    let memory = launch.memory_dirs.iter().map(|memory| &memory.path);
    let image = &launch.image;
    let used: Vec<&Path> = image
        .layers
        .iter()
        .chain(&image.host_dirs)
        .chain(volumes)
        .chain(memory)
        .map(PathBuf::as_path)
        .chain([program])
        .chain(match kernel {
            Kernel::Joined(path) => Some(path.as_path()),
            Kernel::Own | Kernel::Shared => None,
        })
        .collect();
    let free = PLACES.iter().find(|place| !used.iter().any(|path| path.starts_with(place)));
    PathBuf::from(free.unwrap_or(&PLACES[0]))
}

/// A directory in memory, in place of one that is there.
pub fn scratch(place: &Path) -> Result<OwnedFd> {
    // A runtime that has already become a user of the sandbox must still get past it.
    let options = [("mode", "711"), ("size", "4m")];
    let scratch = mount::filesystem("tmpfs", &options, plain()).step("mount a scratch directory")?;
    attach(&scratch, place)?;
    Ok(scratch)
}

/// The rest, once the root stands: processes of this pid namespace, devices of its own, cgroups that no runtime changes.
pub fn prepare(gvisor: bool, place: &Path, cgroup_namespace: &OwnedFd) -> Result<()> {
    // What runtimes read of cgroups names places from the top. They make a namespace of their own for the container.
    move_into_link_name_space(cgroup_namespace.as_fd(), Some(LinkNameSpaceType::ControlGroup))
        .step("leave the cgroup namespace")?;
    // Runtimes show their devices to the container, and give what they pass it as standard input to its users.
    let Devices { null, .. } = dev::mount(&here()?, 0, Powers::Machine)?;
    init::detach_from_launcher(&null)?;
    // What the runtimes make, and what they start without being told another.
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let proc = mount::filesystem("proc", &[], MountAttrFlags::empty()).step_at("mount", "/proc")?;
    attach(&proc, Path::new("/proc"))?;
    seal(place)?;
    if gvisor {
        // gVisor takes a namespace for the machine's own when it finds a file in there that some kernels show in all.
        let empty = mount::filesystem("tmpfs", &[("size", "0")], plain()).step("mount an empty directory")?;
        attach(&empty, Path::new("/proc/sys/net"))?;
    }
    Ok(())
}

/// Once the container stands: what of the kernel root could change by writing to files is not written to any more. (Before,
/// the kernel would show the container no more of its own `/proc` either.)
pub fn close() -> Result<()> {
    make_read_only(&here()?)
}

/// The root of this mount namespace.
fn here() -> Result<Inside> {
    let root = openat(CWD, "/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    Ok(Inside::new(root.step_at("open", "/")?, 0))
}

/// Nothing is written to any more but what is below `place`, and what the kernel shows of this pid namespace.
///
/// So it is with cgroups: limits are set where the sandbox's was made; this process and all it starts are in that one.
fn seal(place: &Path) -> Result<()> {
    let path = "/proc/self/mountinfo";
    let mounts = std::fs::read_to_string(path).step_at("read", path)?;
    for (at, kind) in mounted(&mounts) {
        let is_theirs = at.starts_with(place);
        if kind == "cgroup2" && at != Path::new("/sys/fs/cgroup") && !is_theirs {
            // Beside the first version it only leads runtimes to believe that they cannot work.
            rustix::mount::unmount(&at, UnmountFlags::DETACH).step_at("unmount", &at)?;
        } else if !is_theirs && !at.starts_with("/proc") {
            seal_one(&at).step_at("make read-only", &at)?;
        }
    }
    Ok(())
}

fn seal_one(at: &Path) -> std::result::Result<(), Errno> {
    let sealed = openat(CWD, at, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .and_then(|found| mount::restrict(&found, MountAttrFlags::MOUNT_ATTR_RDONLY, false));
    match sealed {
        // Something else is mounted over it, or above: nobody gets there.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::INVAL) => Ok(()),
        sealed => sealed,
    }
}

/// Where something is mounted, and of which kind.
fn mounted(mounts: &str) -> Vec<(PathBuf, &str)> {
    let mounted = mounts.lines().filter_map(|line| {
        let (place, filesystem) = line.split_once(" - ")?;
        Some((unescape(place.split(' ').nth(4)?), filesystem.split(' ').next()?))
    });
    mounted.collect()
}

/// A path in which the kernel has written some characters by their octal numbers.
fn unescape(path: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let number =
            after.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match number.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

/// gVisor keeps what it knows of the root to itself; volumes, which others write to as well, it must be told of.
pub fn show_volumes(inside: &Inside, launch: &Launch, place: &Path, config: &mut Value) -> Result<()> {
    let volumes = launch.binds.iter().map(|bind| (bind.target.as_path(), bind.read_only));
    // Without this it would put a filesystem in memory there.
    let tmp = inside.find(Path::new("/tmp")).is_ok().then_some((Path::new("/tmp"), launch.read_only_root));
    for (at, (target, read_only)) in tmp.into_iter().chain(volumes).enumerate() {
        let source = place.join(format!("volume-{at}"));
        root::show_again(inside, target, &source)?;
        let access = if read_only { "ro" } else { "rw" };
        let mount = json!({
            "type": "bind", "source": source, "destination": target, "options": ["rbind", access, "nosuid", "nodev"],
        });
        config["mounts"].as_array_mut().into_iter().for_each(|mounts| mounts.push(mount.clone()));
    }
    Ok(())
}

/// An empty file that everybody may write to; the runtime shows it inside, over whatever it makes there itself.
pub fn last_words(path: &Path, place: &Path, config: &mut Value) -> Result<OwnedFd> {
    let source = place.join("last-words");
    let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = openat(CWD, &source, flags, Mode::from_raw_mode(0o666)).step_at("create", &source)?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o666)).step_at("open to everybody", &source)?;
    let mount = json!({
        "type": "bind", "source": source, "destination": path, "options": ["bind", "rw", "nosuid", "nodev"],
    });
    config["mounts"].as_array_mut().into_iter().for_each(|mounts| mounts.push(mount.clone()));
    Ok(file)
}

/// The `/dev/shm` of another sandbox, over the one that the runtime makes.
pub fn shared_memory(shared: &Shared, place: &Path, config: &mut Value) -> Result<()> {
    let source = place.join("shm");
    std::fs::create_dir(&source).step_at("make mount point", &source)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let at = openat(CWD, &source, flags, Mode::empty()).step_at("open", &source)?;
    shared.attach_shm_at(&at)?;
    let mount = json!({
        "type": "bind", "source": source, "destination": "/dev/shm", "options": ["bind", "rw", "nosuid", "nodev", "noexec"],
    });
    config["mounts"].as_array_mut().into_iter().for_each(|mounts| mounts.push(mount.clone()));
    Ok(())
}

/// Shows a directory once more, at a new place.
pub fn show_directory(directory: &Path, at: &Path) -> Result<()> {
    std::fs::create_dir(at).step_at("make mount point", at)?;
    attach(&mount::view(directory, false).step_at("open", directory)?, at)
}

fn attach(mount: &OwnedFd, at: &Path) -> Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let place = openat(CWD, at, flags, Mode::empty()).step_at("open", at)?;
    mount::attach(mount, &place).step_at("attach", at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_whatever_they_are_called() {
        let mounts = "\
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
41 31 0:38 / /a\\040b\\134c rw,relatime shared:9 - cgroup2 cgroup2 rw";
        let expected = [("/sys/fs/cgroup/cpu", "cgroup"), ("/a b\\c", "cgroup2")].map(|(a, b)| (a.into(), b));
        assert_eq!(mounted(mounts), expected);
    }
}
