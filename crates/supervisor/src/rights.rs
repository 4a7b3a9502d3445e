//! What a program inside may do at most: ids, capabilities, resource limits.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, LinkNameSpaceType, Uid, clear_ambient_capability_set,
    move_into_link_name_space, remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use crate::spawn::Program;
use crate::step::{Result, Step};

/// What root inside keeps, and why package managers and servers need it. All of it reaches only ids and files of the
/// sandbox's own user namespace; the network, mounts and host name belong to the machine's.
const KEPT: [CapabilitySet; 11] = [
    CapabilitySet::CHOWN,            // install files for other users
    CapabilitySet::DAC_OVERRIDE,     // root reads what users own
    CapabilitySet::FOWNER,           // ... and changes its mode
    CapabilitySet::FSETID,           // ... keeping set-group-id on directories
    CapabilitySet::KILL,             // root stops what users run
    CapabilitySet::SETGID,           // su, and servers that give up root
    CapabilitySet::SETUID,           // likewise
    CapabilitySet::SETPCAP,          // lets a program give up capabilities for good
    CapabilitySet::NET_BIND_SERVICE, // expected by servers; the port floor inside is 0 anyway
    CapabilitySet::SYS_CHROOT,       // package managers and build tools
    CapabilitySet::SETFCAP,          // packages that carry file capabilities
];

/// More capabilities than any kernel has so far.
const LAST_CAPABILITY: u64 = 63;

/// The most files a program may have open, where the machine allows it.
const OPEN_FILES: u64 = 1 << 20;

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
    let kept = KEPT.into_iter().fold(CapabilitySet::empty(), |all, one| all | one);
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
