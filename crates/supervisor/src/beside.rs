//! Sharing with another sandbox, as containers of one Pod do: ids, IPC, `/dev/shm` and volumes in memory.
//!
//! What is shared comes as descriptors with the launch file. Of a slot that was parked, only what shows its own ids is made
//! again; the user namespace is still one of its own, so that each supervisor holds rights over its own programs alone.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use asb_supervisor::launch::{Launch, Slot};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, UnmountFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::identity::Unmapped;
use crate::init::UserNamespace;
use crate::inside::Inside;
use crate::mount;
use crate::order::Given;
use crate::skeleton::plain;
use crate::step::{Result, Step};

/// What is mounted of the other sandbox.
pub struct Shared {
    /// Its `/dev/shm`.
    shm: OwnedFd,
    /// Its volumes in memory.
    memory: Option<OwnedFd>,
}

/// Enters what can be entered, and answers with the rest; `None` when nothing is shared.
pub fn join(launch: &Launch, given: &mut Given) -> Result<Option<Shared>> {
    if launch.beside.is_none() {
        return Ok(None);
    }
    let ipc = given.ipc.as_ref().ok_or(Errno::BADF).step("find the IPC namespace")?;
    move_into_link_name_space(ipc.as_fd(), Some(LinkNameSpaceType::InterProcessCommunication))
        .step("enter the IPC namespace")?;
    let shm = given.shm.take().ok_or(Errno::BADF).step("find the shared memory")?;
    Ok(Some(Shared { shm, memory: given.memory.take() }))
}

/// The slot with the ids of the launch, which are shared or more than every sandbox has, and a user namespace for them;
/// `None` when the slot's own are the same.
pub fn other_ids(slot: &Slot, launch: &Launch) -> Result<Option<(Slot, UserNamespace)>> {
    let first_id = launch.beside.as_ref().map_or(slot.first_id, |beside| beside.first_id);
    if first_id == slot.first_id && launch.extra_ids.inside.is_empty() {
        return Ok(None);
    }
    let namespace = Unmapped::make(slot.supervisor_id)?.map(first_id, &launch.extra_ids)?;
    Ok(Some((Slot { first_id, ..slot.clone() }, UserNamespace::Mapped(namespace))))
}

impl Shared {
    /// Puts `/dev/shm` over the sandbox's own.
    pub fn attach_shm(&self, inside: &Inside) -> Result<()> {
        let path = Path::new("/dev/shm");
        self.attach_shm_at(&inside.find(path).step_at("find", path)?)
    }

    pub fn attach_shm_at(&self, place: &OwnedFd) -> Result<()> {
        let attributes = plain() | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        mount::restrict(&self.shm, attributes, false).step("restrict the shared memory")?;
        mount::attach(&self.shm, place).step("attach the shared memory")
    }

    /// Puts volumes in memory over the directories of the machine that stand for them, in this mount namespace alone.
    ///
    /// `at` is an empty directory that only this mount namespace has.
    pub fn attach_memory(&self, launch: &Launch, at: &Path) -> Result<()> {
        let (Some(memory), Some(beside)) = (&self.memory, &launch.beside) else { return Ok(()) };
        mount::attach(memory, &directory(at)?).step("attach the volumes in memory")?;
        for (volume, name) in launch.memory_dirs.iter().zip(&beside.names) {
            let view = mount::view(&at.join(name), false).step_at("open a volume in memory", &volume.path)?;
            mount::attach(&view, &directory(&volume.path)?)
                .step_at("attach a volume in memory", &volume.path)?;
        }
        rustix::mount::unmount(at, UnmountFlags::DETACH).step("detach the other volumes in memory")
    }
}

fn directory(path: &Path) -> Result<OwnedFd> {
    openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).step_at("open", path)
}
