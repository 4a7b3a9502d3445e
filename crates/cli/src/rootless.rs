//! An ordinary user's `asb` is root of a user namespace wherever it touches files or processes of sandboxes.

use anyhow::Context;
use asb_runtime::image::HOST;
use asb_runtime::rootless;

use crate::args::Command;
use crate::commands::volume;
use crate::data_dir::DataDir;

/// Enters the namespace if this user and this command need it. Must come before anything that makes threads.
pub fn enter(command: &Command, data_dir: &DataDir) -> anyhow::Result<()> {
    if rustix::process::geteuid().is_root() || !is_for_root(command) {
        return Ok(());
    }
    let engine = match data_dir.path().is_dir() && !data_dir.is_free()? {
        true => data_dir.engine().map(|engine| engine.pid),
        false => None,
    };
    let members = ["sandboxes", "probe/state"].map(|place| rootless::members(&data_dir.path().join(place)));
    let members: Vec<_> = members.concat().into_iter().chain(rootless::keeper(data_dir.path())).collect();
    rootless::enter(engine, &members, rootless::maps())
        .context("failed to become root of a user namespace, without which there are no sandboxes")
}

/// Whether a command works on sandboxes itself, instead of asking the engine.
fn is_for_root(command: &Command) -> bool {
    match command {
        Command::Up(up) => !up.detach,
        Command::Image(_) | Command::Doctor(_) | Command::Restore(_) => true,
        Command::Backup(backup) => backup.volumes || backup.images,
        // Images are pulled by whoever wants to see how that goes.
        Command::Run(run) => run.image != HOST,
        Command::Volume(volume::Command::Ls(_)) => false,
        Command::Volume(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Args;
    use clap::Parser;

    #[test]
    fn only_what_touches_sandboxes_is_done_as_root() {
        let needs = |line: &str| is_for_root(&Args::parse_from(line.split(' ')).command);
        for line in ["asb up", "asb doctor", "asb image ls", "asb run app -- ls", "asb volume du"] {
            assert!(needs(line), "{line}");
        }
        for line in ["asb up -d", "asb run -- ls", "asb ps", "asb exec a -- ls", "asb volume ls", "asb down"]
        {
            assert!(!needs(line), "{line}");
        }
    }
}
