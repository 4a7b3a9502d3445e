//! Which sandboxes there are, for programs that are not the engine.

use std::io;
use std::path::Path;

use super::SANDBOX_FILE;
use super::adopt::{Stored, record};
use crate::Spec;

/// What the sandboxes of a state directory were started from, read without opening it. One that is just being started or
/// deleted may be missing. One that cannot be read is an error: the layers below its root are not known.
pub fn stored(dir: &Path) -> io::Result<Vec<Spec>> {
    let entries = match std::fs::read_dir(dir.join("sandbox")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut specs = Vec::new();
    for entry in entries {
        specs.extend(record::<Stored>(&entry?.path().join(SANDBOX_FILE))?.map(|stored| stored.spec));
    }
    Ok(specs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_that_cannot_be_read_is_an_error_and_one_that_was_never_written_is_none() {
        let dir = tempfile::tempdir().expect("temporary directory");
        assert!(stored(dir.path()).expect("read").is_empty());
        let place = dir.path().join("sandbox/one");
        std::fs::create_dir_all(&place).expect("made");
        assert!(stored(dir.path()).expect("read").is_empty(), "no record");
        for text in ["", "\0\0\0"] {
            std::fs::write(place.join(SANDBOX_FILE), text).expect("written");
            assert!(stored(dir.path()).expect("read").is_empty(), "an empty record");
        }
        for text in ["{", "{\"spec\": {\"of\": \"a later version\"}}"] {
            std::fs::write(place.join(SANDBOX_FILE), text).expect("written");
            let error = stored(dir.path()).expect_err("unreadable").to_string();
            assert!(error.contains("one/sandbox.json: "), "{error}");
        }
    }
}
