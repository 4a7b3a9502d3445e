//! The root filesystem of a sandbox: the image's layers, the skeleton, volumes, up to the point of no return.
//!
//! Everything is mounted by root of the machine or of the engine's user namespace, which no program inside is in: so nothing
//! inside holds a right over any of these mounts.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use asb_supervisor::launch::{self, Image, Launch, Slot, file};
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, fstatfs, openat};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, UnmountFlags};
use rustix::process::{chdir, fchdir, pivot_root};

use crate::beside::Shared;
use crate::dev::Devices;
use crate::inside::Inside;
use crate::mount;
use crate::sizes;
use crate::skeleton::{READ_ONLY, Skeleton, plain};
use crate::step::{Result, Step};

/// What the supervisor keeps of the root, whatever is put in its place later.
pub struct Root {
    pub devices: Devices,
    /// The file that [`Launch::last_words`] names.
    pub last_words: Option<OwnedFd>,
}

/// A root that has all of its image, and nothing yet of what will run in it.
pub struct Standing {
    inside: Inside,
    skeleton: Skeleton,
}

/// Builds the root as far as the image goes. The current directory is that of the sandbox. A filesystem on a disk takes most of
/// its time to make files, and all that the root needs of those are made here.
pub fn build(
    slot: &Slot,
    image: &Image,
    namespace: Option<&OwnedFd>,
    skeleton: Skeleton,
) -> Result<Standing> {
    let inside = stack(slot, image, namespace, (&skeleton.scratch, Path::new(file::RUN)))?;
    skeleton.move_into(&inside)?;
    Ok(Standing { inside, skeleton })
}

/// Finishes the root and makes it the root of this mount namespace.
pub fn enter(
    root: Standing,
    slot: &Slot,
    launch: &Launch,
    namespace: &OwnedFd,
    shared: Option<Shared>,
) -> Result<Root> {
    let Standing { inside, skeleton } = root;
    tell_names(&inside, launch, &skeleton.scratch)?;
    skeleton.add_sys(&inside)?;
    sizes::show(&inside, &skeleton.scratch, launch)?;
    shared.iter().try_for_each(|shared| shared.attach_shm(&inside))?;
    memory_dirs(slot, launch, shared.as_ref(), (&skeleton.scratch, Path::new(file::RUN)))?;
    for bind in &launch.binds {
        volume(&inside, bind, slot, launch, namespace)?;
    }
    let last_words = launch
        .last_words
        .as_ref()
        .map(|path| last_words(&inside, path, slot, &skeleton.scratch))
        .transpose()?;
    inside.directory(Path::new(&launch.main.cwd))?;
    if launch.privileged {
        allow_set_user_id(&inside)?;
    }
    if launch.read_only_root {
        mount::restrict(&inside.root(), READ_ONLY, false).step_at("make read-only", "/")?;
    }
    pivot(&inside)?;
    Ok(Root { devices: skeleton.devices, last_words })
}

/// A program may belong to root, who is that of the sandbox, or to another of its users.
pub fn allow_set_user_id(inside: &Inside) -> Result<()> {
    mount::release(&inside.root(), MountAttrFlags::MOUNT_ATTR_NOSUID).step_at("allow set-user-id on", "/")
}

/// The image and what of the machine every sandbox has. `scratch` is a directory in memory and how it is called here.
pub fn stack(
    slot: &Slot,
    image: &Image,
    namespace: Option<&OwnedFd>,
    scratch: (&OwnedFd, &Path),
) -> Result<Inside> {
    let inside = Inside::new(overlay(slot, image, namespace, scratch)?, slot.first_id);
    for path in &image.host_dirs {
        host_directory(&inside, path)?;
    }
    place_names(&inside, slot, scratch.0)?;
    Ok(inside)
}

/// The image's layers with their ids mapped, or nothing, under an upper layer that belongs to the sandbox's own ids.
///
/// The upper layer is not mapped: overlayfs would then silently be read-only.
fn overlay(
    slot: &Slot,
    image: &Image,
    namespace: Option<&OwnedFd>,
    (scratch, at): (&OwnedFd, &Path),
) -> Result<OwnedFd> {
    let mut lower = Vec::new();
    for (index, source) in image.layers.iter().enumerate() {
        let layer = mount::view(source, false).step_at("open layer", source)?;
        map_ids(slot, &layer, namespace).step_at("map the ids of layer", source)?;
        let name = index.to_string();
        mount::attach(&layer, &place(scratch, &name)?).step_at("attach layer", source)?;
        lower.push(format!("{}/{name}", at.display()));
    }
    if lower.is_empty() {
        place(scratch, "empty")?;
        lower.push(format!("{}/empty", at.display()));
    }
    // Relative paths: the state directory's own may hold characters that mean something to overlayfs.
    let lower = lower.join(":");
    // Volatile: the root ends with the sandbox, so nothing of it is worth waiting for a disk. Volumes are not in it.
    let mut options =
        vec![("lowerdir", lower.as_str()), ("upperdir", "upper"), ("workdir", "work"), ("volatile", "")];
    if slot.powers.is_rootless() {
        options.push(("userxattr", ""));
    }
    let overlay = mount::filesystem("overlay", &options, plain()).step_at("mount overlay on", "upper")?;
    mount::attach(&overlay, &place(scratch, "root")?).step("attach overlay")?;
    directory_at(scratch.as_fd(), "root")
}

