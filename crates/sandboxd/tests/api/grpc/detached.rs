//! Processes that outlive the call that started them.

use tonic::{Code, Streaming};

use super::client::{code, config, shell};
use super::messages::{detached::*, process};
use super::{Client, run};
use crate::support::{Daemon, eventually};

const START: &str = "/sandboxd.v1.ProcessService/Start";

async fn start(client: &mut Client, config: Option<process::ProcessConfig>) -> i32 {
    let request = process::StartRequest { config, pty: None };
    client.unary::<StartResponse>(START, request).await.unwrap().process_id
}

async fn connect(client: &mut Client, process_id: i32) -> Streaming<ConnectResponse> {
    client.stream("/sandboxd.v1.ProcessService/Connect", ConnectRequest { process_id }).await.unwrap()
}

/// Output, dropped bytes and the exit code.
async fn rest(mut stream: Streaming<ConnectResponse>) -> (String, u64, i32) {
    let (mut output, mut dropped) = (String::new(), 0);
    loop {
        match stream.message().await.unwrap().expect("exit is last").event.unwrap() {
            Event::Stdout(bytes) | Event::Stderr(bytes) => output += &String::from_utf8_lossy(&bytes),
            Event::Dropped(gap) => dropped += gap.bytes,
            Event::Exit(exit) => return (output, dropped, exit.exit_code),
        }
    }
}

#[test]
fn a_detached_process_survives_its_caller_and_takes_input_from_another() {
    let daemon = Daemon::start();
    let id = {
        let id = std::cell::Cell::new(0);
        run(async {
            let mut client = Client::connect(&daemon).await;
            id.set(start(&mut client, shell("echo begun; read line; echo got $line; exit 5")).await);
        });
        id.get()
    };
    run(async {
        let mut client = Client::connect(&daemon).await;
        let list: ListResponse =
            client.unary("/sandboxd.v1.ProcessService/List", process::Empty {}).await.unwrap();
        let info = &list.processes[0];
        assert_eq!((info.process_id, info.detached, info.exit_code), (id, true, None));
        assert_eq!(info.command[0], "/bin/sh");
        let stream = connect(&mut client, id).await;
        client.write(id, "input\n").await.unwrap();
        assert_eq!(rest(stream).await, ("begun\ngot input\n".to_owned(), 0, 5));
        // The end stays readable.
        assert_eq!(rest(connect(&mut client, id).await).await, ("begun\ngot input\n".to_owned(), 0, 5));
        let list: ListResponse =
            client.unary("/sandboxd.v1.ProcessService/List", process::Empty {}).await.unwrap();
        assert_eq!(list.processes[0].exit_code, Some(5));
        assert!(client.signal(id, 15).await.is_ok(), "a signal to a finished process is fine");
        assert_eq!(code(client.resize(id, 1, 1).await), Code::FailedPrecondition);
    });
}

#[test]
fn output_without_a_reader_is_kept_up_to_a_limit_and_the_rest_is_marked() {
    let daemon = Daemon::start();
    run(async {
        let mut client = Client::connect(&daemon).await;
        let id = start(&mut client, shell("head -c 3000000 /dev/zero; echo end")).await;
        // Connecting at once or later: nothing blocks the process.
        let (output, dropped, exit) = rest(connect(&mut client, id).await).await;
        assert_eq!((output.len() as u64 + dropped, exit), (3_000_004, 0));
        let (output, dropped, _) = rest(connect(&mut client, id).await).await;
        assert_eq!(output.len() as u64 + dropped, 3_000_004);
        assert!(dropped > 2_000_000 && output.ends_with("end\n"), "{dropped}");
    });
}

#[test]
fn a_process_that_ended_holds_no_descriptors() {
    let daemon = Daemon::start();
    run(async {
        let mut client = Client::connect(&daemon).await;
        client.execute(shell("true")).await.unwrap();
        let before = daemon.descriptors();
        for pty in [None, Some(process::Pty { cols: 80, rows: 24 })] {
            for _ in 0..10 {
                let request = process::StartRequest { config: shell("exit 3"), pty };
                let id = client.unary::<StartResponse>(START, request).await.unwrap().process_id;
                assert_eq!(rest(connect(&mut client, id).await).await.2, 3);
            }
        }
        eventually("the descriptors are closed", || daemon.descriptors() <= before);
        let list: ListResponse =
            client.unary("/sandboxd.v1.ProcessService/List", process::Empty {}).await.unwrap();
        assert_eq!(list.processes.iter().filter(|info| info.terminal).count(), 10, "and it is remembered");
        assert_eq!(code(client.write(1, "x").await), Code::Internal);
        assert_eq!(code(client.eof(20).await), Code::Internal);
        assert_eq!(code(client.resize(20, 1, 1).await), Code::FailedPrecondition);
    });
}

#[test]
fn a_list_of_long_commands_still_fits_into_one_message() {
    let daemon = Daemon::start();
    run(async {
        let mut client = Client::connect(&daemon).await;
        let word = "ä".repeat(50_000);
        let mut command = vec!["true"];
        command.extend(std::iter::repeat_n(word.as_str(), 15));
        for _ in 0..4 {
            start(&mut client, config(&command)).await;
        }
        let list: ListResponse =
            client.unary("/sandboxd.v1.ProcessService/List", process::Empty {}).await.unwrap();
        let shown = &list.processes[0].command;
        assert_eq!((list.processes.len(), shown[0].as_str()), (4, "true"));
        assert!(shown[1].starts_with("ää") && shown[1].ends_with('…'), "what was cut is marked");
    });
}

#[test]
fn a_signal_ends_a_detached_process_and_attached_ones_cannot_be_connected_to() {
    let daemon = Daemon::start();
    run(async {
        let mut client = Client::connect(&daemon).await;
        let id = start(&mut client, config(&["sleep", "1000"])).await;
        client.signal(id, 15).await.unwrap();
        assert_eq!(rest(connect(&mut client, id).await).await.2, -1);
        let (attached, _stream) = client.start(config(&["sleep", "1000"]), None).await.unwrap();
        let method = "/sandboxd.v1.ProcessService/Connect";
        let refused =
            client.stream::<_, ConnectResponse>(method, ConnectRequest { process_id: attached }).await;
        assert_eq!(code(refused.map(drop)), Code::FailedPrecondition);
        let unknown = client.stream::<_, ConnectResponse>(method, ConnectRequest { process_id: 99 }).await;
        assert_eq!(code(unknown.map(drop)), Code::NotFound);
    });
}
