//! What the flags amount to, once they are checked. Pure: nothing is read or opened here.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;
use std::path::PathBuf;

use asb_controllers::{Config, Scope, claim, warm_pool};
use asb_webhook::{Certificates, Identity};

use crate::connections::Connections;
use crate::go::Address;
use crate::limit::Rate;
use crate::options::{Flags, LogFlags, Options, TLS_MIN_VERSION, WebhookFlags, WithoutEffect};
use crate::tls::{self, Tls};

/// More workers than this hardly ever help.
const MANY_WORKERS: usize = 1000;

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
    pub scope: Scope,
    /// `None`: this process writes without asking others.
    pub election: Option<Election>,
    /// `None`: no metrics are served.
    pub metrics: Option<Metrics>,
    /// `None`: no probes are served.
    pub probes: Option<Address>,
    pub rest_client_metrics: bool,
    /// `None`: the API server is asked as often as need be.
    pub rate: Option<Rate>,
    pub connections: Connections,
    pub tracing: bool,
    /// `None`: no conversion is served.
    pub webhook: Option<asb_webhook::Settings>,
    pub log: Log,
    pub controllers: Config,
    /// What was said and will not be done, or should not have been.
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Election {
    /// `None`: the namespace that this process runs in.
    pub namespace: Option<String>,
}

#[derive(Debug, Clone)]
pub struct Metrics {
    pub address: Address,
    /// `None`: plain HTTP.
    pub tls: Option<Tls>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    pub json: bool,
    pub level: tracing::Level,
}

impl Options {
    /// Checks every flag; the first that cannot be used is the answer.
    pub fn settings(self) -> Result<Settings, Problem> {
        let Options(flags) = self;
        let controllers = controllers(&flags)?;
        let mut warnings = without_effect(&flags.without_effect);
        warnings.extend(crowd(&flags, &controllers));
        warnings.extend(ignored_log_flags(&flags.log));
        warnings.extend(unspoken(&flags));
        Ok(Settings {
            scope: Scope {
                namespaces: namespaces(&flags.watch_namespaces),
                extensions: flags.extensions,
                labelled_only: flags.cache_label_selectors,
            },
            election: flags
                .leader_elect
                .then(|| Election { namespace: given(&flags.leader_election_namespace) }),
            metrics: metrics(&flags)?,
            probes: address("health-probe-bind-address", &flags.health_probe_bind_address)?,
            rest_client_metrics: flags.enable_rest_client_metrics,
            rate: rate(&flags)?,
            connections: Connections {
                requests: positive("api-connections", flags.api_connections)?,
                separate_watches: flags.separate_watch_connection,
            },
            tracing: flags.enable_tracing,
            webhook: webhook(&flags)?,
            log: log(&flags.log)?,
            kubeconfig: flags.kubeconfig,
            controllers,
            warnings,
        })
    }
}

