//! The command line: what there is to say, and how it is explained.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use asb_router::address::{Domain, PathPrefix};
use clap::{Parser, Subcommand};

/// Isolated, stateful environments for agents: on this machine, without a cluster.
#[derive(Debug, Parser)]
#[command(name = "asb", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Args {
    /// Where the engine keeps everything [default: /var/lib/asb for root, else the XDG state directory]
    #[arg(long, global = true, env = "ASB_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// What to log, e.g. `info`, `debug`, `asb_node=debug`
    #[arg(long, global = true, env = "ASB_LOG", value_name = "FILTER")]
    pub log: Option<String>,
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  asb run -- echo hello               run a command in a new sandbox, then remove it
  asb run --detach --name web         start a sandbox that stays
  asb exec web -- ls -l /             run a command in it
  asb ps                              see what is there
  asb link web 8000                   print a link to its port 8000 for a browser
  KUBECONFIG=$(asb kubeconfig) kubectl get sandboxes";

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the engine: the Kubernetes API, the controllers, the node and the router, in one process
    Up(Up),
    /// Stop the engine; sandboxes go on, and the next engine finds them
    Down,
    /// Run a command in a new sandbox
    Run(Run),
    /// Run a command in a sandbox that is there
    Exec(Exec),
    /// List sandboxes
    Ps(Ps),
    /// Show what the main process of a sandbox printed
    Logs(Logs),
    /// Copy files and directories into and out of a sandbox; no image needs a program for it
    Cp(Cp),
    /// Show what sandboxes use
    Top(Top),
    /// Print a signed link that opens a port of a sandbox in a browser
    Link(Link),
    /// Stop sandboxes and keep their volumes; `asb start` brings them back
    Stop(Stop),
    /// Start sandboxes that were stopped
    Start(Start),
    /// Remove sandboxes, with their storage
    Rm(Rm),
    /// See, export and import the volumes of sandboxes
    #[command(subcommand)]
    Volume(crate::commands::volume::Command),
    /// Copy the objects of the engine, and on request its volumes and images, while it runs
    Backup(crate::commands::backup::Backup),
    /// Make a new data directory from a backup
    Restore(crate::commands::backup::Restore),
    /// Print the path of the kubeconfig for this machine's API; into a file, write the kubeconfig itself
    Kubeconfig(Kubeconfig),
    /// Manage the images on this machine; works beside a running engine, and without one
    #[command(subcommand)]
    Image(crate::commands::image::Command),
    /// Show what sandboxes can have on this machine, and how to get what is missing; needs no engine
    Doctor(Doctor),
    /// Run the controllers against a Kubernetes cluster, as `agent-sandbox-controller` does
    Controller(Box<asb_operator::Options>),
    /// Run the router against a Kubernetes cluster, as `sandbox-router` does
    #[command(disable_help_flag = true)]
    Router(Router),
    /// Move the objects of a cluster from v1alpha1 to v1beta1
    Migrate(Migrate),
}

