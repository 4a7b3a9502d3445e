//! The flags: names, defaults and meaning are those of the reference implementation, so that its manifests
//! start this program unchanged. What is ours says so.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgMatches, Command, Error, FromArgMatches};

use crate::go;

/// Unless --tls-min-version says otherwise.
pub const TLS_MIN_VERSION: &str = "VersionTLS12";

/// Everything that can be said on the command line, as it was said. [`Options::settings`] checks it.
#[derive(Debug, Clone, clap::Args)]
pub struct Flags {
    /// Print the version and exit
    #[arg(long)]
    pub version: bool,

    /// The cluster [default: $KUBECONFIG, ~/.kube/config, or the cluster this runs in]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Also run the controllers of templates, warm pools and claims
    #[arg(long)]
    pub extensions: bool,
    /// Suffix of Service names
    #[arg(long, default_value = "cluster.local", value_name = "DOMAIN")]
    pub cluster_domain: String,
    /// Watch only these namespaces, which needs no more than a Role in each [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMESPACE,...")]
    pub watch_namespaces: Vec<String>,
    /// Namespace of the router, which the default NetworkPolicy of a template lets in
    #[arg(long, default_value = "agent-sandbox-system", value_name = "NAMESPACE")]
    pub router_namespace: String,
    /// Of Pods, Services and volume claims watch only those with our label; strangers under the name of a
    /// Sandbox are then noticed later
    #[arg(long)]
    pub cache_label_selectors: bool,

    /// Requests per second to the API server; -1 for no limit
    #[arg(long, default_value_t = -1.0, value_name = "RATE", allow_negative_numbers = true)]
    pub kube_api_qps: f64,
    /// Requests that may be sent at once, if there is a limit
    #[arg(long, default_value_t = 10, value_name = "N", allow_negative_numbers = true)]
    pub kube_api_burst: i64,
    /// Connections to the API server that requests take in turn
    #[arg(long, default_value_t = 4, value_name = "N", allow_negative_numbers = true)]
    pub api_connections: i64,
    /// Give the lists and watches of caches a connection of their own
    #[arg(long)]
    pub separate_watch_connection: bool,

    /// Let only one of several replicas write
    #[arg(long, default_value_t = true)]
    pub leader_elect: bool,
    /// Where the Lease is [default: the namespace this runs in]
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAMESPACE")]
    pub leader_election_namespace: String,

    /// Where /metrics is served; 0 for nowhere
    #[arg(long, default_value = ":8080", value_name = "ADDRESS")]
    pub metrics_bind_address: String,
    /// Serve /metrics over TLS
    #[arg(long)]
    pub metrics_secure_serving: bool,
    /// Directory with tls.crt and tls.key for /metrics [default: a self-signed certificate]
    #[arg(long, default_value = "", hide_default_value = true, value_name = "DIR")]
    pub metrics_cert_dir: String,
    /// The oldest TLS that is spoken: VersionTLS12 or VersionTLS13
    #[arg(long, default_value = TLS_MIN_VERSION, value_name = "VERSION")]
    pub tls_min_version: String,
    /// Cipher suites of TLS 1.2, by their IANA names [default: all safe ones]
    #[arg(long, value_delimiter = ',', value_name = "SUITE,...")]
    pub tls_cipher_suites: Vec<String>,
    /// Where /healthz and /readyz are served; 0 for nowhere
    #[arg(long, default_value = ":8081", value_name = "ADDRESS")]
    pub health_probe_bind_address: String,
    /// Count requests to the API server
    #[arg(long, default_value_t = true)]
    pub enable_rest_client_metrics: bool,
    /// Export traces by OTLP over gRPC, to where the OTEL_EXPORTER_OTLP_* variables say
    #[arg(long)]
    pub enable_tracing: bool,

    /// Sandboxes worked on at the same time
    #[arg(long, default_value_t = 100, value_name = "N", allow_negative_numbers = true)]
    pub sandbox_concurrent_workers: i64,
    /// Claims worked on at the same time
    #[arg(long, default_value_t = 50, value_name = "N", allow_negative_numbers = true)]
    pub sandbox_claim_concurrent_workers: i64,
    /// Warm pools worked on at the same time
    #[arg(long, default_value_t = 1, value_name = "N", allow_negative_numbers = true)]
    pub sandbox_warm_pool_concurrent_workers: i64,
    /// Templates worked on at the same time
    #[arg(long, default_value_t = 1, value_name = "N", allow_negative_numbers = true)]
    pub sandbox_template_concurrent_workers: i64,

    /// How long a change of a running Pod's labels and annotations may wait for more; at most a second
    #[arg(long, default_value = "0", value_parser = go::duration, value_name = "DURATION")]
    pub sandbox_write_behind_window: Duration,