fn controllers(flags: &Flags) -> Result<Config, Problem> {
    let rate = flags.sandbox_warm_pool_max_refill_rate;
    if !rate.is_finite() || rate < 0.0 {
        return Err(problem("sandbox-warm-pool-max-refill-rate", "must be finite and not negative"));
    }
    for (flag, duration) in [
        ("sandbox-warm-pool-readiness-grace-period", flags.sandbox_warm_pool_readiness_grace_period),
        (
            "sandbox-warm-pool-unschedulable-recheck-interval",
            flags.sandbox_warm_pool_unschedulable_recheck_interval,
        ),
    ] {
        if duration.is_zero() {
            return Err(problem(flag, "must be greater than 0"));
        }
    }
    let warm_pools = warm_pool::Settings {
        workers: positive(
            "sandbox-warm-pool-concurrent-workers",
            flags.sandbox_warm_pool_concurrent_workers,
        )?,
        max_batch_size: positive("sandbox-warm-pool-max-batch-size", flags.sandbox_warm_pool_max_batch_size)?,
        replenish_delay: flags.sandbox_warm_pool_replenish_delay,
        max_refill_rate: rate,
        readiness_grace: flags.sandbox_warm_pool_readiness_grace_period,
        unschedulable_recheck: flags.sandbox_warm_pool_unschedulable_recheck_interval,
        safe_to_evict: flags.enable_warm_pool_eviction,
    };
    let claims = claim::Settings {
        workers: positive("sandbox-claim-concurrent-workers", flags.sandbox_claim_concurrent_workers)?,
        candidate_grace: flags.sandbox_claim_warm_candidate_grace_period,
        ready_only: flags.sandbox_claim_ready_members_only,
        events: !flags.disable_claim_events,
        observability_annotations: !flags.disable_claim_observability_annotations,
        ..claim::Settings::default()
    };
    Ok(Config {
        cluster_domain: flags.cluster_domain.clone(),
        sandbox_workers: positive("sandbox-concurrent-workers", flags.sandbox_concurrent_workers)?,
        write_behind: flags.sandbox_write_behind_window,
        // Without a worker no template would ever get its policy.
        template_workers: usize::try_from(flags.sandbox_template_concurrent_workers).unwrap_or(1).max(1),
        router_namespace: flags.router_namespace.clone(),
        warm_pools,
        claims,
        sandbox_events: !flags.disable_sandbox_events,
        ..Config::default()
    })
}

fn metrics(flags: &Flags) -> Result<Option<Metrics>, Problem> {
    let address = address("metrics-bind-address", &flags.metrics_bind_address)?;
    let tls = Tls { certificates: given(&flags.metrics_cert_dir).map(PathBuf::from), spoken: spoken(flags)? };
    let tls = flags.metrics_secure_serving.then_some(tls);
    Ok(address.map(|address| Metrics { address, tls }))
}

/// The TLS of every server here.
fn spoken(flags: &Flags) -> Result<asb_webhook::Tls, Problem> {
    let versions = tls::versions(&flags.tls_min_version);
    let suites = tls::suites(&flags.tls_cipher_suites);
    Ok(asb_webhook::Tls {
        versions: versions.map_err(|reason| problem("tls-min-version", reason))?,
        suites: suites.map_err(|reason| problem("tls-cipher-suites", reason))?,
    })
}

/// Warns of what is said about a TLS that nobody speaks.
fn unspoken(flags: &Flags) -> Vec<String> {
    let metrics = flags.metrics_secure_serving;
    let anybody = metrics || flags.webhook.enable_webhook;
    let nobody = "neither metrics nor conversions are served over TLS";
    let set = [
        (
            "metrics-cert-dir",
            !metrics && !flags.metrics_cert_dir.is_empty(),
            "metrics are served without TLS",
        ),
        ("tls-min-version", !anybody && flags.tls_min_version != TLS_MIN_VERSION, nobody),
        ("tls-cipher-suites", !anybody && !flags.tls_cipher_suites.is_empty(), nobody),
    ];
    set.into_iter().filter(|(_, set, _)| *set).map(|(flag, _, why)| no_effect(flag, why)).collect()
}

/// Each once: a namespace that is named twice is not watched twice.
fn namespaces(named: &[String]) -> Vec<String> {
    let named = named.iter().map(|name| name.trim()).filter(|name| !name.is_empty());
    named.map(str::to_owned).collect::<BTreeSet<_>>().into_iter().collect()
}

fn rate(flags: &Flags) -> Result<Option<Rate>, Problem> {
    let (qps, burst) = (flags.kube_api_qps, positive("kube-api-burst", flags.kube_api_burst)?);
    if !qps.is_finite() {
        return Err(problem("kube-api-qps", "must be finite"));
    }
    Ok((qps > 0.0).then(|| Rate { qps, burst: u32::try_from(burst).unwrap_or(u32::MAX) }))
}

