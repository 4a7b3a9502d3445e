//! Readiness, draining, addresses that are taken.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::world::{Answer, Cluster, eventually, program, said};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asked_to_stop_it_turns_unready_answers_what_is_in_flight_and_ends() {
    let cluster = Cluster::start().await;
    let program = cluster.program(&["--authz-mode=allow-all", "--shutdown-delay=500ms"]);
    assert_eq!(program.get("health-probe", "/healthz").body, r#"{"status":"ok"}"#);
    assert_eq!(program.get("health-probe", "/readyz").body, "ok");
    assert_eq!(program.get("http", "/healthz").status, 200);

    // One request is in the sandbox.
    cluster.gate.forget_permits(1000);
    let mut in_flight = TcpStream::connect(program.address("http")).unwrap();
    let request = format!("{}Connection: close\r\n\r\n", cluster.request("GET", "/slow"));
    in_flight.write_all(request.as_bytes()).unwrap();
    eventually("the request is counted", || {
        program.get("metrics", "/metrics").body.contains("sandbox_router_inflight_requests 1")
    });
    program.terminate();
    eventually("it is not ready", || program.get("health-probe", "/readyz").status == 503);
    assert_eq!(program.get("http", "/healthz").status, 200, "who did not hear of it yet is still served");
    let address = program.address("http").to_owned();
    eventually("it listens no more", || TcpStream::connect(&address).is_err());
    cluster.gate.add_permits(1);
    assert_eq!(Answer::read(&mut in_flight).status, 200);
    assert_eq!(program.wait().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_end_in_time_is_cut_off() {
    let cluster = Cluster::start().await;
    let program = cluster.program(&["--authz-mode=allow-all", "--shutdown-timeout=100ms"]);
    cluster.gate.forget_permits(1000);
    let mut in_flight = TcpStream::connect(program.address("http")).unwrap();
    in_flight.write_all(format!("{}\r\n", cluster.request("GET", "/")).as_bytes()).unwrap();
    eventually("the request is counted", || {
        program.get("metrics", "/metrics").body.contains("sandbox_router_inflight_requests 1")
    });
    program.terminate();
    assert_eq!(program.wait().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tunnel_works_while_it_drains_and_ends_within_the_timeout() {
    let cluster = Cluster::start().await;
    let program = cluster.program(&["--authz-mode=allow-all", "--shutdown-timeout=1s"]);
    let mut tunnel = program.tunnel(&cluster);
    let address = program.address("http").to_owned();
    let begun = Instant::now();
    program.terminate();
    eventually("new connections are refused", || TcpStream::connect(&address).is_err());
    let refused = begun.elapsed();
    tunnel.write_all(b"still").unwrap();
    let mut echo = [0; 5];
    tunnel.read_exact(&mut echo).unwrap();
    assert_eq!(&echo, b"still", "the tunnel is left alone until the timeout");
    assert_eq!(tunnel.read(&mut echo).unwrap_or(0), 0);
    let ended = begun.elapsed();
    assert_eq!(program.wait().code(), Some(0));
    println!(
        "new connections refused after {refused:?}, the tunnel ended after {ended:?}, the program after {:?}",
        begun.elapsed()
    );
    assert!(ended >= Duration::from_secs(1) && ended < Duration::from_secs(10), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_is_taken_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let cluster = Cluster::start().await;
    let (output, said) = said(program().arg("--kubeconfig").arg(cluster.kubeconfig()).args([
        "--authz-mode=allow-all",
        "--http-bind-address=127.0.0.1:0",
        "--health-probe-bind-address=127.0.0.1:0",
        &format!("--metrics-bind-address={address}"),
    ]));
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("--metrics-bind-address {address}")), "{said}");
    assert!(!said.contains("router ready"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_takes_all_the_open_files_that_it_may_have() {
    let cluster = Cluster::start().await;
    let program = cluster.program_after("ulimit -S -n 256", &["--authz-mode=allow-all"]);
    let limits = program.proc("limits");
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let numbers: Vec<&str> = line.split_whitespace().skip(3).take(2).collect();
    assert!(numbers[0] == numbers[1] && numbers[0] != "256", "{line}");
}
