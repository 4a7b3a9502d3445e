//! Checks of probes and hooks: what they call, and how often.

use super::super::field::{Errors, Field};
use crate::status::FieldError;

const IN_PROBES: [&str; 4] = ["exec", "httpGet", "tcpSocket", "grpc"];
const IN_HOOKS: [&str; 4] = ["exec", "httpGet", "tcpSocket", "sleep"];
const HEADER: &str = "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Liveness,
    Readiness,
    Startup,
}

pub(super) fn check(probe: &Field<'_, '_>, kind: Kind, errors: &mut Errors) {
    if !probe.is_given() {
        return;
    }
    handler(probe, &IN_PROBES, None, errors);
    for field in
        ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"]
    {
        probe.get(field).not_negative(errors);
    }
    let grace = probe.get("terminationGracePeriodSeconds");
    if kind == Kind::Readiness && grace.is_given() {
        grace.invalid("must not be set for readinessProbes", errors);
    } else if grace.value.as_i64().is_some_and(|seconds| seconds <= 0) {
        grace.invalid("must be greater than 0", errors);
    }
    let successes = probe.get("successThreshold");
    if kind != Kind::Readiness && successes.value != 1 {
        successes.invalid("must be 1", errors);
    }
}

pub(super) fn lifecycle(
    lifecycle: &Field<'_, '_>,
    os: &Field<'_, '_>,
    grace: Option<i64>,
    errors: &mut Errors,
) {
    for name in ["postStart", "preStop"] {
        let hook = lifecycle.get(name);
        if hook.is_given() {
            handler(&hook, &IN_HOOKS, grace, errors);
        }
    }
    let signal = lifecycle.get("stopSignal");
    if signal.is_given() && !os.is_given() {
        signal.forbidden("may not be set for containers with empty `spec.os.name`", errors);
    }
}

/// Exactly one of the things that can be called.
fn handler(parent: &Field<'_, '_>, known: &[&str], grace: Option<i64>, errors: &mut Errors) {
    let mut given = known.iter().map(|name| (*name, parent.get(name))).filter(|(_, it)| it.is_given());
    let Some((name, first)) = given.next() else {
        return parent.missing("must specify a handler type", errors);
    };
    match name {
        "exec" => {
            let command = first.get("command");
            if command.items().next().is_none() {
                command.missing("", errors);
            }
        }
        "httpGet" => request(&first, errors),
        "sleep" => sleep(&first, grace, errors),
        _ => first.get("port").port(errors),
    }
    given.for_each(|(_, other)| other.forbidden("may not specify more than 1 handler type", errors));
}

fn request(request: &Field<'_, '_>, errors: &mut Errors) {
    request.get("path").required(errors);
    request.get("port").port(errors);
    request.get("scheme").one_of(&["HTTP", "HTTPS"], errors);
    let headers = request.get("httpHeaders");
    for header in headers.items() {
        let name = header.get("name");
        let valid = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        if name.text().is_empty() || !name.text().bytes().all(valid) {
            errors.push(FieldError::invalid(headers.path(), name.value, HEADER));
        }
    }
}

fn sleep(sleep: &Field<'_, '_>, grace: Option<i64>, errors: &mut Errors) {
    let seconds = sleep.get("seconds").value.as_i64().unwrap_or(0);
    if let Some(grace) = grace.filter(|grace| !(0..=*grace).contains(&seconds)) {
        let why = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
        errors.push(FieldError::invalid(sleep.path(), &seconds.into(), why));
    }
}
