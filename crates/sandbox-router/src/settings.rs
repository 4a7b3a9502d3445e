//! What the flags amount to, once they are checked. Pure: nothing is read or opened here.

use std::path::PathBuf;
use std::time::Duration;

use asb_goflags::Address;

use crate::authorization::{self, Authorization};
use crate::options::{AddressingFlags, Flags, LimitFlags, ListenerFlags, ReportFlags};

/// What the HTTP library needs to read a request at all.
const LEAST_HEADER_BYTES: usize = 8192;

/// A flag whose value cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid value for --{flag}: {reason}")]
pub struct Problem {
    pub flag: &'static str,
    pub reason: String,
}

/// All that the process is started with.
#[derive(Debug, Clone)]
pub struct Settings {
    pub kubeconfig: Option<PathBuf>,
    pub listeners: Listeners,
    pub authorization: Authorization,
    pub addressing: Addressing,
    pub limits: Limits,
    pub access_log: bool,
    pub tracing: bool,
    pub otel_metrics: bool,
    pub log: Log,
    /// Flags that are set and have no effect.
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone)]
pub struct Listeners {
    pub http: Option<Address>,
    pub https: Option<Https>,
    pub metrics: Option<Address>,
    pub probes: Option<Address>,
    pub shutdown_delay: Duration,
    pub shutdown_timeout: Duration,
}

#[derive(Debug, Clone)]
pub struct Https {
    pub address: Address,
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub clients: Clients,
}

/// What is asked of the certificates of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Clients {
    Unasked,
    /// A certificate is checked if there is one.
    Optional(PathBuf),
    Required(PathBuf),
}

#[derive(Debug, Clone)]
pub struct Addressing {
    pub path_prefix: Option<String>,
    pub host_domain: Option<String>,
    pub allow_loopback_pod_ip: bool,
    pub cluster_domain: String,
    /// `None`: sandboxes of all namespaces.
    pub namespace: Option<String>,
}

