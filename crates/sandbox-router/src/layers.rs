//! Where flags come from: the environment, then a file, then the command line. The last one that sets a flag wins.
//!
//! Every layer becomes arguments of one command line, so that one parser reads and checks all of them. Pure: the
//! environment and the file come in as values.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use asb_goflags as go;
use serde::Deserialize;

use crate::options::Flags;

/// Variables that become flags as they are.
const VARIABLES: [(&str, &str); 3] = [
    ("CLUSTER_DOMAIN", "cluster-domain"),
    ("KUBECONFIG", "kubeconfig"),
    ("TRUSTED_PROXY_CIDRS", "trusted-proxy-cidrs"),
];
/// Variables with seconds, of which one that cannot be read is ignored, as the reference does.
const SECONDS: [(&str, &str); 3] = [
    ("PROXY_TIMEOUT_SECONDS", "proxy-timeout"),
    ("WEBSOCKET_IDLE_TIMEOUT_SECONDS", "tunnel-idle-timeout"),
    ("WEBSOCKET_MAX_LIFETIME_SECONDS", "tunnel-max-lifetime"),
];
const TRACES: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];
const OTEL_METRICS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"];
/// Flags that a file may not hold.
const NOT_IN_FILES: [&str; 3] = ["config", "help", "version"];

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("--config: failed to read {}: {reason}", path.display())]
    Read { path: PathBuf, reason: String },
    #[error("--config: {} is not a YAML map of flags to single values: {reason}", path.display())]
    Yaml { path: PathBuf, reason: String },
    #[error("--config: {} sets {key:?}, which is not a flag of this program", path.display())]
    Unknown { path: PathBuf, key: String },
    #[error("--config: {}: {reason}", path.display())]
    Value { path: PathBuf, reason: String },
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Scalar {
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(String),
}

/// The arguments of all layers, the weakest first.
pub fn arguments(
    command_line: Vec<String>,
    variable: impl Fn(&str) -> Option<String>,
    read: impl Fn(&PathBuf) -> Result<String, String>,
) -> Result<Vec<String>, Error> {
    let variable = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
    let command_line: Vec<String> = command_line.into_iter().map(go::dashes).collect();
    let mut all = of_environment(&variable);
    if let Some(path) = config_file(&command_line).or_else(|| variable("SANDBOX_ROUTER_CONFIG")) {
        let path = PathBuf::from(path);
        let text = read(&path).map_err(|reason| Error::Read { path: path.clone(), reason })?;
        let of_file = of_file(&path, &text)?;
        // Alone first, so that what is wrong in it is not looked for on the command line.
        let wrong = |error: clap::Error| Error::Value { path: path.clone(), reason: first_line(&error) };
        Flags::parse_arguments(&of_file).map_err(wrong)?;
        all.extend(of_file);
    }
    all.extend(command_line);
    Ok(all)
}

fn of_environment(variable: &impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut flags = Vec::new();
    let mut flag = |name: &str, value: &str| flags.push(format!("--{name}={value}"));
    for (name, becomes) in VARIABLES {
        if let Some(value) = variable(name) {
            flag(becomes, value.trim());
        }
    }
    for (name, becomes) in SECONDS {
        if let Some(seconds) = variable(name).and_then(|value| seconds(&value)) {
            flag(becomes, &format!("{seconds}s"));
        }
    }
    let count = variable("WEBSOCKET_MAX_CONNECTIONS_PER_CLIENT").and_then(|it| it.trim().parse::<u32>().ok());
    if let Some(count) = count {
        flag("max-tunnels-per-client", &count.to_string());
    }
    for (names, becomes) in [(TRACES, "enable-tracing"), (OTEL_METRICS, "enable-otel-metrics")] {
        if names.into_iter().any(|name| variable(name).is_some()) {
            flag(becomes, "true");
        }
    }
    // A token is a stronger wish than to do without one.
    if variable("ROUTER_AUTH_TOKEN").is_some() {
        flag("authz-mode", "shared-token");
    } else if variable("ALLOW_UNAUTHENTICATED_ROUTER").is_some_and(|value| is_yes(&value)) {
        flag("authz-mode", "allow-all");
    }
    flags
}

/// Seconds with a fraction, in the notation of Go's durations.
fn seconds(text: &str) -> Option<String> {
    let seconds: f64 = text.trim().parse().ok()?;
    (seconds.is_finite() && seconds >= 0.0).then(|| seconds.to_string()).filter(|text| !text.contains('e'))
}

fn is_yes(text: &str) -> bool {
    matches!(text.trim().to_ascii_lowercase().as_str(), "1" | "true" | "t" | "yes" | "y" | "on")
}

/// What `--config` says on the command line; the last one counts.
fn config_file(arguments: &[String]) -> Option<String> {
    let at = |at: usize, argument: &String| match argument.strip_prefix("--config") {
        Some("") => arguments.get(at + 1).cloned(),
        Some(value) => value.strip_prefix('=').map(str::to_owned),
        None => None,
    };
    arguments.iter().enumerate().rev().find_map(|(index, argument)| at(index, argument))
}

fn of_file(path: &std::path::Path, text: &str) -> Result<Vec<String>, Error> {
    let path = path.to_owned();
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let values: BTreeMap<String, Scalar> = serde_saphyr::from_str(text)
        .map_err(|error| Error::Yaml { path: path.clone(), reason: error.to_string() })?;
    let command = Flags::go_command();
    let known: BTreeSet<&str> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
    let mut flags = Vec::new();
    for (key, value) in values {
        if !known.contains(key.as_str()) || NOT_IN_FILES.contains(&key.as_str()) {
            return Err(Error::Unknown { path, key });
        }
        flags.push(format!("--{key}={value}"));
    }
    Ok(flags)
}

fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

impl std::fmt::Display for Scalar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bool(value) => value.fmt(f),
            Self::Integer(value) => value.fmt(f),
            Self::Float(value) => value.fmt(f),
            Self::Text(value) => value.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(command_line: &[&str], environment: &[(&str, &str)], file: &str) -> Result<Flags, String> {
        let command_line = command_line.iter().map(|it| (*it).to_owned()).collect();
        let variable =
            |name: &str| environment.iter().find(|(it, _)| *it == name).map(|(_, value)| (*value).to_owned());
        let read = |path: &PathBuf| match path.to_str() {
            Some("file") => Ok(file.to_owned()),
            _ => Err("no such file".to_owned()),
        };
        let all = arguments(command_line, variable, read).map_err(|error| error.to_string())?;
        Flags::parse_arguments(&all).map_err(|error| error.to_string())
    }

    #[test]
    fn the_command_line_wins_over_the_file_and_the_file_over_the_environment() {
        let environment = [("PROXY_TIMEOUT_SECONDS", "1.5"), ("SANDBOX_ROUTER_CONFIG", "file")];
        let seconds = |command_line: &[&str], environment: &[(&str, &str)], file: &str| {
            flags(command_line, environment, file).unwrap().limits.proxy_timeout.as_secs_f64()
        };
        assert_eq!(seconds(&[], &[], ""), 180.0);
        assert_eq!(seconds(&[], &environment[..1], ""), 1.5);
        assert_eq!(seconds(&[], &environment, "proxy-timeout: 2s"), 2.0);
        assert_eq!(seconds(&["-proxy-timeout=3s"], &environment, "proxy-timeout: 2s"), 3.0);
        assert_eq!(seconds(&["--config", "file"], &[], "proxy-timeout: 4s"), 4.0);
        assert_eq!(
            seconds(&["--config=file"], &[("SANDBOX_ROUTER_CONFIG", "none")], "proxy-timeout: 5s"),
            5.0
        );
    }

    #[test]
    fn variables_that_cannot_be_read_are_ignored() {
        for wrong in ["soon", "-1", "", "NaN", "inf"] {
            let flags = flags(&[], &[("PROXY_TIMEOUT_SECONDS", wrong)], "").unwrap();
            assert_eq!(flags.limits.proxy_timeout.as_secs(), 180, "{wrong:?}");
        }
    }

    #[test]
    fn exporters_are_on_when_they_have_an_address_and_off_when_a_flag_says_so() {
        let on = |command_line: &[&str], environment: &[(&str, &str)]| {
            let reports = flags(command_line, environment, "").unwrap().reports;
            (reports.enable_tracing, reports.enable_otel_metrics)
        };
        assert_eq!(on(&[], &[]), (false, false));
        assert_eq!(on(&[], &[(TRACES[0], "http://c:4317")]), (true, true));
        assert_eq!(on(&[], &[(TRACES[1], "http://c:4317")]), (true, false));
        assert_eq!(on(&[], &[(OTEL_METRICS[1], "http://c:4317")]), (false, true));
        assert_eq!(on(&[], &[(TRACES[0], "")]), (false, false));
        assert_eq!(on(&["--enable-tracing=false"], &[(TRACES[0], "http://c:4317")]), (false, true));
    }

    #[test]
    fn a_file_holds_flags_with_single_values() {
        let with = |file: &str| flags(&["--config=file"], &[], file);
        let read = with("access-log: false\nupstream-max-retries: 0\nhttp-bind-address: \":1\"\n").unwrap();
        assert!(!read.reports.access_log);
        assert_eq!((read.limits.upstream_max_retries, &*read.listeners.http_bind_address), (0, ":1"));
        for (file, names) in [
            ("no-such-flag: 1", "\"no-such-flag\""),
            ("config: other", "\"config\""),
            ("proxy-timeout: [1s]", "single values"),
            ("proxy-timeout: {a: 1}", "single values"),
            ("- a", "single values"),
            ("proxy-timeout: soon", "--proxy-timeout"),
        ] {
            let error = with(file).unwrap_err();
            assert!(error.starts_with("--config: ") && error.contains(names), "{file}: {error}");
        }
        let missing = flags(&["--config=missing"], &[], "").unwrap_err();
        assert!(missing.contains("failed to read missing"), "{missing}");
    }

    #[test]
    fn names_of_the_python_router_count_and_its_token_wins_over_having_none() {
        let mode =
            |environment: &[(&str, &str)]| flags(&[], environment, "").unwrap().authorization.authz_mode;
        assert_eq!(mode(&[("ALLOW_UNAUTHENTICATED_ROUTER", "Yes")]), "allow-all");
        assert!(mode(&[("ALLOW_UNAUTHENTICATED_ROUTER", "0")]).is_empty());
        assert_eq!(
            mode(&[("ALLOW_UNAUTHENTICATED_ROUTER", "1"), ("ROUTER_AUTH_TOKEN", "secret")]),
            "shared-token"
        );
        let said =
            flags(&["--authz-mode=tokenreview"], &[("ALLOW_UNAUTHENTICATED_ROUTER", "1")], "").unwrap();
        assert_eq!(said.authorization.authz_mode, "tokenreview", "modes of two layers are not added up");
    }
}
