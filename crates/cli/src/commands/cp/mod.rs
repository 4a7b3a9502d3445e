//! `asb cp`: files into and out of a sandbox, as a tar archive that `sandboxd` inside packs or unpacks.
//!
//! What a sandbox sends is not trusted: it ends below the directory that was named, whatever it says
//! (`asb_runtime::tree`).

mod place;
mod transfer;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use asb_runtime::tree::{self, Contents, Purpose};

use self::place::Place;
use self::transfer::Transfer;
pub use self::transfer::bar;
use crate::args::Cp;
use crate::connect;
use crate::data_dir::DataDir;
use crate::failure::hinted;

/// Where every sandbox has the program that packs and unpacks.
const SANDBOXD: &str = "/.asb/sandboxd";

pub async fn run(data_dir: &DataDir, cp: Cp) -> anyhow::Result<ExitCode> {
    let (from, to) = (Place::parse(&cp.from)?, Place::parse(&cp.to)?);
    if cp.tar && from != Place::Stream && to != Place::Stream {
        return Err(hinted(
            "--tar goes with `-`",
            "leave it out: archives are made and unpacked by themselves",
        ));
    }
    let client = connect::running_client(data_dir).await?;
    let transfer = Transfer::new(client, &cp.target.namespace);
    match (from, to) {
        (Place::Sandbox { name, path }, to) if !matches!(to, Place::Sandbox { .. }) => {
            let command = [SANDBOXD, "pack", &path].map(str::to_owned);
            let base = base_name(Path::new(&path));
            transfer.receive(&name, &command, move |tar| receive(tar, to, &base, cp.tar)).await?;
        }
        (from, Place::Sandbox { name, path }) if !matches!(from, Place::Sandbox { .. }) => {
            let base = match &from {
                Place::Host(from) => base_name(from),
                _ if cp.tar => PathBuf::from("."),
                _ => PathBuf::new(),
            };
            let base = base.to_string_lossy().into_owned();
            let command = [SANDBOXD, "unpack", &path, &base].map(str::to_owned);
            transfer.send(&name, &command, move |tar| send(&from, tar, cp.tar)).await?;
        }
        _ => {
            return Err(hinted(
                "one side is a sandbox, the other is not",
                "as in `asb cp FILE NAME:PATH` or `asb cp NAME:PATH FILE`",
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What a copy is called in a directory; `.` where it is the contents that are copied.
fn base_name(path: &Path) -> PathBuf {
    let contents = path.as_os_str().as_encoded_bytes().ends_with(b"/.");
    path.file_name().filter(|_| !contents).map_or_else(|| PathBuf::from("."), PathBuf::from)
}

fn send(from: &Place, mut out: impl Write, tar: bool) -> anyhow::Result<()> {
    match from {
        Place::Stream if tar => drop(io::copy(&mut io::stdin().lock(), &mut out)?),
        Place::Stream => {
            // An archive tells how long a file is before the file.
            let mut whole = tempfile::tempfile().context("failed to make a temporary file")?;
            io::copy(&mut io::stdin().lock(), &mut whole)?;
            io::Seek::rewind(&mut whole)?;
            tree::pack_file(&whole, OsStr::new("stdin"), out)?;
        }
        Place::Host(path) => {
            let failed = || format!("failed to read {}", path.display());
            if path.metadata().with_context(failed)?.is_dir() {
                tree::pack(path, out).with_context(failed)?;
            } else {
                let file = File::open(path).with_context(failed)?;
                tree::pack_file(&file, path.file_name().unwrap_or(OsStr::new("file")), out)
                    .with_context(failed)?;
            }
        }
        Place::Sandbox { .. } => anyhow::bail!("both sides are sandboxes"),
    }
    Ok(())
}

fn receive(mut tar: impl io::Read, to: Place, base: &Path, raw: bool) -> anyhow::Result<()> {
    let path = match to {
        Place::Stream if raw => {
            io::copy(&mut tar, &mut io::stdout().lock())?;
            return Ok(());
        }
        Place::Stream => {
            return match tree::one_file(tar, |_| Ok(io::stdout().lock()))? {
                Some(_) => Ok(()),
                None => Err(hinted("it is no file", "use --tar to have a directory as an archive")),
            };
        }
        Place::Host(path) => path,
        Place::Sandbox { .. } => anyhow::bail!("both sides are sandboxes"),
    };
    // The first header tells a file from a directory; a sandbox that lies gets an error for it.
    let mut head = [0; 512];
    if let Err(error) = tar.read_exact(&mut head) {
        // Nothing came: the program inside says why.
        return if error.kind() == io::ErrorKind::UnexpectedEof { Ok(()) } else { Err(error.into()) };
    }
    let is_directory = head[156] == b'5';
    let tar = io::Read::chain(&head[..], tar);
    let target = if path.is_dir() { path.join(base) } else { path };
    let failed = || format!("failed to copy to {}", target.display());
    if !is_directory {
        let open = |mode| File::options().write(true).create(true).truncate(true).mode(mode).open(&target);
        let copied = tree::one_file(tar, open).with_context(failed)?;
        anyhow::ensure!(copied.is_some(), "the sandbox sent something else than a file");
        return Ok(());
    }
    if !target.is_dir() {
        std::fs::create_dir(&target).with_context(failed)?;
    }
    let contents = tree::unpack(tar, &target, Purpose::Copy).with_context(failed)?;
    tell_skipped(&contents);
    Ok(())
}

/// What an archive had and a copy of it has not. Names come from a sandbox: no terminal obeys them.
pub fn tell_skipped(contents: &Contents) {
    for skipped in &contents.skipped {
        eprintln!("note: {}", skipped.escape_debug());
    }
    if contents.more_skipped > 0 {
        eprintln!("note: {} more like these", contents.more_skipped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_has_the_name_of_what_is_copied_unless_it_is_the_contents() {
        for (path, name) in [("/a/b", "b"), ("b/", "b"), ("/a/.", "."), ("/", "."), ("..", ".")] {
            assert_eq!(base_name(Path::new(path)), Path::new(name), "{path}");
        }
    }

    #[test]
    fn sandbox_that_sends_a_directory_for_a_file_changes_nothing() {
        let dir = tempfile::tempdir().expect("made");
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        builder.append_link(&mut header, "file", "/etc/passwd").expect("appended");
        let tar = builder.into_inner().expect("finished");
        let target = dir.path().join("file");
        let refused = receive(&*tar, Place::Host(target.clone()), Path::new("file"), false);
        assert!(refused.is_err() && !target.exists());
    }
}