#[derive(Debug, Clone)]
pub struct Limits {
    pub proxy_timeout: Duration,
    /// `None`: no limit.
    pub request_body_bytes: Option<u64>,
    pub retries: Retries,
    pub connections: usize,
    pub header_bytes: usize,
    pub keep_alive: Duration,
    pub idle_timeout: Duration,
    pub tunnel_idle_timeout: Duration,
    // From here on `None` is no limit.
    pub tunnel_max_lifetime: Option<Duration>,
    pub connections_per_address: Option<u32>,
    pub refusals_per_address: Option<u32>,
    pub requests_per_client: Option<u32>,
    pub requests_per_sandbox: Option<u32>,
    pub tunnels_per_client: Option<u32>,
    pub tunnels_per_sandbox: Option<u32>,
    pub rate_per_client: Option<u32>,
    pub rate_per_sandbox: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retries {
    pub count: u32,
    pub initial_delay: Duration,
    pub max_delay: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    pub json: bool,
    pub level: tracing::Level,
}

impl Default for Retries {
    fn default() -> Self {
        // Finer than the reference's 200 ms: most sandboxes listen within a few.
        let (initial_delay, max_delay) = (Duration::from_millis(20), Duration::from_millis(800));
        Self { count: 6, initial_delay, max_delay }
    }
}

impl Flags {
    /// Checks every flag; the first that cannot be used is the answer. `environment_token`: ROUTER_AUTH_TOKEN is set.
    pub fn settings(self, environment_token: bool) -> Result<Settings, Problem> {
        let warnings = without_effect(&self);
        Ok(Settings {
            listeners: listeners(&self.listeners)?,
            authorization: authorization::check(&self.authorization, environment_token)?,
            addressing: addressing(self.addressing)?,
            limits: limits(&self.limits)?,
            access_log: self.reports.access_log,
            tracing: self.reports.enable_tracing,
            otel_metrics: self.reports.enable_otel_metrics,
            log: log(&self.reports)?,
            kubeconfig: self.kubeconfig,
            warnings,
        })
    }
}

fn listeners(flags: &ListenerFlags) -> Result<Listeners, Problem> {
    let listeners = Listeners {
        http: address("http-bind-address", &flags.http_bind_address)?,
        https: https(flags)?,
        metrics: address("metrics-bind-address", &flags.metrics_bind_address)?,
        probes: address("health-probe-bind-address", &flags.health_probe_bind_address)?,
        shutdown_delay: flags.shutdown_delay,
        shutdown_timeout: flags.shutdown_timeout,
    };
    if listeners.http.is_none() && listeners.https.is_none() {
        return Err(problem("http-bind-address", "at least one of it and --https-bind-address must be set"));
    }
    Ok(listeners)
}

fn https(flags: &ListenerFlags) -> Result<Option<Https>, Problem> {
    let clients = clients(flags)?;
    let Some(address) = address("https-bind-address", &flags.https_bind_address)? else {
        return match clients {
            Clients::Unasked => Ok(None),
            _ => Err(problem("mtls-mode", "needs --https-bind-address")),
        };
    };
    let file = |flag, file: &Option<PathBuf>| {
        given(file).ok_or_else(|| problem(flag, "is needed by --https-bind-address"))
    };
    let certificate = file("tls-cert-file", &flags.tls_cert_file)?;
    let key = file("tls-key-file", &flags.tls_key_file)?;
    Ok(Some(Https { address, certificate, key, clients }))
}

fn clients(flags: &ListenerFlags) -> Result<Clients, Problem> {
    let authorities = || {
        given(&flags.tls_client_ca_file)
            .ok_or_else(|| problem("tls-client-ca-file", "is needed by --mtls-mode"))
    };
    match flags.mtls_mode.as_str() {
        "off" if given(&flags.tls_client_ca_file).is_some() => {
            Err(problem("mtls-mode", "is off, so --tls-client-ca-file would check nothing"))
        }
        "off" => Ok(Clients::Unasked),
        "optional" => Ok(Clients::Optional(authorities()?)),
        "required" => Ok(Clients::Required(authorities()?)),
        other => Err(problem("mtls-mode", format!("{other:?} is not off, optional or required"))),
    }
}

fn addressing(flags: AddressingFlags) -> Result<Addressing, Problem> {
    let prefix = flags.path_routing_prefix;
    let wrong = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '?' | '#' | '%');
    if !prefix.is_empty() && (!prefix.starts_with('/') || prefix.ends_with('/') || prefix.contains(wrong)) {
        let reason = "must start with / and not end with it, without spaces, control characters, ?, # and %";
        return Err(problem("path-routing-prefix", reason));
    }
    let domain = flags.host_routing_domain.to_ascii_lowercase();
    if !domain.is_empty() && !domain.split('.').all(is_label) {
        return Err(problem("host-routing-domain", "is not a domain name such as sandboxes.example.com"));
    }
    if flags.cluster_domain.is_empty() {
        return Err(problem("cluster-domain", "must not be empty"));
    }
    if !flags.cache_namespace.is_empty() && !is_label(&flags.cache_namespace) {
        return Err(problem("cache-namespace", "is not the name of a namespace"));
    }
    let text = |text: String| (!text.is_empty()).then_some(text);
    Ok(Addressing {
        path_prefix: text(prefix),
        host_domain: text(domain),
        allow_loopback_pod_ip: flags.allow_loopback_pod_ip,
        cluster_domain: flags.cluster_domain,
        namespace: text(flags.cache_namespace),
    })
}

