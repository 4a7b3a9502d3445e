//! The way out of a namespace that has no wire: a program that does on the machine what sandboxes ask for, as an ordinary
//! user can.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};

use crate::driver::find_program;

/// The interface that leads outside.
const INTERFACE: &str = "outside";
/// How programs become interfaces.
const TUN: &str = "/dev/net/tun";

/// A program that leads outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outside {
    pub program: PathBuf,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Pasta,
    Slirp4netns,
}

/// Why nothing leads outside.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoWay {
    #[error("neither pasta nor slirp4netns is installed; install the package `passt` or `slirp4netns`")]
    Program,
    #[error("this user may not open {TUN}; as root, `chmod 666 {TUN}`")]
    Tun,
}

impl Outside {
    /// The best that is installed and that this user may use.
    pub fn find() -> Result<Self, NoWay> {
        let may_tun = accessat(CWD, TUN, Access::READ_OK | Access::WRITE_OK, AtFlags::EACCESS).is_ok();
        choose(["pasta", "slirp4netns"].map(find_program), may_tun)
    }

    /// What it is told to lead out of the namespace of a process, in the foreground.
    ///
    /// Both would also lead to the machine's own loopback interface, if not told otherwise.
    pub fn arguments(&self, namespace: &Path) -> Vec<String> {
        let namespace = namespace.display();
        let text = match self.kind {
            Kind::Pasta => format!(
                "--foreground --quiet --config-net --ipv4-only --no-map-gw -I {INTERFACE} \
                 -t none -u none -T none -U none --netns {namespace}"
            ),
            Kind::Slirp4netns => format!(
                "--configure --mtu=65520 --disable-host-loopback --disable-dns --netns-type=path {namespace} {INTERFACE}"
            ),
        };
        text.split_whitespace().map(str::to_owned).collect()
    }
}

fn choose(programs: [Option<PathBuf>; 2], may_tun: bool) -> Result<Outside, NoWay> {
    let [pasta, slirp4netns] = programs;
    let pasta = pasta.map(|program| Outside { program, kind: Kind::Pasta });
    let slirp4netns = slirp4netns.map(|program| Outside { program, kind: Kind::Slirp4netns });
    let found = pasta.or(slirp4netns).ok_or(NoWay::Program)?;
    if may_tun { Ok(found) } else { Err(NoWay::Tun) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pasta_comes_first_and_what_is_missing_is_told() {
        let find = |pasta: Option<&str>, slirp: Option<&str>, tun| {
            choose([pasta, slirp].map(|it| it.map(PathBuf::from)), tun).map(|found| found.kind)
        };
        assert_eq!(find(Some("/p"), Some("/s"), true), Ok(Kind::Pasta));
        assert_eq!(find(None, Some("/s"), true), Ok(Kind::Slirp4netns));
        assert_eq!(find(None, None, true), Err(NoWay::Program));
        assert_eq!(find(Some("/p"), None, false), Err(NoWay::Tun));
    }

    #[test]
    fn neither_leads_to_the_loopback_interface_of_the_machine() {
        let arguments = |kind| Outside { program: "/p".into(), kind }.arguments(Path::new("/proc/7/ns/net"));
        let pasta = arguments(Kind::Pasta).join(" ");
        assert!(
            pasta.contains("--no-map-gw") && pasta.contains("-T none") && pasta.contains("-t none"),
            "{pasta}"
        );
        assert!(arguments(Kind::Slirp4netns).contains(&"--disable-host-loopback".to_owned()));
    }
}