/// Shows files with the sandbox's ids. Where they have those on disk already, there is nothing to do.
fn map_ids(slot: &Slot, view: &OwnedFd, namespace: Option<&OwnedFd>) -> std::result::Result<(), Errno> {
    match namespace {
        _ if slot.powers.is_rootless() => Ok(()),
        Some(namespace) => mount::map_ids(view, namespace),
        None => Err(Errno::BADF),
    }
}

/// A new mount point.
fn place(scratch: &OwnedFd, name: &str) -> Result<OwnedFd> {
    rustix::fs::mkdirat(scratch, name, Mode::from_raw_mode(0o700)).step_at("make mount point", name)?;
    directory_at(scratch.as_fd(), name)
}

fn directory_at(parent: BorrowedFd<'_>, name: impl AsRef<Path>) -> Result<OwnedFd> {
    let name = name.as_ref();
    openat(parent, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .step_at("open", name)
}

/// Ids are not mapped here: only what every user of the machine may read can be read.
fn host_directory(inside: &Inside, path: &PathBuf) -> Result<()> {
    let directory = mount::view(path, true).step_at("open host directory", path)?;
    mount::restrict(&directory, plain() | READ_ONLY, true).step_at("make read-only", path)?;
    mount::attach(&directory, &inside.directory(path)?).step_at("attach host directory", path)
}

/// Files of the sandbox's own, in the scratch directory and mounted over those of the image in `/etc`.
const NAMES: [&str; 3] = ["hostname", "hosts", "resolv.conf"];

fn place_names(inside: &Inside, slot: &Slot, scratch: &OwnedFd) -> Result<()> {
    let scratch = Inside::of(scratch, slot.first_id)?;
    for name in NAMES {
        let (from, to) = (Path::new("/").join(name), Path::new("/etc").join(name));
        scratch.write(&from, b"")?;
        let view = mount::view_of(&scratch.file(&from)?).step_at("view", &from)?;
        mount::attach(&view, &inside.file(&to)?).step_at("attach", &to)?;
    }
    Ok(())
}

/// Writes what is in them.
pub fn tell_names(inside: &Inside, launch: &Launch, scratch: &OwnedFd) -> Result<()> {
    let hostname = &launch.hostname;
    let address = launch.address.map_or_else(|| "127.0.1.1".to_owned(), |address| address.to_string());
    let hosts = launch.hosts.clone().unwrap_or_else(|| {
        format!("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n{address} {hostname}\n")
    });
    // Without a resolver, lookups are refused at once on the loopback interface instead of timing out.
    let resolver = launch.resolv_conf.clone().unwrap_or_else(|| "nameserver 127.0.0.1\n".to_owned());
    for (name, contents) in NAMES.into_iter().zip([format!("{hostname}\n"), hosts, resolver]) {
        let file = openat(scratch, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
        std::fs::File::from(file.step_at("open", name)?)
            .write_all(contents.as_bytes())
            .step_at("write", name)?;
        if launch.read_only_root {
            let to = Path::new("/etc").join(name);
            let mounted = inside.find(&to).step_at("open", &to)?;
            mount::restrict(&mounted, READ_ONLY, false).step_at("make read-only", &to)?;
        }
    }
    Ok(())
}

/// An empty file that everybody may write to, even where nothing else can be written.
fn last_words(inside: &Inside, path: &Path, slot: &Slot, scratch: &OwnedFd) -> Result<OwnedFd> {
    let open_to_everybody = |file: OwnedFd| {
        rustix::fs::fchmod(&file, Mode::from_raw_mode(0o666)).step_at("open to everybody", path)?;
        Ok(file)
    };
    // `/dev` is in memory and the sandbox's own already: the usual place costs no mount.
    if path.parent() == Some(Path::new("/dev")) && matches!(inside.find(path), Err(Errno::NOENT)) {
        inside.write(path, b"")?;
        return open_to_everybody(inside.readable(path)?);
    }
    let name = Path::new("/last-words");
    let scratch = Inside::of(scratch, slot.first_id)?;
    scratch.write(name, b"")?;
    let view = mount::view_of(&scratch.file(name)?).step_at("view", path)?;
    let target = inside.file(path)?;
    refuse_kernel_filesystem(&target).step_at("mount a file over", path)?;
    mount::attach(&view, &target).step_at("attach", path)?;
    open_to_everybody(scratch.readable(name)?)
}

/// Volumes in memory, of its own or another's: seen by the binds that follow, and by nobody outside this mount namespace.
pub fn memory_dirs(
    slot: &Slot,
    launch: &Launch,
    shared: Option<&Shared>,
    (scratch, at): (&OwnedFd, &Path),
) -> Result<()> {
    match shared {
        None => launch.memory_dirs.iter().try_for_each(|memory| memory_dir(memory, slot, launch)),
        Some(shared) => {
            place(scratch, "memory")?;
            shared.attach_memory(launch, &at.join("memory"))
        }
    }
}

fn memory_dir(memory: &launch::MemoryDir, slot: &Slot, launch: &Launch) -> Result<()> {
    let (size, owner) = (memory.bytes.to_string(), slot.first_id.to_string());
    let group = launch.extra_ids.outside(slot.first_id, slot.powers.owner(memory.group));
    let group = group.ok_or(Errno::INVAL).step("find the group of a volume in memory")?.to_string();
    // As a kubelet leaves it. Directories made in one that belongs to a group of its own belong to that group too.
    let mode = if memory.group == 0 { "1777" } else { "3777" };
    let options = [("mode", mode), ("size", size.as_str()), ("uid", owner.as_str()), ("gid", group.as_str())];
    let filesystem =
        mount::filesystem("tmpfs", &options, plain()).step_at("mount a volume in memory", &memory.path)?;
    mount::attach(&filesystem, &directory_at(CWD, &memory.path)?)
        .step_at("attach a volume in memory", &memory.path)
}

pub fn volume(
    inside: &Inside,
    bind: &launch::Bind,
    slot: &Slot,
    launch: &Launch,
    namespace: &OwnedFd,
) -> Result<()> {
    let in_memory = launch.memory_dirs.iter().any(|memory| memory.path == bind.source);
    let view = if bind.sub_path.as_os_str().is_empty() {
        mount::view(&bind.source, false).step_at("open volume", &bind.source)?
    } else {
        let owner = if in_memory { slot.first_id } else { 0 };
        let found = sub_path(bind, owner)?;
        mount::view_of(&found).step_at("view a part of volume", &bind.source)?
    };
    if !in_memory {
        // A filesystem in memory was made with the sandbox's own ids.
        map_ids(slot, &view, Some(namespace)).step_at("map the ids of volume", &bind.source)?;
    }
    let attributes = if bind.read_only { plain() | READ_ONLY } else { plain() };
    mount::restrict(&view, attributes, false).step_at("restrict volume", &bind.source)?;
    let kind = FileType::from_raw_mode(fstat(&view).step_at("inspect volume", &bind.source)?.st_mode);
    let target = match kind {
        FileType::Directory => inside.directory(&bind.target)?,
        _ => inside.file(&bind.target)?,
    };
    refuse_kernel_filesystem(&target).step_at("mount a volume over", &bind.target)?;
    mount::attach(&view, &target).step_at("attach volume", &bind.target)
}

/// Shows what is at `path` inside once more, at a new place beside the root.
pub fn show_again(inside: &Inside, path: &Path, at: &Path) -> Result<()> {
    let found = inside.find(path).step_at("open", path)?;
    let kind = FileType::from_raw_mode(fstat(&found).step_at("inspect", path)?.st_mode);
    match kind {
        FileType::Directory => std::fs::create_dir(at).step_at("make mount point", at)?,
        _ => std::fs::write(at, "").step_at("make mount point", at)?,
    }
    let view = mount::view_of(&found).step_at("view", path)?;
    let place = openat(CWD, at, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).step_at("open", at)?;
    mount::attach(&view, &place).step_at("attach", at)
}

/// A part of a volume. Sandboxes write to volumes, so its links are resolved as if the volume were all there is.
fn sub_path(bind: &launch::Bind, owner: u32) -> Result<OwnedFd> {
    let volume = Inside::new(directory_at(CWD, &bind.source)?, owner).for_everybody();
    match volume.find(&bind.sub_path) {
        Err(Errno::NOENT) => volume.directory(&bind.sub_path),
        found => found.step_at("open a part of a volume", &bind.sub_path),
    }
}

/// A link in an image must not turn a volume's target into a file of `/proc` or `/sys`.
fn refuse_kernel_filesystem(target: &OwnedFd) -> std::result::Result<(), Errno> {
    const PROC_SUPER_MAGIC: u64 = 0x9fa0;
    const SYSFS_MAGIC: u64 = 0x6265_6572;
    match fstatfs(target)?.f_type as u64 {
        PROC_SUPER_MAGIC | SYSFS_MAGIC => Err(Errno::PERM),
        _ => Ok(()),
    }
}

/// Makes the new root the root, and lets go of everything else that was mounted.
fn pivot(inside: &Inside) -> Result<()> {
    fchdir(inside.root().as_fd()).step("enter the new root")?;
    // Both at once: the old root ends up on top of the new one, and is the one detached.
    pivot_root(".", ".").step("pivot into the new root")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).step("detach the old root")?;
    chdir("/").step_at("enter", "/")?;
    rustix::fs::accessat(CWD, "/proc/1", rustix::fs::Access::EXISTS, rustix::fs::AtFlags::empty())
        .step_at("look for", "/proc/1")
}