fn limits(flags: &LimitFlags) -> Result<Limits, Problem> {
    if flags.proxy_timeout.is_zero() {
        return Err(problem("proxy-timeout", "must be greater than 0"));
    }
    if flags.response_header_timeout.is_some_and(|timeout| timeout.is_zero()) {
        return Err(problem("response-header-timeout", "must be greater than 0"));
    }
    let number = |flag, number: i64| u64::try_from(number).map_err(|_| problem(flag, "must not be negative"));
    let connections = usize::try_from(flags.max_connections).ok().filter(|count| *count > 0);
    let count = |flag, given: i64| match u32::try_from(given) {
        Ok(0) => Ok(None),
        Ok(count) => Ok(Some(count)),
        Err(_) => Err(problem(flag, "must be between 0, for no limit, and 4294967295")),
    };
    let header_bytes =
        usize::try_from(flags.max_header_bytes).ok().filter(|bytes| *bytes >= LEAST_HEADER_BYTES);
    let least = format!("must be {LEAST_HEADER_BYTES} or more");
    let retries = number("upstream-max-retries", flags.upstream_max_retries)?;
    let defaults = Retries::default();
    let or = |delay: Duration, default| if delay.is_zero() { default } else { delay };
    let some = |duration: Duration| (!duration.is_zero()).then_some(duration);
    Ok(Limits {
        proxy_timeout: flags.proxy_timeout,
        request_body_bytes: Some(number("max-request-body-bytes", flags.max_request_body_bytes)?)
            .filter(|bytes| *bytes > 0),
        retries: Retries {
            count: u32::try_from(retries).unwrap_or(u32::MAX),
            initial_delay: or(flags.upstream_retry_initial_delay, defaults.initial_delay),
            max_delay: or(flags.upstream_retry_max_delay, defaults.max_delay),
        },
        connections: connections.ok_or_else(|| problem("max-connections", "must be greater than 0"))?,
        header_bytes: header_bytes.ok_or_else(|| problem("max-header-bytes", least))?,
        keep_alive: some(flags.keep_alive_timeout)
            .ok_or_else(|| problem("keep-alive-timeout", "must be greater than 0"))?,
        idle_timeout: some(flags.idle_timeout)
            .ok_or_else(|| problem("idle-timeout", "must be greater than 0"))?,
        tunnel_idle_timeout: some(flags.tunnel_idle_timeout).unwrap_or(Duration::MAX),
        tunnel_max_lifetime: some(flags.tunnel_max_lifetime),
        connections_per_address: count("max-connections-per-address", flags.max_connections_per_address)?,
        refusals_per_address: count("max-refusals-per-address", flags.max_refusals_per_address)?,
        requests_per_client: count("max-requests-per-client", flags.max_requests_per_client)?,
        requests_per_sandbox: count("max-requests-per-sandbox", flags.max_requests_per_sandbox)?,
        tunnels_per_client: count("max-tunnels-per-client", flags.max_tunnels_per_client)?,
        tunnels_per_sandbox: count("max-tunnels-per-sandbox", flags.max_tunnels_per_sandbox)?,
        rate_per_client: count("max-rate-per-client", flags.max_rate_per_client)?,
        rate_per_sandbox: count("max-rate-per-sandbox", flags.max_rate_per_sandbox)?,
    })
}

fn log(flags: &ReportFlags) -> Result<Log, Problem> {
    let json = match flags.zap_encoder.as_deref() {
        None => !flags.zap_devel,
        Some("json") => true,
        Some("console") => false,
        Some(other) => return Err(problem("zap-encoder", format!("{other:?} is neither json nor console"))),
    };
    let level = match flags.zap_log_level.as_deref() {
        None if flags.zap_devel => tracing::Level::DEBUG,
        None | Some("info") => tracing::Level::INFO,
        Some("debug") => tracing::Level::DEBUG,
        Some("error" | "panic") => tracing::Level::ERROR,
        Some(number) => match number.parse::<u32>() {
            Ok(0) => tracing::Level::INFO,
            Ok(1) => tracing::Level::DEBUG,
            Ok(_) => tracing::Level::TRACE,
            Err(_) => {
                let reason = format!("{number:?} is not debug, info, error, panic or a number");
                return Err(problem("zap-log-level", reason));
            }
        },
    };
    Ok(Log { json, level })
}

/// Warns of flags that are accepted for compatibility only.
fn without_effect(flags: &Flags) -> Vec<String> {
    let set = [
        (
            "cluster-domain",
            flags.addressing.cluster_domain != "cluster.local",
            "sandboxes are found by watches, not by DNS",
        ),
        (
            "response-header-timeout",
            flags.limits.response_header_timeout.is_some(),
            "one budget counts, --proxy-timeout",
        ),
        ("cache-enabled", !flags.addressing.cache_enabled, "the router always watches Pods and Sandboxes"),
        ("zap-time-encoding", flags.reports.zap_time_encoding.is_some(), "times are always RFC 3339"),
        ("zap-stacktrace-level", flags.reports.zap_stacktrace_level.is_some(), "logs have no stack traces"),
    ];
    set.into_iter().filter(|it| it.1).map(|(flag, _, why)| format!("--{flag} has no effect: {why}")).collect()
}

