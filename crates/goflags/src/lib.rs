//! Flags as Go programs take them: those of the reference implementation must mean the same here.

#![cfg_attr(test, allow(clippy::unwrap_used))]

use std::time::Duration;

use clap::builder::ValueParser;
use clap::{ArgAction, Command};

/// Makes the flags of a command behave as in Go: of a flag that is given twice the last counts, and booleans
/// accept `--flag`, `--flag=true` and `--flag=false`.
///
/// Never `--flag false`: in Go, too, a boolean takes its value only after `=`.
pub fn flags(command: Command) -> Command {
    command.args_override_self(true).mut_args(|arg| {
        if !matches!(arg.get_action(), ArgAction::SetTrue) {
            return arg;
        }
        let default = arg.get_default_values().first().cloned().unwrap_or_else(|| "false".into());
        arg.action(ArgAction::Set)
            .num_args(0..=1)
            .require_equals(true)
            .value_name("true|false")
            .default_value(default)
            .default_missing_value("true")
            .value_parser(ValueParser::from(boolean))
    })
}

/// Turns `-flag` into `--flag`: Go makes no difference between them.
pub fn dashes(argument: String) -> String {
    let long = argument.strip_prefix('-').is_some_and(|rest| rest.len() > 1 && !rest.starts_with('-'));
    if long { format!("-{argument}") } else { argument }
}

fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("neither true nor false".to_owned()),
    }
}

/// Reads a duration such as `5m`, `1m30s`, `1.5h`, `500ms` or `0`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "not a duration such as 500ms, 30s, 1m30s or 0".to_owned();
    if text.starts_with('-') {
        return Err("a duration cannot be negative".to_owned());
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(wrong());
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let (number, after) = rest.split_at(end);
        let end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let unit = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
        seconds += number.parse::<f64>().map_err(|_| wrong())? * unit;
        rest = after;
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| "the duration is too long".to_owned())
}

/// An address to listen on, as Go writes it: `:8080` is every interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Empty means every interface.
    pub host: String,
    pub port: u16,
}

impl Address {
    /// Reads an address; `0` means that nobody listens.
    pub fn parse(text: &str) -> Result<Option<Self>, String> {
        if text == "0" {
            return Ok(None);
        }
        let (host, port) = text.rsplit_once(':').ok_or("not an address such as :8080, or 0 for none")?;
        let port = port.parse().map_err(|_| format!("{port:?} is not a port"))?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        Ok(Some(Self { host: host.to_owned(), port }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for (text, milliseconds) in [
            ("0", 0),
            ("0s", 0),
            ("5m", 300_000),
            ("1m30s", 90_000),
            ("500ms", 500),
            ("1.5h", 5_400_000),
            (".5s", 500),
            ("+2s", 2000),
            ("1500us", 1),
        ] {
            assert_eq!(duration(text).unwrap().as_millis(), milliseconds, "{text}");
        }
        for text in ["", "5", "5 m", "m", "-5m", "5mm", "1.2.3s", "five", "1e400h"] {
            assert!(duration(text).is_err(), "{text} is no duration");
        }
    }

    #[test]
    fn addresses_are_read_as_go_reads_them() {
        let address = |host: &str, port| Some(Address { host: host.to_owned(), port });
        assert_eq!(Address::parse(":8080"), Ok(address("", 8080)));
        assert_eq!(Address::parse("127.0.0.1:0"), Ok(address("127.0.0.1", 0)));
        assert_eq!(Address::parse("[::1]:80"), Ok(address("::1", 80)));
        assert_eq!(Address::parse("0"), Ok(None));
        assert!(Address::parse("8080").is_err());
        assert!(Address::parse(":http").is_err());
    }

    #[test]
    fn one_dash_is_as_good_as_two() {
        let turned = |argument: &str| dashes(argument.to_owned());
        assert_eq!(turned("-leader-elect=false"), "--leader-elect=false");
        assert_eq!(turned("--extensions"), "--extensions");
        assert_eq!(turned("-h"), "-h");
        assert_eq!(turned("value"), "value");
    }
}
