//! The daemon stops in order, and callers see how their processes end.

use std::time::{Duration, Instant};

use super::client::{rest, shell, until};
use super::{Client, run};
use crate::support::{Daemon, eventually};

#[test]
fn stopping_ends_processes_and_the_stream_still_delivers_the_exit() {
    let mut daemon = Daemon::start();
    run(async {
        let mut client = Client::connect(&daemon).await;
        let (_, mut polite) = client
            .start(shell("trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done"), None)
            .await
            .unwrap();
        let (_, mut deaf) = client
            .start(shell("trap '' TERM; echo ready; while :; do sleep 0.05; done"), None)
            .await
            .unwrap();
        until(&mut polite, "ready").await;
        until(&mut deaf, "ready").await;
        assert_eq!(daemon.get("/v1/health").status, 200);
        let begun = Instant::now();
        daemon.signal("-TERM");
        eventually("health turns bad while processes end", || {
            let health = daemon.get("/v1/health");
            health.status == 503 && health.json()["code"] == "UNAVAILABLE"
        });
        let refused = client.execute(shell("true")).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unavailable);
        assert_eq!(rest(polite).await.2, 9);
        assert_eq!(rest(deaf).await.2, -1, "killed after two seconds");
        assert!(begun.elapsed() < Duration::from_secs(8));
    });
    daemon.wait();
}

#[test]
fn a_connection_that_stays_open_does_not_hold_the_daemon_beyond_its_budget() {
    let mut daemon = Daemon::start_as(&["--shutdown-timeout", "500ms"], &[]);
    let idle = daemon.connect();
    assert_eq!(daemon.get("/").status, 200);
    daemon.signal("-TERM");
    let begun = Instant::now();
    daemon.wait();
    assert!(begun.elapsed() < Duration::from_secs(5));
    drop(idle);
}
