//! The command line.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::{Parser, Subcommand};

/// Measures `asb` against what people use today, in one run on one machine
#[derive(Debug, Parser)]
#[command(name = "asb-bench", max_term_width = 100)]
pub struct Args {
    /// The `asb` to measure [default: the one beside this program]
    #[arg(long, global = true, value_name = "PATH")]
    pub asb: Option<PathBuf>,
    /// The controller of clusters to measure [default: the one beside this program]
    #[arg(long, global = true, value_name = "PATH")]
    pub controller: Option<PathBuf>,
    /// Where the numbers go as JSON [default: bench/results/NAME.json]
    #[arg(long, global = true, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Milliseconds between two samples of a latency; loops without a pause flatter
    #[arg(long, global = true, default_value_t = 100, value_name = "MS")]
    pub pause: u64,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Object created → first output byte, against bwrap, crun, runc, runsc and a bare fork/exec; exec and deletion
    Start {
        #[arg(long, default_value_t = 100)]
        rounds: usize,
    },
    /// `asb up`: time to ready, and what it costs when idle
    Engine {
        #[arg(long, default_value_t = 25)]
        rounds: usize,
    },
    /// Durable creates per second, against a real kube-apiserver with etcd
    Creates {
        /// Seconds for each number
        #[arg(long, default_value_t = 2)]
        seconds: u64,
        /// How often each number is taken; the median is shown
        #[arg(long, default_value_t = 3)]
        repeat: usize,
        /// Samples of create → watch event
        #[arg(long, default_value_t = 50)]
        rounds: usize,
        /// Leave the real kube-apiserver out
        #[arg(long)]
        without_kubernetes: bool,
    },
    /// Claim on a warm pool → Ready: one by one, at once, at a steady rate, and with many other Sandboxes around
    Claims {
        /// Claims at once; the pool has as many members
        #[arg(long, default_value_t = 300)]
        burst: usize,
        /// Claims per second
        #[arg(long, value_delimiter = ',', default_value = "10,30")]
        rates: Vec<u32>,
        /// Seconds for each rate
        #[arg(long, default_value_t = 40)]
        seconds: u32,
        /// Numbers of other Sandboxes
        #[arg(long, value_delimiter = ',', default_value = "100,1000,5000,20000")]
        fleets: Vec<usize>,
        /// Samples of one claim after the other
        #[arg(long, default_value_t = 100)]
        rounds: usize,
        /// Leave the real kube-apiserver out
        #[arg(long)]
        without_kubernetes: bool,
    },
    /// Many sandboxes at once: time until all are Ready, memory for each
    Density {
        #[arg(long, default_value_t = 20)]
        sandboxes: usize,
    },
    /// Claim on a warm pool → output of the first command, through the router; and commands after that
    #[command(name = "first-command")]
    First {
        #[arg(long, default_value_t = 50)]
        rounds: usize,
        /// Seconds for commands per second
        #[arg(long, default_value_t = 3)]
        seconds: u64,
    },
    /// The router against nginx and haproxy before the same backend
    Proxy {
        /// Seconds for each number
        #[arg(long, default_value_t = 3)]
        seconds: u64,
        /// How often each number is taken; the median is shown
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Connections that wrk keeps open
        #[arg(long, value_delimiter = ',', default_value = "10,50,200")]
        connections: Vec<usize>,
    },
    /// Our router alone, before that backend, until it is stopped
    #[command(hide = true)]
    Route { backend: std::net::SocketAddr },
    /// Times programs on behalf of another asb-bench
    #[command(hide = true)]
    Stopwatch,
    /// Our API server alone, until standard input ends
    #[command(hide = true)]
    Serve { data_dir: PathBuf },
}

impl Args {
    pub fn asb(&self) -> anyhow::Result<PathBuf> {
        program(self.asb.as_deref(), "asb", "cargo build --profile fast -p asb", "--asb")
    }

    pub fn controller(&self) -> anyhow::Result<PathBuf> {
        let build = "cargo build --profile image -p asb-operator";
        program(self.controller.as_deref(), "agent-sandbox-controller", build, "--controller")
    }

    pub fn pause(&self) -> Duration {
        Duration::from_millis(self.pause)
    }
}

/// The program that is named, or the one beside this one.
fn program(named: Option<&Path>, name: &str, build: &str, option: &str) -> anyhow::Result<PathBuf> {
    let path = match named {
        Some(path) => path.to_owned(),
        None => std::env::current_exe().context("failed to find my own program file")?.with_file_name(name),
    };
    path.canonicalize()
        .with_context(|| format!("no {name} at {}; build it (`{build}`) or use {option}", path.display()))
}
