//! The command line. By hand: an argument parser would be a third of the binary.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use crate::duration;

pub const USAGE: &str = "\
usage: asb-sandboxd [FLAGS]
       asb-sandboxd install DIR
       asb-sandboxd pack PATH > ARCHIVE
       asb-sandboxd unpack TARGET NAME < ARCHIVE

All APIs (legacy, REST /v1, gRPC) are served on every port.

  --listen-host ADDRESS        address to listen on (default 0.0.0.0)
  --legacy-port PORT           default 8888; 0 = none
  --rest-port PORT             default 8080
  --grpc-port PORT             default 9090
  --port PORT                  listen on exactly this port instead of the three; repeatable; 0 = any free port, which
                               is printed on stdout
  --root-dir DIR               root of /v1 and gRPC, created if missing (default $SANDBOX_BASE_DIR, else /workspace, /app
                               or the current directory, the first that exists)
  --metadata-env-prefix TEXT   variables that /v1/metadata shows (default SANDBOX_)
  --shutdown-timeout DURATION  time for a graceful stop (default 10s)
  --http-idle-timeout DURATION closes connections without requests (default 60s; 0 = never)
  --stream-chunk-size BYTES    largest stdout or stderr message of a gRPC stream (default 4096)
  --token-file FILE            requests need `Authorization: Bearer TOKEN` with the token in FILE, except GET / and
                               GET /v1/health (default $SANDBOXD_TOKEN_FILE, else no authentication)
  --detach                     go to the background; returns once it listens
  --announce                   print `listening` once it listens, then let go of the standard streams
  --version                    print the version
  --help                       print this text
  install (or copy-to)         copy this program to DIR/sandboxd
  pack                         write a file or directory as a tar archive
  unpack                       put an archive at TARGET, or in it under NAME where that is a directory

environment:
  SANDBOX_BASE_DIR               root of legacy file calls, working directory of legacy commands (default /app, else the
                                 current directory)
  SANDBOX_EXEC_TIMEOUT_SECONDS   wall-clock limit of one legacy command (default 300)
  SANDBOX_EXEC_MAX_OUTPUT_BYTES  limit of stdout and of stderr of one legacy command (default 16777216)";

const MAX_CHUNK: usize = 1 << 20;

#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    Serve(Options),
    Print(String),
    Install { directory: PathBuf },
    Pack { path: PathBuf },
    Unpack { target: PathBuf, name: OsString },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub host: IpAddr,
    pub ports: Vec<Port>,
    pub root: Option<PathBuf>,
    pub metadata_prefix: String,
    pub shutdown_timeout: Duration,
    pub idle_timeout: Duration,
    pub chunk: usize,
    pub token_file: Option<PathBuf>,
    pub detach: bool,
    pub announce: bool,
}

/// A port to listen on, and the flag that chooses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub flag: &'static str,
    pub number: u16,
    /// The flag was given, so the port must be free.
    pub given: bool,
}

impl Default for Options {
    fn default() -> Self {
        let port = |flag, number| Port { flag, number, given: false };
        Self {
            host: Ipv4Addr::UNSPECIFIED.into(),
            ports: vec![port("--legacy-port", 8888), port("--rest-port", 8080), port("--grpc-port", 9090)],
            root: None,
            metadata_prefix: "SANDBOX_".to_owned(),
            shutdown_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            chunk: 4096,
            token_file: None,
            detach: false,
            announce: false,
        }
    }
}

pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, String> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if arguments.first().is_some_and(|word| !word.as_encoded_bytes().starts_with(b"-")) {
        return verb(&arguments);
    }
    let text = |argument: OsString| {
        argument.into_string().map_err(|argument| format!("`{}` is not UTF-8", argument.display()))
    };
    let mut arguments = arguments.into_iter().map(text).collect::<Result<Vec<_>, _>>()?.into_iter();
    let mut options = Options::default();
    let mut exact = Vec::new();
    while let Some(argument) = arguments.next() {
        let (flag, value) = match argument.split_once('=') {
            Some((flag, value)) => (flag, Some(value.to_owned())),
            None => (&*argument, None),
        };
        // Programs written in Go take one dash or two.
        let flag = format!("--{}", flag.trim_start_matches('-'));
        let off =
            value.as_deref().is_some_and(|value| ["false", "0", "f", "F", "False", "FALSE"].contains(&value));
        match flag.as_str() {
            "--version" if off => continue,
            "--version" => return Ok(Command::Print(format!("asb-sandboxd {}", env!("CARGO_PKG_VERSION")))),
            "--help" | "--h" => return Ok(Command::Print(USAGE.to_owned())),
            "--detach" => options.detach = !off,
            "--announce" => options.announce = !off,
            "--zap-devel" => {}
            _ => {
                let mut value =
                    || value.clone().or_else(|| arguments.next()).ok_or(format!("`{flag}` needs a value"));
                set(&mut options, &mut exact, &flag, &mut value)?;
            }
        }
    }
    if !exact.is_empty() {
        options.ports = exact;
    }
    options.ports.retain(|port| port.number != 0 || port.flag == "--port");
    check_ports(&options.ports)?;
    Ok(Command::Serve(options))
}

fn set(
    options: &mut Options,
    exact: &mut Vec<Port>,
    flag: &str,
    value: &mut dyn FnMut() -> Result<String, String>,
) -> Result<(), String> {
    match flag {
        "--port" => exact.push(Port { flag: "--port", number: port(flag, &value()?, 0)?, given: true }),
        "--legacy-port" | "--rest-port" | "--grpc-port" => {
            let number = port(flag, &value()?, u16::from(flag != "--legacy-port"))?;
            if let Some(known) = options.ports.iter_mut().find(|port| port.flag == flag) {
                (known.number, known.given) = (number, true);
            }
        }
        "--listen-host" => {
            let text = value()?;
            options.host = text.parse().map_err(|_| format!("`{flag} {text}` is not an IP address"))?;
        }
        "--root-dir" => options.root = Some(value()?.into()),
        "--metadata-env-prefix" => options.metadata_prefix = value()?,
        "--shutdown-timeout" => options.shutdown_timeout = duration::parse(flag, &value()?)?,
        "--http-idle-timeout" => options.idle_timeout = idle(flag, &value()?)?,
        "--stream-chunk-size" => options.chunk = chunk(flag, &value()?)?,
        "--token-file" => options.token_file = Some(value()?.into()),
        _ if flag.starts_with("--zap-") => drop(value()?),
        _ => return Err(format!("unexpected argument `{flag}`")),
    }
    Ok(())
}

/// `words` begins with the verb. What follows are paths, so any bytes.
fn verb(words: &[OsString]) -> Result<Command, String> {
    let verb = words.first().map(|word| word.to_string_lossy()).unwrap_or_default();
    match (&*verb, words.get(1..).unwrap_or_default()) {
        ("pack", [path]) => Ok(Command::Pack { path: path.into() }),
        ("unpack", [target, name]) => Ok(Command::Unpack { target: target.into(), name: name.clone() }),
        ("install" | "copy-to", [directory]) => Ok(Command::Install { directory: directory.into() }),
        ("pack" | "unpack" | "install" | "copy-to", given) => {
            let wanted = if verb == "unpack" { "2 arguments" } else { "1 argument" };
            Err(format!("`{verb}` takes {wanted}, not {}", given.len()))
        }
        _ => Err(format!("unexpected argument `{verb}`")),
    }
}

fn port(flag: &str, value: &str, lowest: u16) -> Result<u16, String> {
    let number = value.parse().ok().filter(|number| *number >= lowest);
    number.ok_or_else(|| format!("`{flag} {value}` is not a number between {lowest} and 65535"))
}

/// 0 is no limit, as in Go.
fn idle(flag: &str, value: &str) -> Result<Duration, String> {
    let limit = duration::parse(flag, value)?;
    Ok(if limit.is_zero() { duration::LONGEST } else { limit })
}

