//! The kernel's calls for projects and their quotas.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{FileType, fstat};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Setter, ioctl, opcode};

/// `struct fsxattr` of the kernel.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Attributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    cow_extent_size: u32,
    reserved: [u8; 8],
}

fn attributes(file: &impl AsFd) -> Result<Attributes, Errno> {
    const FS_IOC_FSGETXATTR: rustix::ioctl::Opcode = opcode::read::<Attributes>(b'X', 31);
    // SAFETY: this call fills a structure of the layout above, in which every pattern of bits is a value.
    unsafe { ioctl(file, Getter::<FS_IOC_FSGETXATTR, Attributes>::new()) }
}

/// The project of a directory, 0 for none.
pub fn project(file: &impl AsFd) -> Result<u32, Errno> {
    match attributes(file) {
        Err(Errno::NOTTY | Errno::OPNOTSUPP) => Ok(0),
        attributes => Ok(attributes?.project),
    }
}

/// Moves a file or directory to a project; other things cannot be moved.
pub fn set_project(file: &impl AsFd, project: u32) -> Result<(), Errno> {
    const FS_IOC_FSSETXATTR: rustix::ioctl::Opcode = opcode::write::<Attributes>(b'X', 32);
    /// Of directories: what is made inside has the project, too.
    const FS_XFLAG_PROJINHERIT: u32 = 0x200;
    let inherit = match FileType::from_raw_mode(fstat(file)?.st_mode) {
        FileType::Directory => FS_XFLAG_PROJINHERIT,
        FileType::RegularFile => 0,
        _ => return Ok(()),
    };
    let old = attributes(file)?;
    let attributes = Attributes { project, flags: old.flags | inherit, ..old };
    // SAFETY: this call reads a structure of the layout above.
    unsafe { ioctl(file, Setter::<FS_IOC_FSSETXATTR, Attributes>::new(attributes)) }
}

/// What a project has, and may have.
pub fn quota(top: &OwnedFd, project: u32) -> Result<libc::dqblk, Errno> {
    // SAFETY: plain numbers, for which zeros are values.
    let mut quota: libc::dqblk = unsafe { std::mem::zeroed() };
    // SAFETY: the command fills a structure of this type.
    unsafe { quotactl(top, libc::Q_GETQUOTA, project, &raw mut quota) }?;
    Ok(quota)
}

/// Limits a project to that many blocks; 0 is no limit.
pub fn set_limit(top: &OwnedFd, project: u32, blocks: u64) -> Result<(), Errno> {
    // SAFETY: as above.
    let mut quota: libc::dqblk = unsafe { std::mem::zeroed() };
    (quota.dqb_bhardlimit, quota.dqb_bsoftlimit, quota.dqb_valid) = (blocks, 0, libc::QIF_BLIMITS);
    // SAFETY: the command reads a structure of this type.
    unsafe { quotactl(top, libc::Q_SETQUOTA, project, &raw mut quota) }
}

/// Whether the filesystem counts for projects, and refuses what is above their limits.
pub fn enforces(top: &OwnedFd) -> bool {
    /// `struct fs_quota_stat` of the kernel, of which only the flags matter here.
    #[repr(C, align(8))]
    struct State {
        version: i8,
        flags: u16,
        rest: [u8; 124],
    }
    const Q_XGETQSTAT: libc::c_int = 0x5805;
    const FS_QUOTA_PDQ_ENFD: u16 = 1 << 5;
    let mut state = State { version: 0, flags: 0, rest: [0; 124] };
    // SAFETY: the command fills at most 80 bytes, the flags at the place above.
    let asked = unsafe { quotactl(top, Q_XGETQSTAT, 0, &raw mut state) };
    asked.is_ok() && state.flags & FS_QUOTA_PDQ_ENFD != 0
}

/// # Safety
///
/// `argument` is what the command reads and writes.
unsafe fn quotactl<T>(
    top: &OwnedFd,
    command: libc::c_int,
    project: u32,
    argument: *mut T,
) -> Result<(), Errno> {
    const PRJQUOTA: libc::c_int = 2;
    let command = (command << 8) | PRJQUOTA;
    // SAFETY: the descriptor is open, and the caller vouches for the argument.
    let result = unsafe { libc::syscall(libc::SYS_quotactl_fd, top.as_raw_fd(), command, project, argument) };
    match result {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)),
    }
}