impl Command {
    /// Whether it serves many at once, until it is told to stop.
    pub fn is_service(&self) -> bool {
        matches!(self, Self::Up(_) | Self::Controller(_) | Self::Router(_))
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  asb up\n  asb up --detach --data-dir /tmp/asb --api 127.0.0.1:0")]
pub struct Up {
    /// Where the Kubernetes API listens; port 0 is any free one [default: the last one, else any free]
    #[arg(long, env = "ASB_API", value_name = "ADDR:PORT")]
    pub api: Option<SocketAddr>,
    /// Where the router listens; port 0 is any free one [default: the last one, else any free]
    #[arg(long, env = "ASB_ROUTER", value_name = "ADDR:PORT")]
    pub router: Option<SocketAddr>,
    /// Domain below which the router finds sandboxes by host, as `8000-web.default.DOMAIN`: browsers resolve names below
    /// `localhost` to this machine
    #[arg(long, env = "ASB_ROUTER_DOMAIN", value_name = "DOMAIN", default_value = "localhost")]
    #[arg(value_parser = parse_domain)]
    pub router_domain: Domain,
    /// Path below which the router finds sandboxes too, as PREFIX/NAMESPACE/NAME/PORT/; all of them share one origin in a
    /// browser [default: none]
    #[arg(long, env = "ASB_ROUTER_PATH_PREFIX", value_name = "PREFIX", value_parser = parse_path_prefix)]
    pub router_path_prefix: Option<PathPrefix>,
    /// Who may pass the router: `token` wants the secret in `router.token` of the data directory; `allow-all` lets every
    /// user and program of this machine into every sandbox, for clients that cannot send a token, and needs a loopback address
    #[arg(long, env = "ASB_ROUTER_AUTHZ", value_name = "MODE", value_enum, default_value_t)]
    pub router_authz: RouterAuthz,
    /// What of the disk under the data directory is kept free, as `2Gi` or `5%`: below that no new Pod starts, and
    /// whoever takes most is evicted; `auto` is 5%, but at most 1Gi; 0 is no floor
    #[arg(long, env = "ASB_DISK_FLOOR", value_name = "SIZE", default_value_t)]
    pub disk_floor: asb_node::Floor,
    /// A directory of this machine that Pods may use by `hostPath`, and everything below it; may be repeated. Root of a
    /// sandbox is root there
    #[arg(long, env = "ASB_ALLOW_HOST_PATH", value_name = "DIR", value_delimiter = ',')]
    pub allow_host_path: Vec<PathBuf>,
    /// Run privileged containers: root of one may mount, nest and trace in namespaces of the sandbox's own. It gets no device
    /// of this machine and no right over it, but more of the kernel to try
    #[arg(long, env = "ASB_ALLOW_PRIVILEGED", value_parser = clap::builder::BoolishValueParser::new())]
    pub allow_privileged: bool,
    #[command(flatten)]
    pub registries: Registries,
    /// Return when the engine is ready and leave it running
    #[arg(long, short)]
    pub detach: bool,
    /// Print the engine's addresses as JSON when it is ready
    #[arg(long)]
    pub json: bool,
}

/// Who may pass the router of `asb up`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum RouterAuthz {
    #[default]
    Token,
    AllowAll,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  asb run -- python3 -c 'print(6*7)'\n  echo hi | asb run -i -- cat\n  \
    asb run -it -- bash\n  asb run --detach --name web host\n  \
    asb run registry.example/team/python:3.12 -- python -c 'print(6*7)'")]
pub struct Run {
    /// The image, which is pulled unless it is here; `host` is made from this machine's own system directories
    #[arg(default_value = "host")]
    pub image: String,
    /// The command; without one the image's own runs, and `host` idles (needs --detach)
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<String>,
    /// Name of the sandbox [default: made up]
    #[arg(long)]
    pub name: Option<String>,
    /// Keep the sandbox when the command has ended
    #[arg(long)]
    pub keep: bool,
    /// Start it, print its name, and leave it running; CMD is its main process, whose output `asb logs` shows
    #[arg(long, short)]
    pub detach: bool,
    /// What makes the sandbox: native, runc, crun or gvisor, as far as `asb doctor` finds them [default: native]
    #[arg(long, env = "ASB_RUNTIME", value_name = "NAME")]
    pub runtime: Option<String>,
    /// Environment variables of the sandbox
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = parse_env)]
    pub env: Vec<(String, String)>,
    #[command(flatten)]
    pub streams: Streams,
    #[command(flatten)]
    pub target: Target,
    #[command(flatten)]
    pub registries: Registries,
}