fn webhook(flags: &Flags) -> Result<Option<asb_webhook::Settings>, Problem> {
    let said: &WebhookFlags = &flags.webhook;
    for (flag, name) in
        [("webhook-cert-name", &said.webhook_cert_name), ("webhook-key-name", &said.webhook_key_name)]
    {
        if name.trim().is_empty() {
            return Err(problem(flag, "must not be blank"));
        }
    }
    let tls = spoken(flags)?;
    let certificates = match said.manage_webhook_certs {
        true => Certificates::Managed(Identity {
            service: said.webhook_service_name.clone(),
            namespace: said.webhook_namespace.clone(),
            cluster_domain: flags.cluster_domain.clone(),
            ..Identity::default()
        }),
        false => Certificates::Files {
            dir: said.webhook_cert_dir.clone(),
            certificate: said.webhook_cert_name.clone(),
            key: said.webhook_key_name.clone(),
        },
    };
    Ok(said.enable_webhook.then(|| asb_webhook::Settings {
        bind: (Ipv6Addr::UNSPECIFIED, said.webhook_port).into(),
        extensions: flags.extensions,
        certificates,
        tls,
    }))
}

fn log(flags: &LogFlags) -> Result<Log, Problem> {
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
                let reason = format!("{number:?} is none of debug, info, error, panic and no number");
                return Err(problem("zap-log-level", reason));
            }
        },
    };
    Ok(Log { json, level })
}

fn ignored_log_flags(flags: &LogFlags) -> Vec<String> {
    let set = [
        ("zap-time-encoding", flags.zap_time_encoding.is_some(), "times are always RFC 3339"),
        (
            "zap-stacktrace-level",
            flags.zap_stacktrace_level.is_some(),
            "there are no stack traces in the log",
        ),
    ];
    set.into_iter().filter(|(_, set, _)| *set).map(|(flag, _, why)| no_effect(flag, why)).collect()
}

/// Warns of each flag that is set in vain.
fn without_effect(flags: &WithoutEffect) -> Vec<String> {
    let profiler = "there is no Go profiler in this program";
    let set = [
        ("enable-pprof", flags.enable_pprof, profiler),
        ("enable-pprof-debug", flags.enable_pprof_debug, profiler),
        ("pprof-block-profile-rate", flags.pprof_block_profile_rate.is_some(), profiler),
        ("pprof-mutex-profile-fraction", flags.pprof_mutex_profile_fraction.is_some(), profiler),
    ];
    set.into_iter().filter(|(_, set, _)| *set).map(|(flag, _, why)| no_effect(flag, why)).collect()
}

/// Warns of more workers than the API is asked or likely to bear.
fn crowd(flags: &Flags, config: &Config) -> Vec<String> {
    let extensions = config.claims.workers + config.warm_pools.workers + config.template_workers;
    let workers = config.sandbox_workers + if flags.extensions { extensions } else { 0 };
    let burst = usize::try_from(flags.kube_api_burst).unwrap_or_default();
    let mut warnings = Vec::new();
    if workers > MANY_WORKERS {
        warnings.push(format!("{workers} workers in total are more than {MANY_WORKERS}"));
    }
    if flags.kube_api_qps > 0.0 && workers > burst {
        warnings.push(format!("{workers} workers in total are more than --kube-api-burst={burst}"));
    }
    warnings
}

fn positive(flag: &'static str, number: i64) -> Result<usize, Problem> {
    let number = usize::try_from(number).ok().filter(|number| *number > 0);
    number.ok_or_else(|| problem(flag, "must be greater than 0"))
}

fn address(flag: &'static str, text: &str) -> Result<Option<Address>, Problem> {
    Address::parse(text).map_err(|reason| problem(flag, reason))
}

