//! Load on the engine's router: many WebSockets, many bytes, callers and sandboxes that stall, kill -9 under requests.
//!
//! `ASB_WEBSOCKETS=10000` and `ASB_MEGABYTES=1024` make these tests long. Memory is the engine's own, as the kernel
//! counts it, so it includes everything that the router keeps for a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use futures::stream::{self, StreamExt};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::engine::{Engine, eventually};
use crate::router::{Router, serve};
use crate::sandboxes::number;

const MEGABYTE: usize = 1024 * 1024;
/// Connections that are opened at the same time.
const ABREAST: usize = 64;
/// The longest that anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// What an idle WebSocket may cost the engine.
const PER_WEBSOCKET: usize = 16 * 1024;
/// What the engine may grow by, whatever passes through it.
const FLAT: usize = 32 * MEGABYTE;
/// How soon after `asb up` a sandbox of the engine before answers again.
const BACK: Duration = Duration::from_secs(20);

/// A field of `/proc/PID/status` in bytes.
fn memory(engine: &Engine, field: &str) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", engine.info["pid"])).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

/// What the engine uses now; the kernel forgets the most that it has used until now.
fn measure(engine: &Engine) -> usize {
    std::fs::write(format!("/proc/{}/clear_refs", engine.info["pid"]), "5").unwrap();
    memory(engine, "VmRSS")
}

/// The most that the engine has used since [`measure`], above what it used then.
fn growth(engine: &Engine, before: usize) -> usize {
    memory(engine, "VmHWM").saturating_sub(before)
}

/// So many descriptors for this process and the engines that it starts.
fn allow_descriptors(count: usize) {
    let limit = getrlimit(Resource::Nofile);
    let maximum = limit.maximum.map(|maximum| maximum.max(count as u64));
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap_or_else(|error| {
        panic!("{count} open files are needed and {:?} allowed (ulimit -Hn): {error}", limit.maximum)
    });
}