    /// Sandboxes created or deleted for one pool in one pass
    #[arg(long, default_value_t = 300, value_name = "N", allow_negative_numbers = true)]
    pub sandbox_warm_pool_max_batch_size: i64,
    /// How long a pool waits before it replaces members that were taken; 0 for not at all
    #[arg(long, default_value = "0", value_parser = go::duration, value_name = "DURATION")]
    pub sandbox_warm_pool_replenish_delay: Duration,
    /// Sandboxes created per second and pool; 0 for no limit
    #[arg(long, default_value_t = 0.0, value_name = "RATE", allow_negative_numbers = true)]
    pub sandbox_warm_pool_max_refill_rate: f64,
    /// How long a member may take to become Ready
    #[arg(long, default_value = "5m", value_parser = go::duration, value_name = "DURATION")]
    pub sandbox_warm_pool_readiness_grace_period: Duration,
    /// How often to look at members that find no node
    #[arg(long, default_value = "1m", value_parser = go::duration, value_name = "DURATION")]
    pub sandbox_warm_pool_unschedulable_recheck_interval: Duration,
    /// Let the cluster autoscaler move members that nobody uses yet
    #[arg(long, default_value_t = true)]
    pub enable_warm_pool_eviction: bool,
    /// How long a claim waits for members that are about to be usable
    #[arg(long, default_value = "2s", value_parser = go::duration, value_name = "DURATION")]
    pub sandbox_claim_warm_candidate_grace_period: Duration,
    /// Let claims take only members that are Ready, and wait for those that are about to be
    #[arg(long)]
    pub sandbox_claim_ready_members_only: bool,

    /// Write no events about Sandboxes
    #[arg(long)]
    pub disable_sandbox_events: bool,
    /// Write no events about claims
    #[arg(long)]
    pub disable_claim_events: bool,
    /// Leave out the annotations of claims that only measurements need; `=false` costs one more write per claim
    #[arg(long, default_value_t = true)]
    pub disable_claim_observability_annotations: bool,

    #[command(flatten)]
    pub webhook: WebhookFlags,
    #[command(flatten)]
    pub log: LogFlags,
    #[command(flatten)]
    pub without_effect: WithoutEffect,
}

/// The conversion webhook.
#[derive(Debug, Clone, clap::Args)]
pub struct WebhookFlags {
    /// Convert between the versions of our kinds; without it the CRDs must use strategy None
    #[arg(long, default_value_t = true)]
    pub enable_webhook: bool,
    /// Make and renew the webhook's certificate
    #[arg(long, default_value_t = true)]
    pub manage_webhook_certs: bool,
    #[arg(long, default_value_t = 9443, value_name = "PORT")]
    pub webhook_port: u16,
    #[arg(long, default_value = "/tmp/k8s-webhook-server/serving-certs", value_name = "DIR")]
    pub webhook_cert_dir: PathBuf,
    /// File of the certificate; ignored when certificates are managed
    #[arg(long, default_value = "tls.crt", value_name = "FILE")]
    pub webhook_cert_name: String,
    /// File of the key; ignored when certificates are managed
    #[arg(long, default_value = "tls.key", value_name = "FILE")]
    pub webhook_key_name: String,
    #[arg(long, default_value = "agent-sandbox-webhook-service", value_name = "NAME")]
    pub webhook_service_name: String,
    #[arg(long, default_value = "agent-sandbox-system", value_name = "NAMESPACE")]
    pub webhook_namespace: String,
}

/// How to log, in the words of zap.
#[derive(Debug, Clone, clap::Args)]
pub struct LogFlags {
    /// Readable lines and debug messages, for development
    #[arg(long)]
    pub zap_devel: bool,
    /// json or console [default: json, with --zap-devel console]
    #[arg(long, value_name = "ENCODER")]
    pub zap_encoder: Option<String>,
    /// debug, info, error, panic, or a number; the higher, the more [default: info, with --zap-devel debug]
    #[arg(long, value_name = "LEVEL")]
    pub zap_log_level: Option<String>,
    /// Times are RFC 3339 whatever is said here
    #[arg(long, hide = true)]
    pub zap_time_encoding: Option<String>,
    /// There are no stack traces in our logs
    #[arg(long, hide = true)]
    pub zap_stacktrace_level: Option<String>,
}

/// Flags that tune what this program does not have. They are accepted, so that manifests keep working, and
/// said to be without effect when they are set.
#[derive(Debug, Clone, clap::Args)]
pub struct WithoutEffect {
    #[arg(long, hide = true)]
    pub enable_pprof: bool,
    #[arg(long, hide = true)]
    pub enable_pprof_debug: bool,
    #[arg(long, hide = true, allow_negative_numbers = true)]
    pub pprof_block_profile_rate: Option<i64>,
    #[arg(long, hide = true, allow_negative_numbers = true)]
    pub pprof_mutex_profile_fraction: Option<i64>,
}

/// [`Flags`], in Go's style.
#[derive(Debug, Clone)]
pub struct Options(pub Flags);

impl clap::Args for Options {
    fn augment_args(command: Command) -> Command {
        go::flags(Flags::augment_args(command))
    }

    fn augment_args_for_update(command: Command) -> Command {
        go::flags(Flags::augment_args_for_update(command))
    }
}

impl FromArgMatches for Options {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        Flags::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches(matches)
    }
}
