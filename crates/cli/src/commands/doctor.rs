//! `asb doctor`: what sandboxes can have on this machine, found out by trying; and how to get what is missing.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use asb_network::Network;
use asb_runtime::driver::{ALL, Cache, Name, Probe};
use asb_runtime::machine::{self, Fact};
use asb_runtime::rootless::{NoWay, Outside};
use asb_runtime::tree::quota;
use asb_runtime::{powers, rootless};
use serde::Serialize;

use crate::args::Doctor;
use crate::data_dir::{DOCTOR, DataDir};

#[derive(Debug, Serialize)]
struct Report {
    machine: Vec<Fact>,
    runtimes: Vec<Runtime>,
}

#[derive(Debug, Serialize)]
struct Runtime {
    #[serde(flatten)]
    probe: Probe,
    works: bool,
    hint: Option<&'static str>,
}

pub async fn run(data_dir: &DataDir, doctor: &Doctor) -> anyhow::Result<ExitCode> {
    data_dir.check()?;
    data_dir.create()?;
    let mut facts = machine::facts();
    facts.push(network(data_dir.path()).await?);
    facts.push(volumes(quota::are_enforced(data_dir.path())));
    let cache = Cache::new(data_dir.path());
    let mut runtimes = Vec::new();
    for name in ALL {
        let probe = cache.try_again(name).await;
        runtimes.push(Runtime { works: probe.works(), hint: probe.hint(), probe });
    }
    let report = Report { machine: facts, runtimes };
    match doctor.json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => print!("{}", text(&report)),
    }
    let native = report.runtimes.iter().any(|runtime| runtime.probe.name == Name::Native && runtime.works);
    Ok(if native { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Makes a network as the engine would, and removes it.
async fn network(data_dir: &Path) -> anyhow::Result<Fact> {
    let place = tempfile::Builder::new().prefix(DOCTOR).tempdir_in(data_dir);
    let place = place.with_context(|| format!("failed to make a directory in {}", data_dir.display()))?;
    let of_its_own = place.path().to_owned();
    let tried = tokio::task::spawn_blocking(move || -> anyhow::Result<()> {
        let open = || Ok(Network::open(&of_its_own, &[]).and_then(Network::close)?);
        match powers::here().is_rootless() {
            true => rootless::in_new_network(open)?,
            false => open(),
        }
    });
    let tried = tried.await?;
    place.close().context("failed to remove what the network left")?;
    let outside = powers::here().is_rootless().then(Outside::find);
    Ok(judge(tried.map_err(|error| format!("{error:#}")), outside))
}

/// What is told of the network: whether it can be made, and what leads out of it where the machine itself does not.
fn judge(tried: Result<(), String>, outside: Option<Result<Outside, NoWay>>) -> Fact {
    let fact = |value: &str, problem| Fact { name: "network", value: value.to_owned(), problem };
    let each = "an address for each sandbox (nftables)";
    match (tried, outside) {
        (Err(why), _) => fact("none", Some(format!("sandboxes have loopback only: {why}"))),
        (Ok(()), None) => fact(each, None),
        (Ok(()), Some(Ok(outside))) => {
            fact(&format!("{each}, outside by {}", outside.program.display()), None)
        }
        (Ok(()), Some(Err(why))) => {
            let problem =
                format!("weaker than as root: sandboxes reach each other and nothing outside; {why}");
            fact(&format!("{each}, nothing outside"), Some(problem))
        }
    }
}

/// Whether volumes hold no more than their claims ask for.
fn volumes(enforced: bool) -> Fact {
    let (value, problem) = match enforced {
        true => ("enforced (project quotas)", None),
        false => (
            "not enforced",
            Some(
                "a volume can hold more than its claim asks for, and gets a warning; as root, put the data directory \
                 on ext4 (made with `mke2fs -O quota,project`) or xfs, mounted with `-o prjquota`",
            ),
        ),
    };
    Fact { name: "volume sizes", value: value.to_owned(), problem: problem.map(str::to_owned) }
}

fn text(report: &Report) -> String {
    let mut text = String::from("MACHINE\n");
    for Fact { name, value, problem } in &report.machine {
        text += &format!("  {} {name:<16} {value}\n", mark(problem.is_none()));
        text += &note(problem.as_deref());
    }
    text += "\nRUNTIMES\n";
    for Runtime { probe, works, hint } in &report.runtimes {
        let program = probe.program.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
        let version = probe.version.as_deref().unwrap_or_default();
        let what = match (works, probe.name) {
            (true, Name::Native) => "works; the default".to_owned(),
            (true, _) => format!("works: {program} {version}"),
            (false, _) if probe.program.is_some() => format!("does not work: {program} {version}"),
            (false, _) => "not here".to_owned(),
        };
        text += &format!("  {} {:<16} {what}\n", mark(*works), probe.name.as_str());
        text += &note(probe.problem.as_deref());
        text += &note(*hint);
        text += &note(works.then(|| abilities(probe)).as_deref());
    }
    text
}

fn note(text: Option<&str>) -> String {
    text.map(|text| format!("{:21}{text}\n", "")).unwrap_or_default()
}

fn mark(good: bool) -> &'static str {
    if good { "ok" } else { "--" }
}

/// What sandboxes of a driver can do here, and what they cannot.
fn abilities(probe: &Probe) -> String {
    let can = probe.abilities;
    let all = [
        ("exec", can.exec),
        ("terminal", can.terminal),
        ("freeze", can.freeze),
        ("checkpoint", can.checkpoint),
        ("memory limit", can.memory_limit),
        ("process limit", can.process_limit),
        ("user namespace", can.user_namespace),
        ("several containers in a Pod", can.shared_network),
        ("kernel of its own", !can.kernel_of_the_machine),
    ];
    let names = |wanted: bool| {
        let names = all.iter().filter(|(_, has)| *has == wanted).map(|(name, _)| *name);
        names.collect::<Vec<_>>().join(", ")
    };
    format!("{}; not: {}", names(true), names(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_sizes_that_do_not_hold_come_with_what_to_do() {
        assert_eq!(volumes(true).problem, None);
        assert!(volumes(false).problem.is_some_and(|it| it.contains("prjquota")));
    }

    #[test]
    fn network_without_a_way_outside_is_weaker_and_says_what_to_install() {
        assert_eq!(judge(Ok(()), None).problem, None);
        let none = judge(Ok(()), Some(Err(NoWay::Program)));
        assert!(none.value.ends_with("nothing outside"), "{none:?}");
        assert!(none.problem.is_some_and(|it| it.contains("weaker than as root") && it.contains("`passt`")));
        let failed = judge(Err("no nftables".to_owned()), Some(Err(NoWay::Tun)));
        assert!(failed.problem.is_some_and(|it| it.contains("loopback only: no nftables")));
    }
}
