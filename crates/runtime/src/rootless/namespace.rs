//! The namespace itself: entered again, or made. For a program that has one thread so far.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, WaitOptions, waitpid};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use super::ids::{Map, Maps};
use super::{Lack, Member};
use crate::process::Process;

const OWN: &str = "/proc/self/ns/user";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "this user may not make user namespaces; as root, see `sysctl user.max_user_namespaces \
         kernel.unprivileged_userns_clone kernel.apparmor_restrict_unprivileged_userns`"
    )]
    Refused(#[source] io::Error),
    #[error("only a program with one thread can enter a user namespace")]
    Threads,
    #[error("failed to {step}")]
    Step {
        step: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("{program} failed: {said}")]
    Map { program: String, said: String },
}

fn failed(step: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Step { step, source }
}

/// Becomes root of a user namespace: that of `engine`, or of the first of `members` that lives, or else of a new one
/// with the ids of `maps`.
pub fn enter(engine: Option<u32>, members: &[Member], maps: Result<Maps, Lack>) -> Result<(), Error> {
    if std::fs::read_dir("/proc/self/task").map_err(failed("count threads"))?.count() != 1 {
        return Err(Error::Threads);
    }
    let engine = engine.and_then(|pid| i32::try_from(pid).ok()).and_then(|pid| namespace_of(pid).ok());
    let members = members.iter().filter_map(|Member(identity)| {
        let namespace = namespace_of(identity.pid).ok()?;
        // Looked at after opening: if the pid is another process's by now, so is the namespace.
        Process::find(identity).ok()?.map(|_| namespace)
    });
    for namespace in engine.into_iter().chain(members) {
        if is_another(&namespace).map_err(failed("look at a user namespace"))? {
            let entered = move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::User));
            return entered
                .map_err(|errno| failed("enter the user namespace of what runs already")(errno.into()));
        }
    }
    make(maps)
}

fn namespace_of(pid: i32) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/{pid}/ns/user");
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

fn is_another(namespace: &OwnedFd) -> io::Result<bool> {
    let (theirs, own) = (rustix::fs::fstat(namespace)?, rustix::fs::stat(OWN)?);
    Ok((theirs.st_dev, theirs.st_ino) != (own.st_dev, own.st_ino))
}

fn make(maps: Result<Maps, Lack>) -> Result<(), Error> {
    match maps {
        Ok(maps) => make_with(&maps),
        Err(lack) => {
            tracing::info!(%lack, "sandboxes have one user id");
            make_with_one()
        }
    }
}

/// A namespace with the one id that needs nobody's help.
fn make_with_one() -> Result<(), Error> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    unshare()?;
    let write = |file: &str, text: String| std::fs::write(Path::new("/proc/self").join(file), text);
    // Groups cannot be changed any more: the kernel wants it so, for a group can also take rights away.
    write("setgroups", "deny".to_owned()).map_err(failed("give up changing groups"))?;
    write("uid_map", format!("0 {user} 1\n")).map_err(failed("map the user's id"))?;
    write("gid_map", format!("0 {group} 1\n")).map_err(failed("map the group's id"))
}

/// A namespace whose ids a process outside gives it.
fn make_with(maps: &Maps) -> Result<(), Error> {
    let (mut made, tell_made) = io::pipe().map_err(failed("make a pipe"))?;
    let (mut mapped, mut tell_mapped) = io::pipe().map_err(failed("make a pipe"))?;
    let target = std::process::id();
    let helper = match fork().map_err(failed("fork"))? {
        Some(helper) => helper,
        None => {
            drop((tell_made, mapped));
            let said = match made.read_exact(&mut [0]) {
                Ok(()) => map(&maps.uid, target).and_then(|()| map(&maps.gid, target)),
                // There is no namespace after all.
                Err(_) => Ok(()),
            };
            let _ = tell_mapped.write_all(said.err().unwrap_or_default().as_bytes());
            drop(tell_mapped);
            exit()
        }
    };
    drop((made, tell_mapped));
    let unshared = unshare().and_then(|()| (&tell_made).write_all(&[0]).map_err(failed("reach a helper")));
    drop(tell_made);
    let mut said = String::new();
    let heard = mapped.read_to_string(&mut said).map_err(failed("hear from a helper"));
    waitpid(Some(helper), WaitOptions::empty()).map_err(|errno| failed("end a helper")(errno.into()))?;
    unshared.and(heard)?;
    match said.split_once(": ") {
        None => Ok(()),
        Some((program, said)) => Err(Error::Map { program: program.to_owned(), said: said.to_owned() }),
    }
}

/// Lets the program that may do so write a map; or says what it said, after its name.
fn map(map: &Map, target: u32) -> Result<(), String> {
    let name = map.program.display();
    let run = Command::new(&map.program).arg(target.to_string()).args(map.arguments()).output();
    match run {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("{name}: {error}")),
    }
}

#[allow(unsafe_code)]
fn unshare() -> Result<(), Error> {
    // SAFETY: the descriptor table is not among what is unshared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER) }
        .map_err(|errno| Error::Refused(errno.into()))
}

/// `None` in the child.
#[allow(unsafe_code)]
fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: that there is one thread was looked at first; so the child may do whatever the parent could.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(Pid::from_raw(pid)),
    }
}

/// Ends the child without running anything that the parent also would.
#[allow(unsafe_code)]
fn exit() -> ! {
    // SAFETY: has no conditions; the process is gone afterwards.
    unsafe { libc::_exit(0) }
}
