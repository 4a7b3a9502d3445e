//! What the flags amount to, once they are checked. Pure: nothing is read or opened here.

use std::path::PathBuf;

use asb_controllers::{Config, warm_pool};

use crate::go::Address;
use crate::options::{Flags, LogFlags, Options, WebhookFlags, WithoutEffect};

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
    /// Whether to run the controllers of templates, warm pools and claims.
    pub extensions: bool,
    /// `None`: this process writes without asking others.
    pub election: Option<Election>,
    /// `None`: no metrics are served.
    pub metrics: Option<Metrics>,
    /// `None`: no probes are served.
    pub probes: Option<Address>,
    pub rest_client_metrics: bool,
    pub tracing: bool,
    /// `None`: no conversion is served.
    pub webhook: Option<Webhook>,
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
}

/// Who answers conversion requests, and with which certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Webhook {
    pub port: u16,
    pub manage_certificates: bool,
    pub certificate_dir: PathBuf,
    pub certificate_name: String,
    pub key_name: String,
    pub service: String,
    pub namespace: String,
    pub cluster_domain: String,
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
        let mut warnings = without_effect(&flags.without_effect)?;
        warnings.extend(crowd(&flags, &controllers));
        warnings.extend(ignored_log_flags(&flags.log));
        Ok(Settings {
            extensions: flags.extensions,
            election: flags
                .leader_elect
                .then(|| Election { namespace: given(&flags.leader_election_namespace) }),
            metrics: address("metrics-bind-address", &flags.metrics_bind_address)?
                .map(|address| Metrics { address }),
            probes: address("health-probe-bind-address", &flags.health_probe_bind_address)?,
            rest_client_metrics: flags.enable_rest_client_metrics,
            tracing: flags.enable_tracing,
            webhook: webhook(&flags.webhook, &flags.cluster_domain)?,
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
    positive("sandbox-claim-concurrent-workers", flags.sandbox_claim_concurrent_workers)?;
    Ok(Config {
        cluster_domain: flags.cluster_domain.clone(),
        sandbox_workers: positive("sandbox-concurrent-workers", flags.sandbox_concurrent_workers)?,
        // Without a worker no template would ever get its policy.
        template_workers: usize::try_from(flags.sandbox_template_concurrent_workers).unwrap_or(1).max(1),
        router_namespace: flags.router_namespace.clone(),
        warm_pools,
        namespace: flags.watch_namespaces.first().cloned(),
    })
}

fn webhook(flags: &WebhookFlags, cluster_domain: &str) -> Result<Option<Webhook>, Problem> {
    for (flag, name) in
        [("webhook-cert-name", &flags.webhook_cert_name), ("webhook-key-name", &flags.webhook_key_name)]
    {
        if name.trim().is_empty() {
            return Err(problem(flag, "must not be blank"));
        }
    }
    Ok(flags.enable_webhook.then(|| Webhook {
        port: flags.webhook_port,
        manage_certificates: flags.manage_webhook_certs,
        certificate_dir: flags.webhook_cert_dir.clone(),
        certificate_name: flags.webhook_cert_name.clone(),
        key_name: flags.webhook_key_name.clone(),
        service: flags.webhook_service_name.clone(),
        namespace: flags.webhook_namespace.clone(),
        cluster_domain: cluster_domain.to_owned(),
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
        ("zap-time-encoding", flags.zap_time_encoding.is_some()),
        ("zap-stacktrace-level", flags.zap_stacktrace_level.is_some()),
    ];
    set.into_iter().filter(|(_, set)| *set).map(|(flag, _)| no_effect(flag)).collect()
}

/// Warns of each flag that is set in vain; what the reference refuses is refused as well.
fn without_effect(flags: &WithoutEffect) -> Result<Vec<String>, Problem> {
    positive("kube-api-burst", flags.kube_api_burst)?;
    positive("api-connections", flags.api_connections)?;
    let set = [
        ("enable-pprof", flags.enable_pprof),
        ("enable-pprof-debug", flags.enable_pprof_debug),
        ("pprof-block-profile-rate", flags.pprof_block_profile_rate.is_some()),
        ("pprof-mutex-profile-fraction", flags.pprof_mutex_profile_fraction.is_some()),
        ("kube-api-qps", flags.kube_api_qps > 0.0),
        ("kube-api-burst", flags.kube_api_burst != 10),
        ("api-connections", flags.api_connections != 1),
        ("separate-watch-connection", flags.separate_watch_connection),
        ("cache-label-selectors", flags.cache_label_selectors),
        ("sandbox-write-behind-window", !flags.sandbox_write_behind_window.is_zero()),
    ];
    Ok(set.into_iter().filter(|(_, set)| *set).map(|(flag, _)| no_effect(flag)).collect())
}

/// Warns of more workers than the API is asked or likely to bear.
fn crowd(flags: &Flags, config: &Config) -> Vec<String> {
    let claims = usize::try_from(flags.sandbox_claim_concurrent_workers).unwrap_or_default();
    let extensions = claims + config.warm_pools.workers + config.template_workers;
    let workers = config.sandbox_workers + if flags.extensions { extensions } else { 0 };
    let burst = usize::try_from(flags.without_effect.kube_api_burst).unwrap_or_default();
    let mut warnings = Vec::new();
    if workers > MANY_WORKERS {
        warnings.push(format!("{workers} workers in total are more than {MANY_WORKERS}"));
    }
    if flags.without_effect.kube_api_qps > 0.0 && workers > burst {
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

fn no_effect(flag: &str) -> String {
    format!("--{flag} has no effect in this implementation")
}

fn problem(flag: &'static str, reason: impl Into<String>) -> Problem {
    Problem { flag, reason: reason.into() }
}
