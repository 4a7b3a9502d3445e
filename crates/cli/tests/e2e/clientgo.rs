//! An unchanged client-go, as controllers and operators in Go use it; `tools/clientgo` has the program.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use crate::engine::{Engine, stdout};

#[test]
fn unchanged_client_go_speaks_protobuf_streams_lists_and_executes() {
    let engine = Engine::start();
    let program = asb_testing::tool("tools/clientgo/build");
    let told = engine.program(program.to_str().unwrap(), &["everything"]).output().unwrap();
    let worked = [
        "typed objects in protobuf",
        "updates of objects written by hand",
        "shared informers with a streamed list",
        "dynamic client and its informer",
        "exec over WebSocket",
        "exec over SPDY",
    ];
    assert_eq!(stdout(&told).lines().collect::<Vec<_>>(), worked);
    engine.stop();
}

/// A process that stands for election, and what it prints.
struct Candidate {
    process: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Candidate {
    fn stands(engine: &Engine, name: &str) -> Self {
        let program = asb_testing::tool("tools/clientgo/build");
        let mut command = engine.program(program.to_str().unwrap(), &["lead", name]);
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, lines }
    }

    /// Waits until it says that.
    fn says(&mut self, wanted: &str) {
        let said = self.lines.by_ref().map(Result::unwrap).find(|line| line == wanted);
        assert_eq!(said.as_deref(), Some(wanted), "it ended without saying so");
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn of_two_candidates_one_leads_and_when_it_is_killed_the_other() {
    let engine = Engine::start();
    let mut first = Candidate::stands(&engine, "first");
    first.says("first leads");
    let mut second = Candidate::stands(&engine, "second");
    second.says("second follows first");
    drop(first);
    second.says("second leads");
    let holder = ["get", "lease", "elected", "-o", "jsonpath={.spec.holderIdentity}"];
    assert_eq!(stdout(&engine.kubectl(&holder)), "second");
    drop(second);
    engine.stop();
}