fn is_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&text.len())
        && text.chars().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// An empty address means nowhere, and so does `0`.
fn address(flag: &'static str, text: &str) -> Result<Option<Address>, Problem> {
    if text.is_empty() {
        return Ok(None);
    }
    Address::parse(text).map_err(|reason| problem(flag, reason))
}

fn given(path: &Option<PathBuf>) -> Option<PathBuf> {
    path.clone().filter(|path| !path.as_os_str().is_empty())
}

pub fn problem(flag: &'static str, reason: impl Into<String>) -> Problem {
    Problem { flag, reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(flags: &[&str]) -> Result<Settings, Problem> {
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let authorized: Vec<String> = [vec!["--authz-mode=allow-all".to_owned()], flags].concat();
        Flags::parse_arguments(&authorized).unwrap().settings(false)
    }

    #[test]
    fn flags_are_consistent() {
        Flags::go_command().debug_assert();
    }

    #[test]
    fn defaults_are_those_of_the_reference() {
        let settings = settings(&[]).unwrap();
        let port = |address: &Option<Address>| address.as_ref().map(|address| address.port);
        let Listeners { http, https, metrics, probes, shutdown_timeout, .. } = &settings.listeners;
        assert_eq!([port(http), port(metrics), port(probes)], [Some(8080), Some(9090), Some(8081)]);
        assert!(https.is_none() && shutdown_timeout.as_secs() == 30);
        assert_eq!(settings.limits.proxy_timeout.as_secs(), 180);
        assert_eq!(settings.limits.retries, Retries::default());
        assert_eq!(settings.limits.request_body_bytes, None);
        assert!(settings.access_log && !settings.tracing && settings.warnings.is_empty());
    }

    #[test]
    fn every_problem_names_its_flag() {
        for (flags, names) in [
            (&["--http-bind-address="][..], "http-bind-address"),
            (&["--http-bind-address=8080"], "http-bind-address"),
            (&["--https-bind-address=:1"], "tls-cert-file"),
            (&["--https-bind-address=:1", "--tls-cert-file=c"], "tls-key-file"),
            (&["--mtls-mode=maybe"], "mtls-mode"),
            (&["--mtls-mode=required"], "tls-client-ca-file"),
            (&["--mtls-mode=required", "--tls-client-ca-file=ca"], "mtls-mode"),
            (&["--tls-client-ca-file=ca"], "mtls-mode"),
            (&["--cluster-domain="], "cluster-domain"),
            (&["--proxy-timeout=0"], "proxy-timeout"),
            (&["--response-header-timeout=0s"], "response-header-timeout"),
            (&["--max-request-body-bytes=-1"], "max-request-body-bytes"),
            (&["--upstream-max-retries=-1"], "upstream-max-retries"),
            (&["--max-connections=0"], "max-connections"),
            (&["--keep-alive-timeout=0"], "keep-alive-timeout"),
            (&["--idle-timeout=0"], "idle-timeout"),
            (&["--max-tunnels-per-client=-1"], "max-tunnels-per-client"),
            (&["--path-routing-prefix=sandboxes"], "path-routing-prefix"),
            (&["--path-routing-prefix=/a/"], "path-routing-prefix"),
            (&["--path-routing-prefix=/a b"], "path-routing-prefix"),
            (&["--host-routing-domain=a..b"], "host-routing-domain"),
            (&["--cache-namespace=A"], "cache-namespace"),
            (&["--zap-encoder=xml"], "zap-encoder"),
            (&["--zap-log-level=loud"], "zap-log-level"),
        ] {
            assert_eq!(settings(flags).unwrap_err().flag, names, "{flags:?}");
        }
    }

    #[test]
    fn zero_retries_are_fine_and_zero_delays_are_the_defaults() {
        let flags = ["--upstream-max-retries=0", "--upstream-retry-initial-delay=0"];
        let retries = settings(&flags).unwrap().limits.retries;
        assert_eq!(retries, Retries { count: 0, ..Retries::default() });
    }

    #[test]
    fn flags_without_effect_are_named() {
        let warnings =
            settings(&["--response-header-timeout=30s", "--cache-enabled=false"]).unwrap().warnings;
        assert_eq!(warnings.len(), 2, "{warnings:?}");
    }
}
