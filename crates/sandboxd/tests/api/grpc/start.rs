//! Processes whose output is streamed.

use std::fs;
use std::time::{Duration, Instant};

use tonic::Code;

use super::client::{code, config, eventually_async, next, rest, shell, until};
use super::messages::process::*;
use super::{Client, run};
use crate::support::{Daemon, eventually, is_gone};

const PTY: Option<Pty> = Some(Pty { cols: 80, rows: 24 });

#[test]
fn init_comes_first_and_exit_last_with_the_streams_apart() {
    let daemon = Daemon::start();
    run(async {
        let mut client = Client::connect(&daemon).await;
        let (first, stream) = client.start(shell("echo out; echo err >&2; exit 3"), None).await.unwrap();
        assert_eq!(rest(stream).await, ("out\n".to_owned(), "err\n".to_owned(), 3));
        let (second, stream) = client.start(shell("kill -9 $$"), None).await.unwrap();
        assert_eq!(rest(stream).await.2, -1);
        assert_eq!((first, second), (1, 2), "ids count from 1");
    });
}

#[test]
fn input_is_echoed_by_cat_until_its_end() {
    let daemon = Daemon::start();
    run(async {
        let mut client = Client::connect(&daemon).await;
        let (id, mut stream) = client.start(config(&["cat"]), None).await.unwrap();
        client.write(id, "hello\n").await.unwrap();
        until(&mut stream, "hello\n").await;
        client.write(id, "again").await.unwrap();
        client.eof(id).await.unwrap();
        assert_eq!(rest(stream).await, ("again".to_owned(), String::new(), 0));
        eventually_async(|| async { code(client.clone().write(id, "x").await) == Code::NotFound }).await;
    });
}

#[test]
fn a_signal_reaches_the_group_and_ends_sleep() {
    let daemon = Daemon::start();
    run(async {
        let mut client = Client::connect(&daemon).await;
        for signal in [2, 15, 9] {
            let (id, mut stream) = client.start(shell("echo ready; sleep 1000"), None).await.unwrap();
            until(&mut stream, "ready").await;
            // More than once: a shell loses SIGINT that comes between its fork and its exec.
            let signals = async {
                loop {
                    let _ = client.signal(id, signal).await;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            };
            tokio::select! {
                (_, _, exit) = rest(stream) => assert_ne!(exit, 0, "signal {signal}"),
                () = signals => {}
            }
        }
    });
}

#[test]
fn a_terminal_has_the_size_that_was_asked_for_and_can_be_resized() {
    let daemon = Daemon::start();
    run(async {
        let mut client = Client::connect(&daemon).await;
        let (_, stream) = client.start(config(&["stty", "size"]), PTY).await.unwrap();
        assert_eq!(rest(stream).await, ("24 80\r\n".to_owned(), String::new(), 0));
        let script = "trap 'stty size; exit' WINCH; tty; echo ready; while :; do sleep 0.05; done";
        let (id, mut stream) = client.start(shell(script), PTY).await.unwrap();
        until(&mut stream, "ready").await;
        client.resize(id, 132, 65536 + 50).await.unwrap();
        until(&mut stream, "50 132").await;
        assert_eq!(rest(stream).await.2, 0);
    });
}

#[test]
fn the_end_of_input_on_a_terminal_is_its_end_of_file_character() {
    let daemon = Daemon::start();
    run(async {
        let mut client = Client::connect(&daemon).await;
        let (id, mut stream) = client.start(shell("cat; echo after cat; test -t 0"), PTY).await.unwrap();
        client.write(id, "line\n").await.unwrap();
        until(&mut stream, "line\r\nline\r\n").await;
        client.eof(id).await.unwrap();
        until(&mut stream, "after cat").await;
        assert_eq!(rest(stream).await.2, 0, "the terminal was not hung up");
    });
}

#[test]
fn a_lot_of_output_arrives_without_loss() {
    let daemon = Daemon::start();
    run(async {
        let mut client = Client::connect(&daemon).await;
        let script = "head -c 20000000 /dev/zero; echo end";
        let (_, mut stream) = client.start(shell(script), None).await.unwrap();
        let mut length = 0;
        loop {
            match next(&mut stream).await.unwrap() {
                Event::Stdout(bytes) => {
                    assert!(bytes.len() <= 4096, "no message is longer than the chunk size");
                    length += bytes.len();
                }
                Event::Exit(exit) => break assert_eq!(exit.exit_code, 0),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(length, 20_000_004);
    });
}

#[test]
fn a_cancelled_stream_kills_the_group() {
    let daemon = Daemon::start();
    run(async {
        let mut client = Client::connect(&daemon).await;
        let script = "(sleep 1000 & echo $! > child); echo ready; sleep 1000";
        let (id, mut stream) = client.start(shell(script), None).await.unwrap();
        until(&mut stream, "ready").await;
        drop(stream);
        let child = fs::read_to_string(daemon.path("child")).unwrap();
        eventually_async(|| async { is_gone(&child) }).await;
        eventually_async(|| async { code(client.clone().signal(id, 9).await) == Code::NotFound }).await;
    });
}

#[test]
fn a_client_that_disconnects_takes_its_processes_with_it() {
    let daemon = Daemon::start();
    run(async {
        let mut client = Client::connect(&daemon).await;
        let (_, mut stream) =
            client.start(shell("echo $$ > leader; echo ready; sleep 1000"), None).await.unwrap();
        until(&mut stream, "ready").await;
        drop((client, stream));
    });
    let leader = fs::read_to_string(daemon.path("leader")).unwrap();
    eventually("the process is gone", || is_gone(&leader));
}

#[test]
fn processes_in_the_background_hold_the_stream_for_a_few_seconds_only() {
    let daemon = Daemon::start();
    run(async {
        let mut client = Client::connect(&daemon).await;
        let begun = Instant::now();
        let (_, stream) = client.start(shell("echo out; sleep 100 & echo $! > child"), None).await.unwrap();
        assert_eq!(rest(stream).await, ("out\n".to_owned(), String::new(), 0));
        assert!(begun.elapsed() < Duration::from_secs(15));
        let child = fs::read_to_string(daemon.path("child")).unwrap();
        client.execute(shell(&format!("kill {child}"))).await.unwrap();
    });
}

#[test]
fn chunks_are_as_long_as_the_flag_allows() {
    let daemon = Daemon::start_as(&["--stream-chunk-size", "10"], &[]);
    run(async {
        let mut client = Client::connect(&daemon).await;
        let (_, mut stream) = client.start(shell("head -c 25 /dev/zero"), None).await.unwrap();
        let mut lengths = Vec::new();
        while let Some(Event::Stdout(bytes)) = next(&mut stream).await {
            lengths.push(bytes.len());
        }
        assert_eq!(lengths, [10, 10, 5]);
    });
}
