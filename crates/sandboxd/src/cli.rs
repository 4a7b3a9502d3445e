//! The command line. By hand: an argument parser would be a third of the binary.

use std::ffi::OsString;
use std::path::PathBuf;

pub const USAGE: &str = "\
usage: asb-sandboxd [--port PORT] [--detach]
       asb-sandboxd pack PATH > ARCHIVE
       asb-sandboxd unpack TARGET NAME < ARCHIVE

  --port PORT   listen on 0.0.0.0:PORT (default 8888; 0 = any free port, printed on stdout)
  --detach      go to the background; returns once it listens
  --version     print the version
  --help        print this text
  pack          write a file or directory as a tar archive
  unpack        put an archive at TARGET, or in it under NAME where that is a directory

environment:
  SANDBOX_BASE_DIR               root of file calls, working directory of commands (default /app, else the current directory)
  SANDBOX_EXEC_TIMEOUT_SECONDS   wall-clock limit of one command (default 300)
  SANDBOX_EXEC_MAX_OUTPUT_BYTES  limit of stdout and of stderr of one command (default 16777216)";

#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    Serve(Options),
    Print(String),
    Pack { path: PathBuf },
    Unpack { target: PathBuf, name: OsString },
}

#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    pub port: u16,
    pub detach: bool,
}

pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Command, String> {
    let mut options = Options { port: 8888, detach: false };
    let mut arguments = arguments.into_iter().peekable();
    if let Some(verb @ ("pack" | "unpack")) = arguments.peek().map(String::as_str) {
        let wanted = if verb == "pack" { 1 } else { 2 };
        let verb = verb.to_owned();
        let words: Vec<String> = arguments.skip(1).collect();
        return match &words[..] {
            [path] if wanted == 1 => Ok(Command::Pack { path: path.into() }),
            [target, name] if wanted == 2 => Ok(Command::Unpack { target: target.into(), name: name.into() }),
            _ => Err(format!("`{verb}` takes {wanted} arguments, not {}", words.len())),
        };
    }
    while let Some(argument) = arguments.next() {
        let (flag, value) = match argument.split_once('=') {
            Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
            None => (argument, None),
        };
        match flag.as_str() {
            "--port" => options.port = port(value.or_else(|| arguments.next()))?,
            "--detach" if value.is_none() => options.detach = true,
            "--version" => return Ok(Command::Print(format!("asb-sandboxd {}", env!("CARGO_PKG_VERSION")))),
            "--help" | "-h" => return Ok(Command::Print(USAGE.to_owned())),
            _ => return Err(format!("unexpected argument `{flag}`")),
        }
    }
    Ok(Command::Serve(options))
}

fn port(value: Option<String>) -> Result<u16, String> {
    let value = value.ok_or("`--port` needs a value")?;
    value.parse().map_err(|_| format!("`--port {value}` is not a number between 0 and 65535"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_words(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn the_defaults_are_port_8888_in_the_foreground() {
        assert_eq!(parse_words(""), Ok(Command::Serve(Options { port: 8888, detach: false })));
    }

    #[test]
    fn a_port_is_given_as_one_word_or_two() {
        let wanted = Ok(Command::Serve(Options { port: 0, detach: true }));
        assert_eq!(parse_words("--port 0 --detach"), wanted);
        assert_eq!(parse_words("--detach --port=0"), wanted);
    }

    #[test]
    fn archives_are_packed_and_unpacked() {
        assert_eq!(parse_words("pack /a"), Ok(Command::Pack { path: "/a".into() }));
        assert_eq!(parse_words("unpack /a b"), Ok(Command::Unpack { target: "/a".into(), name: "b".into() }));
        assert!(parse_words("pack").is_err() && parse_words("unpack /a").is_err());
    }

    #[test]
    fn a_wrong_argument_is_named() {
        assert!(parse_words("--prot 1").is_err_and(|message| message.contains("--prot")));
        assert!(parse_words("--port 70000").is_err_and(|message| message.contains("70000")));
        assert!(parse_words("--port").is_err());
    }
}
