//! Checks of limits and requests.

use std::collections::HashSet;

use serde_json::json;

use super::super::field::{Errors, Field};
use crate::names;
use crate::status::FieldError;
use asb_types::Quantity;

const STANDARD: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
/// Resources that quotas know, and containers cannot ask for.
const OF_QUOTAS: [&str; 5] = ["configmaps", "persistentvolumeclaims", "pods", "secrets", "storage"];
const HUGE_PAGES: &str = "hugepages-";

pub(super) fn check(resources: &Field<'_, '_>, errors: &mut Errors) {
    let (limits, requests) = (resources.get("limits"), resources.get("requests"));
    for (name, quantity) in limits.entries().chain(requests.entries()) {
        check_name(name, &quantity, errors);
        check_quantity(name, &quantity, errors);
    }
    for (name, request) in requests.entries() {
        let limit = limits.get(name);
        match (Quantity::of(request.value), Quantity::of(limit.value)) {
            (Some(asked), Some(most)) if asked != most && !may_overcommit(name) => {
                let why = format!("must be equal to {name} limit of {}", shown(&limit));
                errors.push(FieldError::invalid(requests.path(), &json!(shown(&request)), why));
            }
            (Some(asked), Some(most)) if asked > most => {
                let why = format!("must be less than or equal to {name} limit of {}", shown(&limit));
                errors.push(FieldError::invalid(requests.path(), &json!(shown(&request)), why));
            }
            (Some(_), None) if !may_overcommit(name) => {
                limits.missing("Limit must be set for non overcommitable resources", errors);
            }
            _ => {}
        }
    }
    let asked: HashSet<&str> = limits.entries().chain(requests.entries()).map(|(name, _)| name).collect();
    if asked.iter().any(|name| name.starts_with(HUGE_PAGES))
        && !asked.contains("cpu")
        && !asked.contains("memory")
    {
        resources.forbidden("HugePages require cpu or memory", errors);
    }
}

/// Checks the quantity of a resource, which may be whole only for what is counted in pieces.
pub(in crate::registry) fn check_quantity(name: &str, quantity: &Field<'_, '_>, errors: &mut Errors) {
    let Some(read) = Quantity::of(quantity.value) else { return };
    if read.is_negative() {
        quantity.with(&json!(shown(quantity))).invalid("must be greater than or equal to 0", errors);
    }
    if name.contains('/') && !read.is_whole() {
        quantity.with(&json!(shown(quantity))).invalid("must be an integer", errors);
    }
}

fn check_name(name: &str, quantity: &Field<'_, '_>, errors: &mut Errors) {
    let own_prefix = name.split_once('/').is_some_and(|(prefix, _)| prefix.contains("kubernetes.io"));
    let known = STANDARD.contains(&name) || name.starts_with(HUGE_PAGES);
    let whys: &[&str] = match name.contains('/') {
        _ if names::label_key(name).is_some() => {
            let wrong = names::label_key(name).unwrap_or_default();
            return quantity.with(&json!(name)).invalid(wrong, errors);
        }
        false if OF_QUOTAS.contains(&name) => &["must be a standard resource for containers"],
        false if !known => &[
            "must be a standard resource type or fully qualified",
            "must be a standard resource for containers",
        ],
        true if !own_prefix && name.starts_with("requests.") => {
            &["doesn't follow extended resource name standard"]
        }
        _ => &[],
    };
    whys.iter().for_each(|why| quantity.with(&json!(name)).invalid(why, errors));
}

/// Whether less may be asked for than is the limit.
fn may_overcommit(name: &str) -> bool {
    !name.contains('/') && !name.starts_with(HUGE_PAGES)
}

/// The quantity as text, also when it was given as a number.
fn shown(quantity: &Field<'_, '_>) -> String {
    quantity.value.as_str().map_or_else(|| quantity.value.to_string(), str::to_owned)
}
