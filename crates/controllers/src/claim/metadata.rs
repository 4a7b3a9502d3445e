//! Which labels and annotations a claim may add to its Pod, and how they meet those of the template.

use std::collections::BTreeMap;

use asb_types::{Claim, TemplateMetadata, key};

use super::problem::Problem;

/// Annotations of these domains are Kubernetes' and ours.
const RESERVED_DOMAINS: [&str; 3] = ["kubernetes.io", "k8s.io", "agents.x-k8s.io"];
const LONGEST_PREFIX: usize = 253;
const LONGEST_NAME: usize = 63;

/// Checks what a claim wants to add. Labels select Pods, so only domains that were opened for users may
/// label; `allowed` holds them, in lower case.
pub fn validate(claim: &Claim, allowed: &[String]) -> Result<(), Problem> {
    let Some(wanted) = &claim.spec.additional_pod_metadata else { return Ok(()) };
    let labels = wanted.labels.iter().map(|(key, value)| check_label(key, value, allowed));
    let annotations = wanted.annotations.keys().map(|key| check_annotation(key));
    labels.chain(annotations).collect::<Result<(), String>>().map_err(Problem::InvalidMetadata)
}

fn check_label(key: &str, value: &str, allowed: &[String]) -> Result<(), String> {
    if key.eq_ignore_ascii_case("app") && value.eq_ignore_ascii_case("sandbox-router") {
        return Err("label \"app=sandbox-router\" is reserved for the router".to_owned());
    }
    check_key(key).map_err(|why| format!("label key {key:?} {why}"))?;
    let Some((domain, _)) = key.split_once('/') else {
        return Err(format!("label key {key:?} needs a domain prefix, one of: {}", allowed.join(", ")));
    };
    if !allowed.iter().any(|of| is_in_domain(domain, of)) {
        return Err(format!("label domain {domain:?} is not allowed; allowed are: {}", allowed.join(", ")));
    }
    if !value.is_empty() && !is_name(value) {
        return Err(format!(
            "value {value:?} of label {key:?} is not a label value of at most 63 characters"
        ));
    }
    Ok(())
}

fn check_annotation(key: &str) -> Result<(), String> {
    check_key(key).map_err(|why| format!("annotation key {key:?} {why}"))?;
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let reserved = RESERVED_DOMAINS.iter().any(|of| is_in_domain(domain, of));
    match reserved && key != key::SAFE_TO_EVICT {
        true => Err(format!("annotation domain {domain:?} is reserved")),
        false => Ok(()),
    }
}

fn check_key(key: &str) -> Result<(), &'static str> {
    let (prefix, name) = key.rsplit_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    match (prefix.is_none_or(is_subdomain), is_name(name)) {
        (true, true) => Ok(()),
        _ => Err("is not a qualified name"),
    }
}

fn is_in_domain(domain: &str, of: &str) -> bool {
    let domain = domain.to_ascii_lowercase();
    domain == of || domain.strip_suffix(of).is_some_and(|rest| rest.ends_with('.'))
}

fn is_name(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= LONGEST_NAME
        && bytes.iter().all(|byte| inner(*byte))
        && ends(bytes.first())
        && ends(bytes.last())
}

fn is_subdomain(text: &str) -> bool {
    let label = |label: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !label.is_empty() && label.bytes().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    text.len() <= LONGEST_PREFIX && text.split('.').all(label)
}

/// Adds what the claim wants. What is there already may be repeated, but not changed.
pub fn add(claim: &Claim, metadata: &mut TemplateMetadata) -> Result<(), Problem> {
    let Some(wanted) = &claim.spec.additional_pod_metadata else { return Ok(()) };
    merge("label", &mut metadata.labels, &wanted.labels)?;
    merge("annotation", &mut metadata.annotations, &wanted.annotations)
}

fn merge(
    what: &str,
    found: &mut BTreeMap<String, String>,
    wanted: &BTreeMap<String, String>,
) -> Result<(), Problem> {
    for (key, value) in wanted {
        match found.get(key) {
            Some(other) if other != value => {
                return Err(Problem::Mistake(format!(
                    "metadata override conflict: {what} {key:?} is {other:?} in the template and {value:?} in \
                     spec.additionalPodMetadata; remove one of them"
                )));
            }
            _ => found.insert(key.clone(), value.clone()),
        };
    }
    Ok(())
}