fn given(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn no_effect(flag: &str, why: &str) -> String {
    format!("--{flag} has no effect: {why}")
}

fn problem(flag: &'static str, reason: impl Into<String>) -> Problem {
    Problem { flag, reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    #[command(disable_version_flag = true)]
    struct Args {
        #[command(flatten)]
        options: Options,
    }

    fn settings(flags: &[&str]) -> Result<Settings, Problem> {
        let args = Args::try_parse_from(["controller"].iter().chain(flags)).expect("the flags can be read");
        args.options.settings()
    }

    #[test]
    fn flags_are_consistent() {
        <Args as clap::CommandFactory>::command().debug_assert();
    }

    /// MG-02, MG-10
    #[test]
    fn defaults_are_those_of_the_reference() {
        let settings = settings(&[]).unwrap();
        let address = |port| Address { host: String::new(), port };
        assert_eq!(settings.metrics.unwrap().address, address(8080));
        assert_eq!(settings.probes, Some(address(8081)));
        assert_eq!(settings.election, Some(Election { namespace: None }));
        assert_eq!(settings.scope, Scope::default());
        assert!(!settings.tracing && settings.rest_client_metrics);
        assert_eq!(settings.log, Log { json: true, level: tracing::Level::INFO });
        assert!(settings.warnings.is_empty(), "{:?}", settings.warnings);
        let config = settings.controllers;
        assert_eq!((config.cluster_domain.as_str(), config.sandbox_workers), ("cluster.local", 100));
        assert_eq!(config.warm_pools, warm_pool::Settings::default());
        assert_eq!(config.warm_pools.readiness_grace, Duration::from_secs(300));
        assert_eq!(config.warm_pools.unschedulable_recheck, Duration::from_secs(60));
        let webhook = settings.webhook.unwrap();
        assert_eq!(webhook.bind.port(), 9443);
        let Certificates::Managed(identity) = webhook.certificates else {
            panic!("certificates are managed")
        };
        assert_eq!(
            (identity.service.as_str(), identity.namespace.as_str()),
            ("agent-sandbox-webhook-service", "agent-sandbox-system")
        );
    }

    /// MG-02
    #[test]
    fn what_is_said_passes_through() {
        let settings = settings(&[
            "--leader-elect=true",
            "--leader-election-namespace=ops",
            "--metrics-bind-address=0",
            "--health-probe-bind-address",
            "127.0.0.1:9000",
            "--extensions",
            "--enable-warm-pool-eviction=false",
            "--sandbox-warm-pool-replenish-delay=1m30s",
            "--sandbox-warm-pool-max-refill-rate=2.5",
            "--sandbox-concurrent-workers=7",
            "--watch-namespaces=b,a,,b",
            "--kube-api-qps=20",
            "--kube-api-burst=100",
            "--enable-webhook=false",
            "--disable-sandbox-events",
            "--disable-claim-events",
            "--disable-claim-observability-annotations=false",
            "--sandbox-claim-ready-members-only",
            "--sandbox-claim-concurrent-workers=9",
            "--zap-devel",
        ])
        .unwrap();
        assert_eq!(settings.election, Some(Election { namespace: Some("ops".to_owned()) }));
        assert!(settings.metrics.is_none() && settings.webhook.is_none());
        assert_eq!(settings.probes, Some(Address { host: "127.0.0.1".to_owned(), port: 9000 }));
        assert_eq!(settings.scope.namespaces, ["a", "b"]);
        assert!(settings.scope.extensions);
        assert_eq!(settings.rate, Some(Rate { qps: 20.0, burst: 100 }));
        assert_eq!(settings.log, Log { json: false, level: tracing::Level::DEBUG });
        let config = settings.controllers;
        assert_eq!(config.sandbox_workers, 7);
        assert!(!config.warm_pools.safe_to_evict);
        assert!(!config.sandbox_events && !config.claims.events && config.claims.observability_annotations);
        assert_eq!((config.claims.workers, config.claims.ready_only), (9, true));
        assert_eq!(config.warm_pools.replenish_delay, Duration::from_secs(90));
        assert_eq!(config.warm_pools.max_refill_rate, 2.5);
    }

    /// MG-07
    #[test]
    fn values_that_cannot_be_used_are_refused_by_the_name_of_their_flag() {
        for said in [
            "--sandbox-concurrent-workers=0",
            "--sandbox-claim-concurrent-workers=-1",
            "--sandbox-warm-pool-concurrent-workers=0",
            "--sandbox-warm-pool-max-batch-size=0",
            "--sandbox-warm-pool-max-refill-rate=-0.1",
            "--sandbox-warm-pool-max-refill-rate=inf",
            "--sandbox-warm-pool-max-refill-rate=nan",
            "--sandbox-warm-pool-readiness-grace-period=0",
            "--sandbox-warm-pool-unschedulable-recheck-interval=0s",
            "--kube-api-burst=0",
            "--api-connections=0",
            "--api-connections=-3",
            "--metrics-bind-address=nowhere",
            "--health-probe-bind-address=:99999",
            "--tls-min-version=VersionTLS11",
            "--tls-cipher-suites=TLS_RSA_WITH_RC4_128_SHA",
            "--webhook-cert-name= ",
            "--webhook-key-name=",
            "--zap-encoder=xml",
            "--zap-log-level=loud",
        ] {
            let problem = settings(&[said]).expect_err(said);
            let flag = said.trim_start_matches('-').split('=').next().unwrap();
            assert_eq!(problem.flag, flag);
            assert!(problem.to_string().starts_with(&format!("invalid value for --{flag}: ")), "{problem}");
        }
    }

    #[test]
    fn values_that_cannot_be_read_are_refused_by_the_name_of_their_flag() {
        for said in ["--leader-elect=maybe", "--sandbox-write-behind-window=-1s", "--kube-api-burst=ten"] {
            let error = Args::try_parse_from(["controller", said]).err().expect(said).to_string();
            assert!(error.contains(said.split('=').next().unwrap()), "{error}");
        }
        let error = Args::try_parse_from(["controller", "--no-such-flag"]).err().unwrap();
        assert!(error.to_string().contains("--no-such-flag"));
    }

    #[test]
    fn every_server_speaks_the_tls_that_is_wanted() {
        let settings = settings(&["--metrics-secure-serving", "--tls-min-version=VersionTLS13"]).unwrap();
        let metrics = settings.metrics.and_then(|metrics| metrics.tls).unwrap().spoken;
        let webhook = settings.webhook.unwrap().tls;
        assert_eq!((metrics.versions.len(), webhook.versions.len()), (1, 1), "1.3 and no other");
    }

    #[test]
    fn tls_that_nobody_speaks_is_warned_of() {
        let warnings = |flags: &[&str]| settings(flags).unwrap().warnings;
        assert!(warnings(&["--tls-min-version=VersionTLS13"]).is_empty(), "the webhook speaks it");
        assert_eq!(
            warnings(&["--tls-min-version=VersionTLS13", "--enable-webhook=false", "--metrics-cert-dir=/c"]),
            [
                "--metrics-cert-dir has no effect: metrics are served without TLS",
                "--tls-min-version has no effect: neither metrics nor conversions are served over TLS",
            ]
        );
    }

    #[test]
    fn too_many_workers_are_warned_of() {
        let warnings = |flags: &[&str]| settings(flags).unwrap().warnings;
        assert!(warnings(&["--sandbox-concurrent-workers=1000"]).is_empty());
        let many = warnings(&["--sandbox-concurrent-workers=1000", "--extensions"]);
        assert_eq!(many, ["1052 workers in total are more than 1000"]);
        let bursting = warnings(&["--kube-api-qps=50"]);
        assert_eq!(bursting, ["100 workers in total are more than --kube-api-burst=10"]);
    }

    #[test]
    fn flags_without_effect_are_accepted_and_said_to_be() {
        let settings = settings(&["--enable-pprof", "--zap-stacktrace-level=panic"]).unwrap();
        let flags = ["enable-pprof", "zap-stacktrace-level"];
        assert_eq!(settings.warnings.len(), flags.len());
        for (warning, flag) in settings.warnings.iter().zip(flags) {
            assert!(warning.starts_with(&format!("--{flag} has no effect: ")), "{warning}");
        }
    }
}
