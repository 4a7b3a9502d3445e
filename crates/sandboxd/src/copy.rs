//! Files out of and into a sandbox as tar archives, for `asb cp`: no image needs a tar of its own.
//!
//! Runs inside, as the user that commands run as. What it may not touch, it cannot.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Writes a file, or a directory as `.` with everything in it. Sockets and devices are left out.
pub fn pack(path: &Path, out: impl Write) -> io::Result<()> {
    let mut builder = tar::Builder::new(io::BufWriter::with_capacity(128 << 10, out));
    builder.follow_symlinks(false);
    let found = fs::metadata(path)?;
    if !found.is_dir() {
        let name = path.file_name().unwrap_or(OsStr::new("file"));
        append_file(&mut builder, Path::new(name), path)?;
        return builder.into_inner()?.flush();
    }
    builder.append_dir(".", path)?;
    let mut waiting = vec![PathBuf::new()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(path.join(&directory))? {
            let entry = entry?;
            let (kind, within) = (entry.file_type()?, directory.join(entry.file_name()));
            let appended = match kind {
                _ if kind.is_file() => append_file(&mut builder, &within, &entry.path()),
                _ if kind.is_dir() || kind.is_symlink() => {
                    builder.append_path_with_name(entry.path(), &within)
                }
                _ => Ok(()),
            };
            appended.map_err(|error| named(&entry.path(), &error))?;
            if kind.is_dir() {
                waiting.push(within);
            }
        }
    }
    builder.into_inner()?.flush()
}

/// Exactly as many bytes as the header announces, although the file may change meanwhile: what it gains is left out, what
/// it loses becomes zeros.
fn append_file(builder: &mut tar::Builder<impl Write>, name: &Path, path: &Path) -> io::Result<()> {
    let mut file = fs::File::open(path)?;
    let metadata = file.metadata()?;
    let length = metadata.len();
    let has_holes = metadata.blocks() * 512 < length;
    if has_holes {
        return builder.append_file(name, &mut file);
    }
    let mut header = tar::Header::new_gnu();
    header.set_metadata(&metadata);
    builder.append_data(&mut header, name, file.chain(io::repeat(0)).take(length))
}

/// Puts what an archive holds at `target`, or in it under `name` where that is a directory.
///
/// Without a name it must not be one; with the name `.` it is one, made if need be.
pub fn unpack(source: impl Read, target: &Path, name: &OsStr) -> io::Result<()> {
    let inside = target.is_dir() || target.as_os_str().as_encoded_bytes().ends_with(b"/");
    if name == "." {
        fs::create_dir_all(target)?;
    } else if inside && name.is_empty() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "is a directory; name a file in it"));
    }
    let target = if inside { target.join(name) } else { target.to_owned() };
    let mut archive = tar::Archive::new(source);
    archive.set_preserve_permissions(false);
    archive.set_overwrite(true);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let is_top = path.components().all(|part| part == std::path::Component::CurDir);
        let done = match is_top || target.is_dir() {
            true if is_top => fs::create_dir_all(&target),
            true => entry.unpack_in(&target).map(drop),
            // A single file, under the name that was asked for.
            false => write(&mut entry, &target),
        };
        done.map_err(|error| named(&target.join(&path), &error))?;
    }
    Ok(())
}

fn write(entry: &mut tar::Entry<'_, impl Read>, target: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mode = entry.header().mode()? & 0o777;
    let mut file = fs::File::create(target)?;
    io::copy(entry, &mut file)?;
    file.set_permissions(fs::Permissions::from_mode(mode))
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(path: &Path) -> Vec<u8> {
        let mut out = Vec::new();
        pack(path, &mut out).expect("packed");
        out
    }

    #[test]
    fn file_takes_the_name_that_is_asked_for_or_its_own_in_a_directory() {
        let dir = tempfile::tempdir().expect("made");
        let at = |name: &str| dir.path().join(name);
        fs::write(at("a"), "text").expect("written");
        let tar = packed(&at("a"));
        unpack(&*tar, &at("b"), OsStr::new("a")).expect("unpacked");
        fs::create_dir(at("d")).expect("made");
        unpack(&*tar, &at("d"), OsStr::new("a")).expect("unpacked");
        for name in ["b", "d/a"] {
            assert_eq!(fs::read_to_string(at(name)).expect(name), "text");
        }
        let nowhere = unpack(&*tar, &at("no/where"), OsStr::new("a")).expect_err("no such directory");
        assert!(nowhere.to_string().contains("no/where"), "{nowhere}");
    }

    /// Makes a file longer or shorter whenever a part of the archive is written.
    struct Changing(PathBuf, i64, Vec<u8>);

    impl Write for Changing {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let file = fs::OpenOptions::new().write(true).open(&self.0)?;
            file.set_len(file.metadata()?.len().saturating_add_signed(self.1))?;
            self.2.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn file_that_changes_while_it_is_read_does_not_break_the_archive() {
        let dir = tempfile::tempdir().expect("made");
        let at = |name: &str| dir.path().join(name);
        for change in [1000, -200_000] {
            fs::create_dir_all(at("src")).expect("made");
            for name in ["a", "log", "z"] {
                fs::write(at("src").join(name), "0123456789".repeat(50_000)).expect("written");
            }
            let mut out = Changing(at("src/log"), change, Vec::new());
            pack(&at("src"), &mut out).expect("packed");
            unpack(&*out.2, &at("new"), OsStr::new(".")).expect("unpacked");
            for name in ["a", "z"] {
                let text = fs::read_to_string(at("new").join(name)).expect("there");
                assert_eq!(text, "0123456789".repeat(50_000), "{name}");
            }
            fs::remove_dir_all(at("new")).expect("removed");
        }
    }

    #[test]
    fn directory_comes_whole_and_links_stay_links() {
        let dir = tempfile::tempdir().expect("made");
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("src/sub/empty")).expect("made");
        fs::write(at("src/sub/file"), "text").expect("written");
        std::os::unix::fs::symlink("sub/file", at("src/link")).expect("linked");
        let _socket = std::os::unix::net::UnixListener::bind(at("src/socket")).expect("bound");
        let tar = packed(&at("src"));
        unpack(&*tar, &at("new"), OsStr::new("src")).expect("unpacked");
        unpack(&*tar, &at("new"), OsStr::new("src")).expect("unpacked once more, inside");
        for name in ["new", "new/src"] {
            assert_eq!(fs::read_to_string(at(name).join("link")).expect(name), "text");
            assert!(at(name).join("sub/empty").is_dir() && !at(name).join("socket").exists());
            assert!(at(name).join("link").symlink_metadata().expect("there").is_symlink());
        }
    }
}