async fn connect(router: &Router) -> TcpStream {
    let stream = TcpStream::connect(&router.address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Sends the head of a request and reads the head of its response.
async fn ask(stream: &mut TcpStream, head: &str) -> String {
    let asking = async {
        stream.write_all(format!("{head}\r\n").as_bytes()).await?;
        let mut seen = Vec::new();
        while !seen.ends_with(b"\r\n\r\n") {
            seen.push(stream.read_u8().await?);
        }
        std::io::Result::Ok(String::from_utf8(seen).unwrap())
    };
    tokio::time::timeout(PATIENCE, asking).await.expect("no response in time").expect("no response")
}

async fn websocket(router: &Router) -> TcpStream {
    let mut stream = connect(router).await;
    let head = router.head("GET", "web", "/ws");
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let answer = ask(&mut stream, &format!("{head}{upgrade}")).await;
    assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
    stream
}

/// One message there and back.
async fn echo(stream: &mut TcpStream) {
    let talking = async {
        // A masked frame; the mask is zero.
        stream.write_all(b"\x81\x85\0\0\0\0hello").await?;
        let mut frame = [0; 7];
        stream.read_exact(&mut frame).await?;
        std::io::Result::Ok(frame)
    };
    let frame = tokio::time::timeout(PATIENCE, talking).await.expect("no echo in time").expect("no echo");
    assert_eq!(&frame, b"\x81\x05hello");
}

/// A request on a connection of its own: the status.
async fn get(router: &Router, path: &str, more: &str) -> u16 {
    let mut stream = connect(router).await;
    let head = format!("{}Connection: close\r\n{more}", router.head("GET", "web", path));
    ask(&mut stream, &head).await[9..12].parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_websockets_cost_little_and_all_of_them_work() {
    let count = number("ASB_WEBSOCKETS", 1000);
    // Two for each in the engine.
    allow_descriptors(count * 2 + 800);
    let engine = Engine::start();
    serve(&engine, "web");
    let router = &Router::of(&engine);
    let open = |count: usize| async move {
        let opening = stream::iter(0..count).map(|_| async {
            let mut stream = websocket(router).await;
            echo(&mut stream).await;
            stream
        });
        opening.buffer_unordered(ABREAST).collect::<Vec<_>>().await
    };
    // What every engine has after its first requests is not the price of a WebSocket.
    let descriptors = engine.descriptors();
    drop(open(ABREAST).await);
    eventually("the first ones are closed", || engine.descriptors() <= descriptors + 8);
    let before = measure(&engine);
    let begun = Instant::now();
    let mut all = open(count).await;
    let opened = begun.elapsed();
    assert!(engine.descriptors() >= 2 * count, "each holds a connection on both sides");
    let grown = memory(&engine, "VmRSS").saturating_sub(before);
    println!(
        "{count} idle WebSockets: {} bytes of the engine's memory each ({} MiB before, {} MiB more), opened in {opened:?}",
        grown / count,
        before / MEGABYTE,
        grown / MEGABYTE
    );
    assert!(grown / count < PER_WEBSOCKET, "{} bytes for each WebSocket", grown / count);
    let begun = Instant::now();
    join_all(all.iter_mut().map(echo)).await;
    println!("a message to each of them and back: {:?}", begun.elapsed());
    drop(all);
    eventually("their descriptors are closed", || engine.descriptors() <= descriptors + 8);
    engine.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_number_of_bytes_passes_both_ways_with_flat_memory() {
    let megabytes = number("ASB_MEGABYTES", 128);
    let engine = Engine::start();
    serve(&engine, "web");
    let router = Router::of(&engine);
    assert_eq!(get(&router, "/", "").await, 200);
    let before = measure(&engine);

    let begun = Instant::now();
    let mut stream = connect(&router).await;
    let length = megabytes * MEGABYTE;
    let head = format!("{}Content-Length: {length}\r\n\r\n", router.head("POST", "web", "/sink"));
    stream.write_all(head.as_bytes()).await.unwrap();
    let (chunk, mut left) = (vec![7; MEGABYTE], length);
    while left > 0 {
        stream.write_all(&chunk[..left.min(MEGABYTE)]).await.unwrap();
        left -= left.min(MEGABYTE);
    }
    let mut seen = Vec::new();
    while !seen.ends_with(length.to_string().as_bytes()) {
        assert_ne!(stream.read_buf(&mut seen).await.unwrap(), 0, "{}", String::from_utf8_lossy(&seen));
    }
    let (up, uploaded) = (growth(&engine, before), begun.elapsed());

    let begun = Instant::now();
    let head = router.head("GET", "web", &format!("/source?{length}"));
    assert!(ask(&mut stream, &head).await.starts_with("HTTP/1.1 200 "));
    let (mut buffer, mut left) = (vec![0; MEGABYTE], length);
    while left > 0 {
        let read = stream.read(&mut buffer).await.unwrap();
        assert_ne!(read, 0, "{left} bytes are missing");
        left -= read;
    }
    let down = growth(&engine, before);
    println!(
        "{megabytes} MiB up in {uploaded:?}, down in {:?}; the engine grew by {} and {} KiB at most",
        begun.elapsed(),
        up / 1024,
        down / 1024
    );
    assert!(up.max(down) < FLAT, "the engine grew by {up} and {down} bytes");
    engine.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_do_not_read_and_sandboxes_that_do_not_answer_disturb_no_one_else() {
    let engine = Engine::start();
    serve(&engine, "web");
    let router = Router::of(&engine);
    assert_eq!(get(&router, "/", "").await, 200);
    let before = measure(&engine);
    let mut stalled = Vec::new();
    for _ in 0..16 {
        let mut flooded = connect(&router).await;
        let answer = ask(&mut flooded, &router.head("GET", "web", "/source")).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        let mut silent = connect(&router).await;
        silent.write_all(format!("{}\r\n", router.head("GET", "web", "/silent")).as_bytes()).await.unwrap();
        stalled.extend([flooded, silent]);
    }
    let begun = Instant::now();
    assert_eq!(get(&router, "/silent", "X-Sandbox-Timeout: 0.5\r\n").await, 504);
    let waited = begun.elapsed();
    assert!(waited >= Duration::from_millis(500) && waited < Duration::from_secs(10), "{waited:?}");
    let mut slowest = Duration::ZERO;
    for _ in 0..200 {
        let begun = Instant::now();
        assert_eq!(get(&router, "/data.json", "").await, 200);
        slowest = slowest.max(begun.elapsed());
    }
    let grown = growth(&engine, before);
    println!(
        "beside 16 callers that do not read and 16 sandboxes that do not answer: slowest of 200 requests {slowest:?}; \
         504 after {waited:?}; the engine grew by {} KiB at most",
        grown / 1024
    );
    assert!(grown < FLAT, "the engine grew by {grown} bytes");
    assert!(slowest < Duration::from_secs(5), "{slowest:?}");
    // A caller that begins to read again gets everything that is there.
    let mut buffer = vec![0; MEGABYTE];
    let mut read = 0;
    while read < 8 * MEGABYTE {
        read += tokio::time::timeout(PATIENCE, stalled[0].read(&mut buffer)).await.unwrap().unwrap();
    }
    drop(stalled);
    engine.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_under_requests_it_leaves_callers_with_a_closed_connection_and_comes_back() {
    let mut engine = Engine::start();
    serve(&engine, "web");
    let router = Arc::new(Router::of(&engine));
    let answered = Arc::new(AtomicUsize::new(0));
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let (router, answered) = (router.clone(), answered.clone());
            tokio::spawn(async move {
                let mut stream = connect(&router).await;
                let head = format!("{}\r\n", router.head("GET", "web", "/data.json"));
                let mut buffer = [0; 4096];
                loop {
                    if stream.write_all(head.as_bytes()).await.is_err() {
                        return;
                    }
                    match stream.read(&mut buffer).await {
                        Ok(0) | Err(_) => return,
                        Ok(_) => _ = answered.fetch_add(1, Ordering::Relaxed),
                    }
                }
            })
        })
        .collect();
    let mut open = websocket(&router).await;
    while answered.load(Ordering::Relaxed) < 100 {
        tokio::task::yield_now().await;
    }
    let begun = Instant::now();
    engine.kill();
    let ended = tokio::time::timeout(Duration::from_secs(5), join_all(callers)).await;
    for caller in ended.expect("callers still wait for an engine that is gone") {
        caller.expect("a caller does not panic");
    }
    assert_eq!(open.read(&mut [0; 1]).await.unwrap_or(0), 0);
    let noticed = begun.elapsed();

    let begun = Instant::now();
    engine.restart();
    assert_eq!(Router::of(&engine).address, router.address, "the new engine listens where the old one did");
    assert_eq!(get(&router, "/data.json", "").await, 200);
    println!(
        "callers noticed within {noticed:?}; the same sandbox answered {:?} after `asb up`",
        begun.elapsed()
    );
    assert!(begun.elapsed() < BACK);
    echo(&mut websocket(&router).await).await;
    engine.stop();
}
