//! What a program inside may do at most: ids, capabilities, resource limits.

use std::os::fd::OwnedFd;

use asb_supervisor::confine::{CAPABILITIES, OPEN_FILES};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, LinkNameSpaceType, Uid, clear_ambient_capability_set,
    move_into_link_name_space, remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use crate::spawn::Program;
use crate::step::{Result, Step};

/// More capabilities than any kernel has so far.
const LAST_CAPABILITY: u64 = 63;

/// Turns the supervisor, so far root of the machine, into an id that owns nothing there.
pub fn give_up(id: u32) -> Result<()> {
    set_thread_groups(&[]).step("leave all groups")?;
    let (uid, gid) = (Uid::from_raw(id), Gid::from_raw(id));
    set_thread_res_gid(gid, gid, gid).step("take the supervisor's group")?;
    // Also gives up every capability.
    set_thread_res_uid(uid, uid, uid).step("take the supervisor's id")?;
    set_no_new_privs(true).step("refuse new privileges")?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).step("forbid being traced")
}

/// Turns a child of the supervisor into the program's user inside, with what that may do and no more.
pub fn become_user(namespace: &OwnedFd, program: &Program) -> std::result::Result<(), Errno> {
    move_into_link_name_space(std::os::fd::AsFd::as_fd(namespace), Some(LinkNameSpaceType::User))?;
    let bits = CAPABILITIES.iter().fold(0, |all, (_, number)| all | 1 << number);
    let kept = CapabilitySet::from_bits_retain(bits);
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
    let groups: Vec<_> = program.groups.iter().map(|id| Gid::from_raw(*id)).collect();
    set_thread_groups(&groups)?;
    let (user, group) = (Uid::from_raw(program.uid), Gid::from_raw(program.gid));
    set_thread_res_gid(group, group, group)?;
    set_thread_res_uid(user, user, user)?;
    clear_ambient_capability_set()?;
    let held = if program.uid == 0 { kept } else { CapabilitySet::empty() };
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: held, permitted: held, inheritable: none })
}

/// Limits of the kind every process has. Never above what the supervisor was given itself.
pub fn limit_resources() -> std::result::Result<(), Errno> {
    let files = getrlimit(Resource::Nofile).maximum.map_or(OPEN_FILES, |maximum| maximum.min(OPEN_FILES));
    setrlimit(Resource::Nofile, Rlimit { current: Some(files), maximum: Some(files) })?;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
}
