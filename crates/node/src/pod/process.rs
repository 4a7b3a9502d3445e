//! What a container runs, as whom, and where: as the Pod says, else as the image says. Pure.

use std::path::{Path, PathBuf};

use asb_runtime::image::Identity;
use asb_runtime::{Image, Process, Stdin};
use k8s_openapi::api::core::v1::{Container, Pod};

use super::container::Slot;
use super::env::set;
use super::expand::expand;
use super::spec::{Refusal, hostname};
use super::{groups, ids};

/// The main process of a container; `own` are the variables that the Pod sets.
pub fn process(
    pod: &Pod,
    slot: Slot,
    container: &Container,
    image: &Image,
    own: &[(String, String)],
) -> Result<Process, Refusal> {
    let identity = user(pod, slot, container, image)?;
    let directory = directory(image, &identity);
    let Identity { uid, gid, groups, home } = identity;
    let mut env = image.config.variables();
    if !env.iter().any(|(name, _)| name == "HOME") {
        set(&mut env, "HOME", home.unwrap_or_else(|| "/".to_owned()));
    }
    set(&mut env, "HOSTNAME", hostname(pod));
    if container.tty == Some(true) && !env.iter().any(|(name, _)| name == "TERM") {
        set(&mut env, "TERM", "xterm".to_owned());
    }
    own.iter().for_each(|(name, value)| set(&mut env, name, value.clone()));
    let args = container.args.clone().unwrap_or_default();
    let given = container.command.clone().filter(|command| !command.is_empty());
    let entrypoint = || image.config.entrypoint.clone();
    let argv = match given {
        Some(command) => [command, args].concat(),
        None if args.is_empty() => [entrypoint(), image.config.cmd.clone()].concat(),
        None => [entrypoint(), args].concat(),
    };
    Ok(Process {
        argv: argv.iter().map(|word| expand(word, own)).collect(),
        cwd: container.working_dir.clone().filter(|dir| !dir.is_empty()).map_or(directory, PathBuf::from),
        uid,
        gid,
        groups,
        env,
        stdin: match (container.stdin, container.stdin_once) {
            (Some(true), Some(true)) => Stdin::Once,
            (Some(true), _) => Stdin::Open,
            _ => Stdin::Empty,
        },
        terminal: container.tty == Some(true),
    })
}

/// Where the container begins. The home of the image's own user is no place for another: that one has its own.
fn directory(image: &Image, identity: &Identity) -> PathBuf {
    let directory = image.config.directory();
    let own = image.users.find(&image.config.user).ok();
    let at_home = |own: &Identity| own.home.as_deref().map(Path::new) == Some(directory.as_path());
    match own.filter(|own| own.uid != identity.uid && at_home(own)) {
        Some(_) => identity.home.as_ref().map_or_else(|| PathBuf::from("/"), PathBuf::from),
        None => directory,
    }
}

/// Who the container runs as: as the Pod says, else as the image says.
fn user(pod: &Pod, slot: Slot, container: &Container, image: &Image) -> Result<Identity, Refusal> {
    let of_pod = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let own = container.security_context.as_ref();
    let uid = own.and_then(|it| it.run_as_user).or(of_pod.and_then(|it| it.run_as_user));
    let gid = own.and_then(|it| it.run_as_group).or(of_pod.and_then(|it| it.run_as_group));
    let non_root = own.and_then(|it| it.run_as_non_root).or(of_pod.and_then(|it| it.run_as_non_root));
    let path = slot.path();
    let refuse = |message: String| Refusal::new("CreateContainerConfigError", message);
    let id = |value: i64, field: &str, is_own: bool| {
        let of = if is_own { path.as_str() } else { "spec" };
        ids::id(value, &format!("{of}.securityContext.{field}"))
    };
    let mut identity = match uid {
        Some(uid) => image.users.by_id(id(uid, "runAsUser", own.is_some_and(|it| it.run_as_user.is_some()))?),
        None => {
            let found = image.users.find(&image.config.user);
            found.map_err(|problem| refuse(format!("{path}.image: {problem}; set runAsUser")))?
        }
    };
    if let Some(gid) = gid {
        identity.gid = id(gid, "runAsGroup", own.is_some_and(|it| it.run_as_group.is_some()))?;
    }
    if non_root == Some(true) && identity.uid == 0 {
        return Err(refuse(format!(
            "{path}.securityContext.runAsNonRoot: the container would run as root; set runAsUser"
        )));
    }
    let exists = |id: u32, named: Option<i64>| id < ids::USUAL || named.is_some();
    if !exists(identity.uid, uid) || !exists(identity.gid, gid) {
        let message = format!(
            "{path}.image: its user {}:{} is not between 0 and 65535; set runAsUser and runAsGroup",
            identity.uid, identity.gid
        );
        return Err(refuse(message));
    }
    identity.groups.retain(|id| *id < ids::USUAL);
    identity.groups = groups::supplementary(pod, &identity.groups)?;
    Ok(identity)
}
