//! The name of the Node object, kept in the data directory.
//!
//! Pods are bound to a Node by its name. If the name followed the host name, a renamed machine would have none of its Pods.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::machine;

const FILE: &str = "node-name";

/// The name of the Node of this data directory. The first call takes the host name and stores it.
pub fn node_name(data_dir: &Path) -> io::Result<String> {
    kept(data_dir, machine::host_name())
}

fn kept(data_dir: &Path, host: String) -> io::Result<String> {
    let path = data_dir.join(FILE);
    let name = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            write(data_dir, &host)?;
            return Ok(host);
        }
        text => text?.trim().to_owned(),
    };
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    if name.is_empty() || !name.chars().all(is_plain) {
        let message = format!("{} is damaged: {name:?} is not the name of a Node", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    if name != host {
        tracing::warn!(node = name, host, "the machine was renamed; its Node keeps the earlier name");
    }
    Ok(name)
}

/// The file is whole and on disk, or it is not there.
fn write(data_dir: &Path, name: &str) -> io::Result<()> {
    let fresh = data_dir.join(format!(".{FILE}.new"));
    let mut options = OpenOptions::new();
    let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(&fresh)?;
    writeln!(file, "{name}")?;
    file.sync_all()?;
    fs::rename(&fresh, data_dir.join(FILE))?;
    File::open(data_dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renamed_machine_keeps_the_name_of_its_node() {
        let dir = tempfile::tempdir().unwrap();
        let of = |host: &str| kept(dir.path(), host.to_owned());
        assert_eq!(of("first").unwrap(), "first");
        assert_eq!(of("second").unwrap(), "first");
        let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(names, [FILE]);
    }

    #[test]
    fn a_damaged_name_is_an_error_and_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["", "\n", "../x", "two words"] {
            fs::write(dir.path().join(FILE), text).unwrap();
            let error = kept(dir.path(), "host".to_owned()).unwrap_err().to_string();
            assert!(error.contains("node-name is damaged"), "{error}");
            assert_eq!(fs::read_to_string(dir.path().join(FILE)).unwrap(), text);
        }
    }
}
