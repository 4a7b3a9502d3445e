//! Mounts made by descriptor: nothing is visible anywhere until it is attached, with all its attributes set.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

/// A filesystem of its own, such as `tmpfs`. An option without a value is a flag.
pub fn filesystem(
    kind: &str,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
) -> Result<OwnedFd, Errno> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        match *value {
            "" => fsconfig_set_flag(&context, *key)?,
            value => fsconfig_set_string(&context, *key, value)?,
        }
    }
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// A second view of a directory or file, and of what is mounted below it when `recursive`.
pub fn view(source: &Path, recursive: bool) -> Result<OwnedFd, Errno> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    open_tree(CWD, source, flags)
}

/// A second view of what a descriptor stands for.
pub fn view_of(source: &impl AsFd) -> Result<OwnedFd, Errno> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(source, "", flags)
}

/// Puts a mount where `target` is.
pub fn attach(mount: &impl AsFd, target: &impl AsFd) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", target, "", flags)
}

/// Adds attributes to a mount and, when `recursive`, to those below it.
pub fn restrict(mount: &impl AsFd, attributes: MountAttrFlags, recursive: bool) -> Result<(), Errno> {
    set_attributes(mount.as_fd(), (u64::from(attributes.bits()), 0), None, recursive)
}

/// Takes attributes off a mount.
pub fn release(mount: &impl AsFd, attributes: MountAttrFlags) -> Result<(), Errno> {
    set_attributes(mount.as_fd(), (0, u64::from(attributes.bits())), None, false)
}

/// Maps the ids of a mount through a user namespace: id 0 on disk is id 0 in there.
pub fn map_ids(mount: &impl AsFd, namespace: &impl AsFd) -> Result<(), Errno> {
    const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;
    set_attributes(mount.as_fd(), (MOUNT_ATTR_IDMAP, 0), Some(namespace.as_fd()), false)
}

fn set_attributes(
    mount: BorrowedFd<'_>,
    (set, clear): (u64, u64),
    namespace: Option<BorrowedFd<'_>>,
    recursive: bool,
) -> Result<(), Errno> {
    /// `struct mount_attr` of the kernel.
    #[repr(C)]
    struct MountAttr {
        set: u64,
        clear: u64,
        propagation: u64,
        namespace: u64,
    }
    let namespace = namespace.map_or(0, |fd| fd.as_raw_fd() as u64);
    let attributes = MountAttr { set, clear, propagation: 0, namespace };
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a C string, the structure has the kernel's layout and the size given, and both outlive the
    // call, which writes to neither.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attributes,
            size_of::<MountAttr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

/// The error of the system call just made.
pub fn last_errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}