/// Where images come from.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Registries")]
pub struct Registries {
    /// Where images whose names have no registry come from [default: nowhere]
    #[arg(long, env = "ASB_DEFAULT_REGISTRY", value_name = "HOST[/PATH]")]
    pub default_registry: Option<String>,
    /// Ask this mirror before the registry HOST; may be repeated
    #[arg(long, env = "ASB_REGISTRY_MIRROR", value_name = "HOST=URL", value_delimiter = ',')]
    #[arg(value_parser = asb_runtime::image::Mirror::parse)]
    pub registry_mirror: Vec<asb_runtime::image::Mirror>,
    /// Talk to this registry without TLS; those on this machine always are
    #[arg(long, env = "ASB_INSECURE_REGISTRY", value_name = "HOST", value_delimiter = ',')]
    pub insecure_registry: Vec<String>,
    /// Trust the authorities in this PEM file, besides those of the machine
    #[arg(long, env = "ASB_REGISTRY_CA", value_name = "FILE")]
    pub registry_ca: Option<PathBuf>,
    /// Logins, as `docker login` writes them [default: ~/.docker/config.json]; Pods use imagePullSecrets
    #[arg(long, env = "ASB_AUTH_FILE", value_name = "FILE")]
    pub auth_file: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  asb exec web -- ls -l\n  asb exec -it web -- bash")]
pub struct Exec {
    pub name: String,
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<String>,
    /// Which of several containers; the first one unless the Pod names its default
    #[arg(long, short)]
    pub container: Option<String>,
    #[command(flatten)]
    pub streams: Streams,
    #[command(flatten)]
    pub target: Target,
}

#[derive(Debug, clap::Args)]
pub struct Streams {
    /// Pass standard input on
    #[arg(long, short)]
    pub interactive: bool,
    /// Give the command a terminal
    #[arg(long, short)]
    pub tty: bool,
}

#[derive(Debug, clap::Args)]
pub struct Target {
    #[arg(long, short, default_value = "default", env = "ASB_NAMESPACE")]
    pub namespace: String,
}

#[derive(Debug, clap::Args)]
pub struct Ps {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// In all namespaces
    #[arg(long, short = 'A')]
    pub all_namespaces: bool,
    #[command(flatten)]
    pub target: Target,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Fails only when not even native sandboxes can run.")]
pub struct Doctor {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  asb logs web\n  asb logs -f --tail 10 web")]
pub struct Logs {
    pub name: String,
    /// Go on printing what comes
    #[arg(long, short)]
    pub follow: bool,
    /// Only the last lines
    #[arg(long)]
    pub tail: Option<i64>,
    /// Show when each line was printed
    #[arg(long)]
    pub timestamps: bool,
    /// Which of several containers; the first one unless the Pod names its default
    #[arg(long, short)]
    pub container: Option<String>,
    /// Of the instance before the one that runs
    #[arg(long, short)]
    pub previous: bool,
    #[command(flatten)]
    pub target: Target,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  asb cp notes.txt web:/tmp/\n  asb cp web:/var/log ./logs\n  \
    asb cp web:/etc/hosts - | wc -l\n  echo hi | asb cp - web:/tmp/hi\n  \
    tar c . | asb cp --tar - web:/work\n\nA directory goes into one that is there, and else becomes what is named, \
    as with `cp -r`.\nCopies belong to whoever makes them; links that lead elsewhere are left out.")]
pub struct Cp {
    /// What to copy: PATH, NAME:PATH in a sandbox, or `-` for standard input
    #[arg(value_name = "SOURCE")]
    pub from: String,
    /// Where to: PATH, NAME:PATH in a sandbox, or `-` for standard output
    #[arg(value_name = "TARGET")]
    pub to: String,
    /// With `-`: a tar archive instead of the bytes of one file
    #[arg(long)]
    pub tar: bool,
    #[command(flatten)]
    pub target: Target,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  asb top\n  asb top --no-stream --json")]
pub struct Top {
    /// Print once; also when the output is no terminal
    #[arg(long)]
    pub no_stream: bool,
    /// Seconds between two looks
    #[arg(long, default_value = "2", value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=60))]
    pub interval: u64,
    /// Print JSON, once
    #[arg(long)]
    pub json: bool,
    /// In all namespaces
    #[arg(long, short = 'A')]
    pub all_namespaces: bool,
    #[command(flatten)]
    pub target: Target,
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  asb link web\n  asb link web 8000 --ttl 15m --path /docs/\n\nThe link opens this port of \
    this sandbox and nothing else. Every holder of the link can use it until it expires."
)]
pub struct Link {
    pub name: String,
    /// Port inside the sandbox
    #[arg(default_value = "8888", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,
    /// How long the link works, as `15m` or `1h`; at most 30 days
    #[arg(long, default_value = "1h", value_name = "DURATION", value_parser = parse_ttl)]
    pub ttl: Duration,
    /// What to open, with a query if need be
    #[arg(long, default_value = "/", value_parser = parse_link_path)]
    pub path: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub target: Target,
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  asb stop web\n  asb start web\n\nProcesses end, and what they wrote outside of \
    volumes goes with them; volumes, name and settings stay."
)]
pub struct Stop {
    #[arg(required = true)]
    pub names: Vec<String>,
    #[command(flatten)]
    pub target: Target,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  asb start web")]
pub struct Start {
    #[arg(required = true)]
    pub names: Vec<String>,
    #[command(flatten)]
    pub target: Target,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  asb rm web\n  asb rm --all")]
pub struct Rm {
    #[arg(required_unless_present = "all")]
    pub names: Vec<String>,
    /// Every sandbox of the namespace
    #[arg(long, conflicts_with = "names")]
    pub all: bool,
    #[command(flatten)]
    pub target: Target,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  export KUBECONFIG=$(asb kubeconfig)\n  asb kubeconfig > ~/.kube/asb")]
pub struct Kubeconfig {
    /// Print the kubeconfig itself, wherever the output goes; it holds a token
    #[arg(long)]
    pub raw: bool,
}

/// The router reads its flags itself, because a file and the environment may hold some too.
#[derive(Debug, clap::Args)]
pub struct Router {
    /// Flags of the router; `asb router --help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FLAG")]
    pub flags: Vec<String>,
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Before the upgrade:\n  asb migrate --phase bootstrap\nAfter it:\n  asb migrate --phase migrate"
)]
pub struct Migrate {
    #[arg(long, value_enum)]
    pub phase: Phase,
    /// Only show what would be written
    #[arg(long, env = "MIGRATE_DRY_RUN")]
    pub dry_run: bool,
    /// Only the objects of this namespace [default: all]
    #[arg(long)]
    pub namespace: Option<String>,
    /// The cluster [default: the cluster this runs in, else the usual kubeconfig]
    #[arg(long, env = "KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Phase {
    /// Make the pools that claims without one will belong to
    Bootstrap,
    /// Write every object once, so that it is stored at v1beta1
    Migrate,
}

/// Logs go to stderr. Only long-running commands log by default; the others speak through their output.
pub fn init_logging(args: &Args) {
    let default = match args.command {
        Command::Up(_) => "info",
        // Has log flags of its own.
        Command::Controller(_) | Command::Router(_) => return,
        // What the client says of a request that failed comes back as the command's error.
        _ => "error,kube_client=off",
    };
    let filter = tracing_subscriber::EnvFilter::try_new(args.log.as_deref().unwrap_or(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter.unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(default)))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}

fn parse_env(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is not NAME=VALUE")),
    }
}

fn parse_domain(text: &str) -> Result<Domain, String> {
    text.parse().map_err(|error| format!("{error}"))
}

fn parse_path_prefix(text: &str) -> Result<PathPrefix, String> {
    text.parse().map_err(|error| format!("{error}"))
}

/// The longest life of a link: it cannot be taken back before it ends.
const LONGEST_LINK: Duration = Duration::from_secs(30 * 24 * 3600);

fn parse_ttl(text: &str) -> Result<Duration, String> {
    let parsed = text.parse::<jiff::SignedDuration>().ok().and_then(|ttl| Duration::try_from(ttl).ok());
    let ttl = parsed.ok_or_else(|| "write a duration as `90s`, `15m` or `24h`".to_owned())?;
    match ttl >= Duration::from_secs(1) && ttl <= LONGEST_LINK {
        true => Ok(ttl),
        false => Err("a link works for at least 1s and at most 720h (30 days)".to_owned()),
    }
}

fn parse_link_path(text: &str) -> Result<String, String> {
    let printable = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
    match text.starts_with('/') && printable && text.parse::<http::uri::PathAndQuery>().is_ok() {
        true => Ok(text.to_owned()),
        false => {
            Err("a path begins with `/` and has other characters than ASCII, and `#`, in percent encoding"
                .to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_consistent() {
        <Args as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn image_comes_before_the_dashes_and_the_command_after() {
        let args = Args::parse_from(["asb", "run", "img", "--", "echo", "--help"]);
        let Command::Run(run) = args.command else { panic!("run was given") };
        assert_eq!((run.image.as_str(), run.command.join(" ")), ("img", "echo --help".to_owned()));
    }
    #[test]
    fn link_has_a_port_a_life_and_a_path() {
        let link = |more: &[&str]| match Args::try_parse_from([&["asb", "link", "web"], more].concat()) {
            Ok(Args { command: Command::Link(link), .. }) => Some((link.port, link.ttl.as_secs(), link.path)),
            _ => None,
        };
        assert_eq!(link(&[]), Some((8888, 3600, "/".to_owned())));
        let given = link(&["80", "--ttl", "15m", "--path", "/a?b=%20"]);
        assert_eq!(given, Some((80, 900, "/a?b=%20".to_owned())));
        for bad in [
            &["0"][..],
            &["--ttl", "0s"],
            &["--ttl", "-5m"],
            &["--ttl", "soon"],
            &["--ttl", "721h"],
            &["--path", "x"],
            &["--path", "/a#b"],
            &["--path", "/a b"],
            &["--path", "/a\r\nb"],
        ] {
            assert_eq!(link(bad), None, "{bad:?}");
        }
    }
}
