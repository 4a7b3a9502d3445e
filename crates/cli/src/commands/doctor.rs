//! `asb doctor`: what sandboxes can have on this machine, found out by trying; and how to get what is missing.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use asb_runtime::driver::{ALL, Cache, Name, Probe};
use asb_runtime::machine::{self, Fact};
use serde::Serialize;

use crate::args::Doctor;
use crate::data_dir::DataDir;

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
    data_dir.create()?;
    let mut facts = machine::facts();
    facts.push(network(data_dir.path()).await?);
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
    let place = data_dir.join("doctor");
    std::fs::create_dir_all(&place).with_context(|| format!("failed to make {}", place.display()))?;
    let of_its_own = place.clone();
    let tried = tokio::task::spawn_blocking(move || {
        asb_network::Network::open(&of_its_own, &[]).and_then(asb_network::Network::close)
    });
    let tried = tried.await?;
    std::fs::remove_dir_all(&place).with_context(|| format!("failed to remove {}", place.display()))?;
    Ok(match tried {
        Ok(()) => Fact {
            name: "network",
            value: "an address for each sandbox (nftables)".to_owned(),
            problem: None,
        },
        Err(error) => {
            let problem = format!("sandboxes have loopback only: {}", with_causes(&error));
            Fact { name: "network", value: "none".to_owned(), problem: Some(problem) }
        }
    })
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
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
