//! What a program inside may do at most: ids, capabilities, resource limits.

use std::os::fd::{AsFd, OwnedFd};

use asb_supervisor::confine::{Capabilities, OPEN_FILES};
use asb_supervisor::launch::{Launch, Slot};
use asb_supervisor::powers::Powers;
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, LinkNameSpaceType, Uid, clear_ambient_capability_set,
    move_into_link_name_space, remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use crate::mount::last_errno;
use crate::own::Own;
use crate::spawn::Program;
use crate::step::{Result, Step};

/// More capabilities than any kernel has so far.
const LAST_CAPABILITY: u64 = 63;

/// What bounds every program inside, besides its user.
#[derive(Clone, Copy)]
pub struct Bounds {
    pub powers: Powers,
    /// What root inside keeps.
    pub capabilities: Capabilities,
    /// Whether that may be more than any other sandbox has.
    pub privileged: bool,
    /// The most processes of one user.
    pub processes: Option<u64>,
}

impl Bounds {
    pub fn of(launch: &Launch, powers: Powers) -> Self {
        Self {
            powers,
            capabilities: launch.capabilities,
            privileged: launch.privileged,
            processes: launch.user_processes,
        }
    }
}

/// Turns the supervisor, so far root, into an id that owns nothing on the machine; the only id stays what it is.
///
/// All that it starts can get no new privileges either, unless it is privileged: there a program gets those of root inside.
pub fn give_up(slot: &Slot, privileged: bool) -> Result<()> {
    set_groups(slot.powers, &[]).step("leave all groups")?;
    let (uid, gid) = (Uid::from_raw(slot.supervisor_id), Gid::from_raw(slot.supervisor_id));
    set_thread_res_gid(gid, gid, gid).step("take the supervisor's group")?;
    set_thread_res_uid(uid, uid, uid).step("take the supervisor's id")?;
    drop_capabilities()?;
    if !privileged {
        set_no_new_privs(true).step("refuse new privileges")?;
    }
    set_dumpable_behavior(DumpableBehavior::NotDumpable).step("forbid being traced")
}

/// Keys that whoever started the engine holds are found by all that comes from it, unless a filter keeps them from asking.
pub fn leave_keyring() -> std::result::Result<(), Errno> {
    let unnamed = std::ptr::null::<libc::c_char>();
    // SAFETY: without a name the kernel reads no memory.
    let result = unsafe { libc::syscall(libc::SYS_keyctl, libc::KEYCTL_JOIN_SESSION_KEYRING, unnamed) };
    if result >= 0 {
        return Ok(());
    }
    match last_errno() {
        Errno::NOSYS => Ok(()), // a kernel without keys
        errno => Err(errno),
    }
}

/// Enters the user namespace of the programs inside, where this process has every capability, and the namespaces of a privileged
/// sandbox.
pub fn enter(namespace: &OwnedFd, own: Option<&Own>) -> std::result::Result<(), Errno> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::User))?;
    own.map_or(Ok(()), Own::enter)
}

/// Turns a child of the supervisor, once it has entered, into the program's user, with what that may do and no more.
pub fn become_user(bounds: Bounds, program: &Program) -> std::result::Result<(), Errno> {
    let kept = CapabilitySet::from_bits_retain(bounds.capabilities.bits(bounds.privileged));
    bound(kept)?;
    let groups: Vec<_> = program.groups.iter().map(|id| Gid::from_raw(*id)).collect();
    set_groups(bounds.powers, &groups)?;
    let (user, group) = (Uid::from_raw(program.uid), Gid::from_raw(program.gid));
    set_thread_res_gid(group, group, group)?;
    set_thread_res_uid(user, user, user)?;
    clear_ambient_capability_set()?;
    let held = if program.uid == 0 { kept } else { CapabilitySet::empty() };
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: held, permitted: held, inheritable: none })?;
    // A change of ids sets it to what the machine has for set-user-id programs. `execve` sets it anew.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
}

/// Gives up every capability for good, for this process and for all that it will start. It stays root, and so the owner of
/// the user namespace that a runtime has made: in there it may do what it likes, and so may the runtime.
///
/// What a privileged sandbox starts may get the privileges of root inside.
pub fn keep_nothing_but_ids(privileged: bool) -> Result<()> {
    bound(CapabilitySet::empty()).step("bound the capabilities of children")?;
    clear_ambient_capability_set().step("pass on no capability")?;
    drop_capabilities()?;
    if privileged {
        return Ok(());
    }
    set_no_new_privs(true).step("refuse new privileges")
}

/// Nobody from here on can ever get another capability than these.
fn bound(kept: CapabilitySet) -> std::result::Result<(), Errno> {
    for number in 0..=LAST_CAPABILITY {
        let one = CapabilitySet::from_bits_retain(1 << number);
        if kept.contains(one) {
            continue;
        }
        match remove_capability_from_bounding_set(one) {
            Ok(()) => {}
            Err(Errno::INVAL) => break, // past the last one of this kernel
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

pub fn drop_capabilities() -> Result<()> {
    let none = CapabilitySet::empty();
    let nothing = CapabilitySets { effective: none, permitted: none, inheritable: none };
    set_capabilities(None, nothing).step("give up every capability")
}

/// Where there is one id, the kernel lets nobody change groups: those of the user stay.
fn set_groups(powers: Powers, groups: &[Gid]) -> std::result::Result<(), Errno> {
    match set_thread_groups(groups) {
        Err(Errno::PERM) if powers == Powers::One && groups.is_empty() => Ok(()),
        other => other,
    }
}

/// Limits of the kind every process has. Never above what the supervisor was given itself.
pub fn limit_resources(processes: Option<u64>) -> std::result::Result<(), Errno> {
    let files = getrlimit(Resource::Nofile).maximum.map_or(OPEN_FILES, |maximum| maximum.min(OPEN_FILES));
    setrlimit(Resource::Nofile, Rlimit { current: Some(files), maximum: Some(files) })?;
    if let Some(asked) = processes {
        let most = getrlimit(Resource::Nproc).maximum.map_or(asked, |maximum| maximum.min(asked));
        setrlimit(Resource::Nproc, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
}
