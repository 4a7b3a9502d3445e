//! Checks of volumes: one source each, and what the sources say.

use std::collections::HashSet;

use serde_json::json;

use super::super::claim;
use super::super::field::{Errors, Field};
use super::container::check_name;
use super::env::{self, Place};
use crate::names::Rule;
use crate::status::FieldError;
use asb_types::Quantity;

/// In the order in which the first of several counts.
const SOURCES: [&str; 30] = [
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "flocker",
    "downwardAPI",
    "fc",
    "flexVolume",
    "configMap",
    "azureFile",
    "vsphereVolume",
    "quobyte",
    "azureDisk",
    "storageos",
    "photonPersistentDisk",
    "portworxVolume",
    "scaleIO",
    "projected",
    "csi",
    "ephemeral",
    "image",
];
const HOST_TYPES: [&str; 8] =
    ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
const TEN_MINUTES: i64 = 600;

/// Whether a volume is a claim, which may be a block device.
pub(super) fn is_claim(volume: &Field<'_, '_>) -> bool {
    volume.get("persistentVolumeClaim").is_given() || volume.get("ephemeral").is_given()
}

pub(super) fn check(spec: &Field<'_, '_>, errors: &mut Errors) {
    let mut names = HashSet::new();
    let account = !spec.get("serviceAccountName").text().is_empty();
    for volume in spec.get("volumes").items() {
        check_source(&volume, errors);
        check_name(&volume, &mut names, errors);
        for source in volume.get("projected").get("sources").items().filter(|_| !account) {
            let token = source.get("serviceAccountToken");
            if token.is_given() {
                token.forbidden("must not be specified when serviceAccountName is not set", errors);
            }
        }
    }
}

fn check_source(volume: &Field<'_, '_>, errors: &mut Errors) {
    let mut given = SOURCES.iter().map(|name| (*name, volume.get(name))).filter(|(_, it)| it.is_given());
    let Some((name, source)) = given.next() else {
        return volume.missing("must specify a volume type", errors);
    };
    match name {
        "emptyDir" => empty_dir(&source, errors),
        "hostPath" => {
            let path = source.get("path");
            path.required(errors);
            path.no_backsteps(errors);
            source.get("type").one_of(&HOST_TYPES, errors);
        }
        "secret" => files(&source, "secretName", errors),
        "configMap" => files(&source, "name", errors),
        "persistentVolumeClaim" => drop(source.get("claimName").required(errors)),
        "downwardAPI" => {
            source.get("defaultMode").mode(errors);
            // kube-apiserver reports these under the volume's source, without the item.
            for item in source.get("items").items() {
                downward(&source, &item, errors);
            }
        }
        "projected" => projected(&source, errors),
        "ephemeral" => {
            let template = source.get("volumeClaimTemplate");
            if template.is_given() {
                claim::validate_spec(&template.get("spec"), errors);
            } else {
                template.missing("", errors);
            }
        }
        "image" => {
            source.get("reference").required(errors);
            source.get("pullPolicy").one_of(&["Always", "IfNotPresent", "Never"], errors);
        }
        _ => {}
    }
    given.for_each(|(_, other)| other.forbidden("may not specify more than 1 volume type", errors));
}

fn empty_dir(source: &Field<'_, '_>, errors: &mut Errors) {
    let limit = source.get("sizeLimit");
    if Quantity::of(limit.value).is_some_and(Quantity::is_negative) {
        limit.forbidden("SizeLimit field must be a valid resource quantity", errors);
    }
}

/// Keys of a Secret or ConfigMap as files.
fn files(source: &Field<'_, '_>, name: &str, errors: &mut Errors) {
    source.get(name).required(errors);
    source.get("defaultMode").mode(errors);
    for item in source.get("items").items() {
        key_to_path(&item, errors);
    }
}

fn key_to_path(item: &Field<'_, '_>, errors: &mut Errors) {
    item.get("key").required(errors);
    let path = item.get("path");
    path.required(errors);
    path.own_path(errors);
    item.get("mode").mode(errors);
}

fn downward(source: &Field<'_, '_>, item: &Field<'_, '_>, errors: &mut Errors) {
    let path = source.get("path");
    let path = path.with(item.get("path").value);
    path.required(errors);
    path.own_path(errors);
    let (field, resource) = (item.get("fieldRef"), item.get("resourceFieldRef"));
    match (field.is_given(), resource.is_given()) {
        (false, false) => source.missing("one of fieldRef and resourceFieldRef is required", errors),
        (true, both) => {
            env::object_field(&source.get("fieldRef").with(field.value), Place::File, errors);
            if both {
                let why = "fieldRef and resourceFieldRef can not be specified simultaneously";
                errors.push(FieldError::invalid(source.path(), &json!("resource"), why));
            }
        }
        (false, true) => {
            env::resource_field(&source.get("resourceFieldRef").with(resource.value), Place::File, errors);
        }
    }
    source.get("mode").with(item.get("mode").value).mode(errors);
}

fn projected(volume: &Field<'_, '_>, errors: &mut Errors) {
    volume.get("defaultMode").mode(errors);
    let mut paths = HashSet::new();
    for source in volume.get("sources").items() {
        let mut given = 0;
        for kind in ["secret", "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle"] {
            let part = source.get(kind);
            if !part.is_given() {
                continue;
            }
            given += 1;
            match kind {
                "secret" | "configMap" => {
                    let name = part.get("name");
                    name.required(errors);
                    name.named(Rule::Subdomain, errors);
                    part.get("items").items().for_each(|item| key_to_path(&item, errors));
                }
                "downwardAPI" => {
                    part.get("items").items().for_each(|item| downward(&part, &item, errors));
                }
                "serviceAccountToken" => token(volume, &part, errors),
                _ => drop(part.get("path").required(errors)),
            }
            for item in part.get("items").items() {
                let path = item.get("path");
                if !path.text().is_empty() && !paths.insert(path.text()) {
                    let shown = if kind == "downwardAPI" { path } else { part.get("name") };
                    volume.with(shown.value).invalid("conflicting duplicate paths", errors);
                }
            }
        }
        if given > 1 {
            source.forbidden("may not specify more than 1 volume type per source", errors);
        }
    }
}

fn token(volume: &Field<'_, '_>, token: &Field<'_, '_>, errors: &mut Errors) {
    let seconds = token.get("expirationSeconds");
    if seconds.value.as_i64().is_some_and(|it| it < TEN_MINUTES) {
        seconds.invalid("may not specify a duration less than 10 minutes", errors);
    }
    if seconds.value.as_i64().is_some_and(|it| it > 1 << 32) {
        seconds.invalid("may not specify a duration larger than 2^32 seconds", errors);
    }
    let path = volume.get("path");
    let path = path.with(token.get("path").value);
    path.required(errors);
    path.own_path(errors);
}
