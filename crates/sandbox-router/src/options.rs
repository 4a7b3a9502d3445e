//! The flags, under the names of the reference router, and those that only this router has.

use std::path::PathBuf;
use std::time::Duration;

use asb_goflags as go;
use clap::Parser;

/// Carries HTTP from one address to the sandbox that a request names.
#[derive(Debug, Clone, Parser)]
#[command(name = "sandbox-router", disable_version_flag = true, max_term_width = 100, after_help = AFTER_HELP)]
pub struct Flags {
    /// Print the version and exit
    #[arg(long)]
    pub version: bool,
    /// YAML file with flags, as `proxy-timeout: 60s`; the command line wins [env: SANDBOX_ROUTER_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The cluster [default: the cluster this runs in, else the usual kubeconfig] [env: KUBECONFIG]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    #[command(flatten)]
    pub listeners: ListenerFlags,
    #[command(flatten)]
    pub authorization: AuthorizationFlags,
    #[command(flatten)]
    pub addressing: AddressingFlags,
    #[command(flatten)]
    pub limits: LimitFlags,
    #[command(flatten)]
    pub reports: ReportFlags,
}

const AFTER_HELP: &str = "\
Each flag may also be a key of the --config file. Precedence: command line, file, environment, default.
Without any of the --authz flags the router does not start.";

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Listeners")]
pub struct ListenerFlags {
    /// Where HTTP is served; empty for nowhere
    #[arg(long, default_value = ":8080", value_name = "ADDRESS")]
    pub http_bind_address: String,
    /// Where HTTPS is served; empty for nowhere
    #[arg(long, default_value = "", hide_default_value = true, value_name = "ADDRESS")]
    pub https_bind_address: String,
    /// Where /metrics is served; empty for nowhere
    #[arg(long, default_value = ":9090", value_name = "ADDRESS")]
    pub metrics_bind_address: String,
    /// Where /healthz and /readyz are served; empty for nowhere
    #[arg(long, default_value = ":8081", value_name = "ADDRESS")]
    pub health_probe_bind_address: String,
    /// Certificate chain of the HTTPS listener, PEM; read again when it changes
    #[arg(long, value_name = "FILE")]
    pub tls_cert_file: Option<PathBuf>,
    /// Key of the HTTPS listener, PEM; read again when it changes
    #[arg(long, value_name = "FILE")]
    pub tls_key_file: Option<PathBuf>,
    /// Authorities that sign the certificates of clients, PEM
    #[arg(long, value_name = "FILE")]
    pub tls_client_ca_file: Option<PathBuf>,
    /// Certificates of clients: off, optional (checked if there is one) or required
    #[arg(long, default_value = "off", value_name = "MODE")]
    pub mtls_mode: String,
    /// After SIGTERM: how long connections are still taken while /readyz already answers 503
    #[arg(long, default_value = "0s", value_parser = go::duration, value_name = "DURATION")]
    pub shutdown_delay: Duration,
    /// After that: how long requests in flight may take to end
    #[arg(long, default_value = "30s", value_parser = go::duration, value_name = "DURATION")]
    pub shutdown_timeout: Duration,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Authorisation")]
pub struct AuthorizationFlags {
    /// Who may pass, one or several of: tokenreview, scoped-token, shared-token; or allow-all alone [env:
    /// ALLOW_UNAUTHENTICATED_ROUTER=true means allow-all]
    #[arg(long, default_value = "", hide_default_value = true, value_name = "MODE,...")]
    pub authz_mode: String,
    /// Let connections from this machine's loopback pass without credentials. Only for a Pod of its own network: there
    /// they come by `kubectl port-forward`, which the API server has authorised. Never with hostNetwork or a proxy
    /// beside the router
    #[arg(long)]
    pub authz_trust_loopback: bool,
    /// File with the token of mode shared-token [env: ROUTER_AUTH_TOKEN holds the token itself]
    #[arg(long, value_name = "FILE")]
    pub authz_shared_token_file: Option<PathBuf>,
    /// Mode tokenreview: how long an answer counts
    #[arg(long, default_value = "30s", value_parser = go::duration, value_name = "DURATION")]
    pub authz_tokenreview_ttl: Duration,
    /// Mode tokenreview: how many answers are kept
    #[arg(long, default_value_t = 2048, value_name = "N", allow_negative_numbers = true)]
    pub authz_tokenreview_cache_size: i64,
    /// Mode tokenreview: refuse requests without a token. `=false` lets them pass, as the reference does by default
    #[arg(long, default_value_t = true)]
    pub authz_tokenreview_require_token: bool,
    /// Mode tokenreview: audiences that a token must be for
    #[arg(long, default_value = "", hide_default_value = true, value_name = "AUDIENCE,...")]
    pub authz_tokenreview_audiences: String,
    /// Mode tokenreview: ask the API server whether the user may reach this very sandbox. `=false` lets every
    /// authenticated user reach every sandbox, as the reference does
    #[arg(long, default_value_t = true)]
    pub authz_subject_access_review: bool,
    /// Mode scoped-token: file with the secret of v1 tokens, 32 bytes or more
    #[arg(long, value_name = "FILE")]
    pub authz_scoped_token_secret_file: Option<PathBuf>,
    /// Mode scoped-token: file with the public keys of v2 tokens
    #[arg(long, value_name = "FILE")]
    pub authz_scoped_token_verification_keys_file: Option<PathBuf>,
    /// Take scoped tokens from this cookie too, so that a browser can open a sandbox's pages
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAME")]
    pub authz_cookie_name: String,
    /// Set the cookie from this parameter of a link
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAME")]
    pub authz_cookie_query_param: String,
    /// SameSite of the cookie: lax, strict or none
    #[arg(long, default_value = "lax", value_name = "VALUE")]
    pub authz_cookie_samesite: String,
    /// Set the cookie without Secure, for tests without TLS
    #[arg(long)]
    pub authz_cookie_insecure: bool,
    /// Origins of other sites whose pages may use the cookie
    #[arg(long, default_value = "", hide_default_value = true, value_name = "ORIGIN,...")]
    pub authz_cookie_allowed_origins: String,
    /// Believe X-Forwarded-Proto of trusted proxies
    #[arg(long)]
    pub authz_trust_forwarded_proto: bool,
    /// Proxies whose X-Forwarded-For is believed [env: TRUSTED_PROXY_CIDRS]
    #[arg(long, default_value = "", hide_default_value = true, value_name = "CIDR,...")]
    pub trusted_proxy_cidrs: String,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Sandboxes")]
pub struct AddressingFlags {
    /// Also take the sandbox from paths: PREFIX/NAMESPACE/NAME/PORT/...
    #[arg(long, default_value = "", hide_default_value = true, value_name = "PREFIX")]
    pub path_routing_prefix: String,
    /// Also take the sandbox from host names below this domain
    #[arg(long, default_value = "", hide_default_value = true, value_name = "DOMAIN")]
    pub host_routing_domain: String,
    /// Accept loopback addresses in X-Sandbox-Pod-IP
    #[arg(long)]
    pub allow_loopback_pod_ip: bool,
    /// Suffix of Service names [env: CLUSTER_DOMAIN]
    #[arg(long, default_value = "cluster.local", value_name = "DOMAIN")]
    pub cluster_domain: String,
    /// Accepted for compatibility: this router always watches Pods and Sandboxes
    #[arg(long, default_value_t = true)]
    pub cache_enabled: bool,
    /// Only this namespace [default: all]
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAMESPACE")]
    pub cache_namespace: String,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitFlags {
    /// From a request, or the last byte of its body, to the sandbox's response [env: PROXY_TIMEOUT_SECONDS]
    #[arg(long, default_value = "180s", value_parser = go::duration, value_name = "DURATION")]
    pub proxy_timeout: Duration,
    /// Accepted for compatibility: one budget counts, --proxy-timeout
    #[arg(long, value_parser = go::duration, value_name = "DURATION")]
    pub response_header_timeout: Option<Duration>,
    /// Largest body of a request; 0 for no limit
    #[arg(long, default_value_t = 0, value_name = "BYTES", allow_negative_numbers = true)]
    pub max_request_body_bytes: i64,
    /// More attempts to connect to a sandbox
    #[arg(long, default_value_t = 6, value_name = "N", allow_negative_numbers = true)]
    pub upstream_max_retries: i64,
    /// Wait before the second attempt
    #[arg(long, default_value = "20ms", value_parser = go::duration, value_name = "DURATION")]
    pub upstream_retry_initial_delay: Duration,
    /// Longest wait between attempts
    #[arg(long, default_value = "800ms", value_parser = go::duration, value_name = "DURATION")]
    pub upstream_retry_max_delay: Duration,
    /// Open connections of all callers, tunnels included
    #[arg(long, default_value_t = 16384, value_name = "N", allow_negative_numbers = true)]
    pub max_connections: i64,
    /// Open connections of one address; 0 for no limit
    #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true)]
    pub max_connections_per_address: i64,
    /// Refused requests (401, 403) of one address in a second; more have to wait; 0 for no limit
    #[arg(long, default_value_t = 20, value_name = "N", allow_negative_numbers = true)]
    pub max_refusals_per_address: i64,
    /// Requests of one caller at once; 0 for no limit
    #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true)]
    pub max_requests_per_client: i64,
    /// Requests to one sandbox at once; 0 for no limit
    #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true)]
    pub max_requests_per_sandbox: i64,
    /// Requests of one caller in a second; 0 for no limit
    #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true)]
    pub max_rate_per_client: i64,
    /// Requests to one sandbox in a second; 0 for no limit
    #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true)]
    pub max_rate_per_sandbox: i64,
    /// All headers of one request together
    #[arg(long, default_value_t = 65536, value_name = "BYTES", allow_negative_numbers = true)]
    pub max_header_bytes: i64,
    /// How long a connection without a request is kept; longer than proxies in front keep theirs
    #[arg(long, default_value = "120s", value_parser = go::duration, value_name = "DURATION")]
    pub keep_alive_timeout: Duration,
    /// Close a connection with a request on which nothing has moved for this long; a request as a whole may take any time
    #[arg(long, default_value = "1h", value_parser = go::duration, value_name = "DURATION")]
    pub idle_timeout: Duration,
    /// WebSockets and other tunnels of one caller; 0 for no limit [env: WEBSOCKET_MAX_CONNECTIONS_PER_CLIENT]
    #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true)]
    pub max_tunnels_per_client: i64,
    /// WebSockets and other tunnels to one sandbox; 0 for no limit
    #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true)]
    pub max_tunnels_per_sandbox: i64,
    /// Close a tunnel that is silent for this long; 0 for never [env: WEBSOCKET_IDLE_TIMEOUT_SECONDS]
    #[arg(long, default_value = "1h", value_parser = go::duration, value_name = "DURATION")]
    pub tunnel_idle_timeout: Duration,
    /// Close every tunnel after this time; 0 for never [env: WEBSOCKET_MAX_LIFETIME_SECONDS]
    #[arg(long, default_value = "0", value_parser = go::duration, value_name = "DURATION")]
    pub tunnel_max_lifetime: Duration,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Reports")]
pub struct ReportFlags {
    /// A line for each request
    #[arg(long, default_value_t = true)]
    pub access_log: bool,
    /// Export traces by OTLP over gRPC [default: when OTEL_EXPORTER_OTLP_ENDPOINT or ..._TRACES_ENDPOINT is set]
    #[arg(long)]
    pub enable_tracing: bool,
    /// Export metrics by OTLP over gRPC too [default: when OTEL_EXPORTER_OTLP_ENDPOINT or ..._METRICS_ENDPOINT is set]
    #[arg(long)]
    pub enable_otel_metrics: bool,
    /// Readable lines and debug messages, for development
    #[arg(long)]
    pub zap_devel: bool,
    /// json or console [default: json, with --zap-devel console]
    #[arg(long, value_name = "ENCODER")]
    pub zap_encoder: Option<String>,
    /// debug, info, error, panic, or a number; the higher, the more [default: info, with --zap-devel debug]
    #[arg(long, value_name = "LEVEL")]
    pub zap_log_level: Option<String>,
    #[arg(long, hide = true)]
    pub zap_time_encoding: Option<String>,
    #[arg(long, hide = true)]
    pub zap_stacktrace_level: Option<String>,
}

impl Flags {
    /// The command with Go's habits: of a flag that is given twice the last counts, and booleans take `=false`.
    pub fn go_command() -> clap::Command {
        go::flags(<Self as clap::CommandFactory>::command())
    }

    pub fn parse_arguments(arguments: &[String]) -> Result<Self, clap::Error> {
        let program = std::iter::once("sandbox-router".to_owned());
        let matches = Self::go_command().try_get_matches_from(program.chain(arguments.iter().cloned()))?;
        <Self as clap::FromArgMatches>::from_arg_matches(&matches)
    }
}
