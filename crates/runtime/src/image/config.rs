//! What an image says about how it wants to be run. Pure.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where programs are looked for when an image does not say.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The `config` of an OCI image. What is not here (ports, labels, health checks) asks nothing of a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Config {
    #[serde(deserialize_with = "null")]
    pub entrypoint: Vec<String>,
    #[serde(deserialize_with = "null")]
    pub cmd: Vec<String>,
    /// `NAME=VALUE`
    #[serde(deserialize_with = "null")]
    pub env: Vec<String>,
    #[serde(deserialize_with = "null")]
    pub working_dir: String,
    /// `USER`, `USER:GROUP`, each a name or a number.
    #[serde(deserialize_with = "null")]
    pub user: String,
    #[serde(deserialize_with = "null")]
    pub stop_signal: String,
    #[serde(deserialize_with = "null")]
    pub volumes: BTreeMap<PathBuf, serde_json::Value>,
}

impl Config {
    /// Variables in their order, with a search path.
    pub fn variables(&self) -> Vec<(String, String)> {
        let pair = |text: &String| {
            let (name, value) = text.split_once('=').unwrap_or((text, ""));
            (!name.is_empty()).then(|| (name.to_owned(), value.to_owned()))
        };
        let mut variables: Vec<_> = self.env.iter().filter_map(pair).collect();
        if !variables.iter().any(|(name, _)| name == "PATH") {
            variables.insert(0, ("PATH".to_owned(), PATH.to_owned()));
        }
        variables
    }

    pub fn directory(&self) -> PathBuf {
        let plain = PathBuf::from(&self.working_dir);
        if plain.is_absolute() { plain } else { PathBuf::from("/").join(plain) }
    }

    /// The signal that asks the main process to end, if the image names one that is known.
    pub fn stop_signal(&self) -> Option<i32> {
        signal(&self.stop_signal)
    }
}

/// `SIGTERM`, `TERM` or `15`.
fn signal(text: &str) -> Option<i32> {
    const NAMES: [(&str, i32); 14] = [
        ("HUP", libc::SIGHUP),
        ("INT", libc::SIGINT),
        ("QUIT", libc::SIGQUIT),
        ("ABRT", libc::SIGABRT),
        ("KILL", libc::SIGKILL),
        ("USR1", libc::SIGUSR1),
        ("USR2", libc::SIGUSR2),
        ("PIPE", libc::SIGPIPE),
        ("ALRM", libc::SIGALRM),
        ("TERM", libc::SIGTERM),
        ("CONT", libc::SIGCONT),
        ("STOP", libc::SIGSTOP),
        ("WINCH", libc::SIGWINCH),
        ("PWR", libc::SIGPWR),
    ];
    if let Ok(number) = text.parse::<i32>() {
        return (1..=64).contains(&number).then_some(number);
    }
    let upper = text.to_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    // Systemd asks to be stopped by a real-time signal: RTMIN+3.
    if let Some(offset) = name.strip_prefix("RTMIN+").and_then(|offset| offset.parse::<i32>().ok()) {
        return (0..=30).contains(&offset).then_some(34 + offset);
    }
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

/// Many programs write `null` for an empty list.
fn null<'de, D: serde::Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_is_read_as_programs_write_it() {
        let text = r#"{"Entrypoint": null, "Cmd": ["sh"], "Env": ["A=b=c", "E"], "WorkingDir": "srv", "Volumes": {"/data": {}},
                       "User": "1000", "StopSignal": "SIGQUIT", "ExposedPorts": {"80/tcp": {}}}"#;
        let config: Config = serde_json::from_str(text).expect("readable");
        assert_eq!((config.entrypoint.len(), config.cmd.as_slice()), (0, &["sh".to_owned()][..]));
        let variables = config.variables();
        assert_eq!(variables[0].0, "PATH");
        assert_eq!(variables[1..], [("A".into(), "b=c".into()), ("E".into(), String::new())]);
        assert_eq!((config.directory(), config.stop_signal()), (PathBuf::from("/srv"), Some(libc::SIGQUIT)));
        assert_eq!(Config::default().directory(), PathBuf::from("/"));
    }

    #[test]
    fn signals_have_names_and_numbers() {
        for (text, number) in [
            ("SIGTERM", Some(15)),
            ("int", Some(2)),
            ("9", Some(9)),
            ("SIGRTMIN+3", Some(37)),
            ("", None),
            ("0", None),
            ("x", None),
        ] {
            assert_eq!(signal(text), number, "{text}");
        }
    }
}
