//! Checks of security contexts.

use std::collections::HashSet;

use super::super::field::{Errors, Field};

const PROFILES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];

/// The security context of a Pod.
pub(super) fn pod(spec: &Field<'_, '_>, errors: &mut Errors) {
    let context = spec.get("securityContext");
    for field in ["fsGroup", "runAsUser", "runAsGroup"] {
        context.get(field).id(errors);
    }
    for group in context.get("supplementalGroups").items() {
        group.id(errors);
    }
    context.get("fsGroupChangePolicy").one_of(&["Always", "OnRootMismatch"], errors);
    context.get("supplementalGroupsPolicy").one_of(&["Merge", "Strict"], errors);
    context.get("seLinuxChangePolicy").one_of(&["MountOption", "Recursive"], errors);
    profiles(&context, errors);
    let mut names = HashSet::new();
    for sysctl in context.get("sysctls").items() {
        let name = sysctl.get("name");
        if name.required(errors) && !names.insert(name.text()) {
            name.duplicate(errors);
        }
    }
    let shared = spec.get("shareProcessNamespace");
    if shared.value == true && spec.get("hostPID").value == true {
        context
            .get("shareProcessNamespace")
            .with(shared.value)
            .invalid("ShareProcessNamespace and HostPID cannot both be enabled", errors);
    }
}

/// The security context of a container.
pub(super) fn container(context: &Field<'_, '_>, host_users: bool, errors: &mut Errors) {
    if !context.is_given() {
        return;
    }
    context.get("runAsUser").id(errors);
    context.get("runAsGroup").id(errors);
    let mount = context.get("procMount");
    mount.one_of(&["Default", "Unmasked"], errors);
    if mount.text() == "Unmasked" && host_users {
        mount.invalid("`hostUsers` must be false to use `Unmasked`", errors);
    }
    profiles(context, errors);
    if context.get("allowPrivilegeEscalation").value == false {
        if context.get("privileged").value == true {
            let why = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            context.invalid(why, errors);
        }
        if context.get("capabilities").get("add").items().any(|it| it.text() == "CAP_SYS_ADMIN") {
            let why = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            context.invalid(why, errors);
        }
    }
}

fn profiles(context: &Field<'_, '_>, errors: &mut Errors) {
    for (field, what, short) in
        [("seccompProfile", "seccompProfile", "seccomp"), ("appArmorProfile", "appArmorProfile", "AppArmor")]
    {
        let profile = context.get(field);
        if !profile.is_given() {
            continue;
        }
        let (kind, file) = (profile.get("type"), profile.get("localhostProfile"));
        if kind.text().is_empty() {
            kind.missing(&format!("type is required when {what} is set"), errors);
        } else {
            kind.one_of(&PROFILES, errors);
        }
        if kind.text() == "Localhost" {
            if file.text().is_empty() {
                file.missing(&format!("must be set when {short} type is Localhost"), errors);
            } else if field == "seccompProfile" {
                file.descending_path(errors);
            }
        } else if file.is_given() {
            file.invalid(format!("can only be set when {short} type is Localhost"), errors);
        }
    }
}