fn chunk(flag: &str, value: &str) -> Result<usize, String> {
    match value.parse() {
        Ok(0) => Ok(Options::default().chunk),
        Ok(size @ 1..=MAX_CHUNK) => Ok(size),
        _ => Err(format!("`{flag} {value}` is not a number of bytes between 0 and {MAX_CHUNK}")),
    }
}

fn check_ports(ports: &[Port]) -> Result<(), String> {
    for (index, port) in ports.iter().enumerate() {
        let same = ports[..index].iter().find(|other| other.number == port.number && port.number != 0);
        if let Some(other) = same {
            return Err(format!("`{}` and `{}` are both {}", other.flag, port.flag, port.number));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_words(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(OsString::from))
    }

    fn options(line: &str) -> Options {
        match parse_words(line) {
            Ok(Command::Serve(options)) => options,
            other => panic!("{other:?}"),
        }
    }

    fn ports(line: &str) -> Vec<(u16, bool)> {
        options(line).ports.iter().map(|port| (port.number, port.given)).collect()
    }

    #[test]
    fn the_defaults_are_three_ports_in_the_foreground() {
        assert_eq!(options(""), Options::default());
        assert_eq!(ports(""), [(8888, false), (8080, false), (9090, false)]);
    }

    #[test]
    fn ports_are_changed_one_by_one_or_named_exactly() {
        assert_eq!(ports("--rest-port 81 --grpc-port=91"), [(8888, false), (81, true), (91, true)]);
        assert_eq!(ports("--legacy-port 0"), [(8080, false), (9090, false)]);
        assert_eq!(ports("--port 0 --port 7 --port 0"), [(0, true), (7, true), (0, true)]);
        assert!(parse_words("--rest-port 9090").is_err_and(|problem| problem.contains("--grpc-port")));
        assert!(parse_words("--grpc-port 0").is_err_and(|problem| problem.contains("between 1 and 65535")));
    }

    #[test]
    fn flags_of_the_reference_daemon_are_understood() {
        let line = "--listen-host 127.0.0.1 --root-dir /r --metadata-env-prefix X_ --shutdown-timeout 1m30s \
            -http-idle-timeout=5s --stream-chunk-size 0 --zap-devel --zap-log-level debug --zap-encoder=json --version=false";
        let given = options(line);
        assert_eq!(given.host, IpAddr::from([127, 0, 0, 1]));
        assert_eq!((given.root, given.metadata_prefix.as_str()), (Some("/r".into()), "X_"));
        assert_eq!((given.shutdown_timeout.as_secs(), given.idle_timeout.as_secs()), (90, 5));
        assert_eq!(given.chunk, 4096);
    }

    #[test]
    fn a_port_is_given_as_one_word_or_two() {
        for line in ["--port 0 --detach", "--detach --port=0"] {
            assert_eq!((ports(line), options(line).detach), (vec![(0, true)], true));
        }
    }

    #[test]
    fn it_announces_itself_only_if_asked_to() {
        assert!(options("--announce").announce && !options("--announce=false").announce);
    }

    #[test]
    fn archives_are_packed_and_unpacked_and_the_program_installs_itself() {
        assert_eq!(parse_words("pack /a"), Ok(Command::Pack { path: "/a".into() }));
        assert_eq!(parse_words("unpack /a b"), Ok(Command::Unpack { target: "/a".into(), name: "b".into() }));
        assert_eq!(parse_words("install /a"), Ok(Command::Install { directory: "/a".into() }));
        assert!(
            parse_words("pack").is_err()
                && parse_words("unpack /a").is_err()
                && parse_words("install").is_err()
        );
    }

    #[test]
    fn a_wrong_argument_is_named() {
        assert!(parse_words("--prot 1").is_err_and(|message| message.contains("--prot")));
        assert!(parse_words("--port 70000").is_err_and(|message| message.contains("70000")));
        assert!(parse_words("--port").is_err());
        assert!(
            parse_words("--shutdown-timeout soon")
                .is_err_and(|message| message.contains("--shutdown-timeout soon"))
        );
        assert!(parse_words("serve").is_err_and(|message| message.contains("serve")));
    }
}
