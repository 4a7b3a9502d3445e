//! Which label domains a claim may put on its Sandbox: a file mounted from an optional ConfigMap.

use std::io;
use std::path::Path;

/// Where the file is mounted.
pub const FILE: &str = "/etc/sandbox-config/allowed-label-domains";

const DEFAULT: &str = "sandbox.users.io";

/// Reads the file once; without one, or with nothing in it, the default holds.
pub fn read(path: &Path) -> io::Result<Vec<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(parse(&text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(parse("")),
        Err(error) => Err(error),
    }
}

fn parse(text: &str) -> Vec<String> {
    let entries = text.split([',', '\n']).map(|entry| entry.trim().to_lowercase());
    let entries: Vec<String> = entries.filter(|entry| !entry.is_empty()).collect();
    if entries.is_empty() { vec![DEFAULT.to_owned()] } else { entries }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_are_separated_by_commas_or_lines() {
        assert_eq!(parse("A.example, b.example\n\n c.Example,,"), ["a.example", "b.example", "c.example"]);
        assert_eq!(parse(" ,\n"), [DEFAULT]);
    }

    #[test]
    fn missing_file_means_the_default_and_an_unreadable_one_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(&dir.path().join("absent")).unwrap(), [DEFAULT]);
        assert!(read(dir.path()).is_err(), "a directory is no list");
    }
}
