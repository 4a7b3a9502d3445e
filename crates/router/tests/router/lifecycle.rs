//! Starting and ending.

use std::sync::Arc;
use std::time::Duration;

use asb_router::{Addressing, Authorization, Config, Limits, TcpDial, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::api::{FakeApi, pod};
use crate::world::{Answer, World, eventually};

#[tokio::test]
async fn draining_answers_what_is_in_flight_and_listens_no_more() {
    let World { inside, address, router, .. } = World::new().await;
    let mut idle = TcpStream::connect(address).await.unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /slow HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: web\r\n\r\n").await.unwrap();
    inside.slow_begun.notified().await;
    let draining = tokio::spawn(router.drain(Duration::from_secs(20)));
    assert_eq!(idle.read(&mut [0; 1]).await.unwrap(), 0, "an idle connection is closed at once");
    assert!(!draining.is_finished());
    inside.go.notify_one();
    assert_eq!(Answer::read(&mut stream).await.body, "slow");
    draining.await.unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn dropping_it_frees_the_address() {
    let World { address, router, .. } = World::new().await;
    drop(router);
    let freed = async {
        while TcpListener::bind(address).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), freed).await.unwrap();
}

#[tokio::test]
async fn a_router_that_cannot_list_says_so() {
    let api = FakeApi::default();
    api.go_down();
    let limits = Limits { sync_timeout: Duration::from_millis(50), ..Limits::default() };
    let config = Config { limits, ..Config::default() };
    let error =
        serve("127.0.0.1:0".parse().unwrap(), api.client(), Arc::new(TcpDial), config).await.err().unwrap();
    assert!(error.to_string().contains("may the router list and watch both?"), "{error}");
}

#[tokio::test]
async fn a_taken_address_is_an_error() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap();
    let error = serve(address, FakeApi::default().client(), Arc::new(TcpDial), Config::default())
        .await
        .err()
        .unwrap();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
}

#[tokio::test]
async fn on_a_cluster_the_pods_own_address_is_dialled() {
    let sandbox = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = sandbox.local_addr().unwrap().port();
    let api = FakeApi::default();
    let mut local = pod("web");
    local["status"]["podIP"] = "127.0.0.1".into();
    api.apply(local);
    let addressing = Addressing { allow_loopback_pod_ip: true, ..Addressing::default() };
    let config = Config { addressing, authorization: Authorization::allow_all(), ..Config::default() };
    let router =
        serve("127.0.0.1:0".parse().unwrap(), api.client(), Arc::new(TcpDial), config).await.unwrap();
    let mut stream = TcpStream::connect(router.address).await.unwrap();
    let head = format!("GET /x HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: web\r\nX-Sandbox-Port: {port}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let (mut inside, _) = sandbox.accept().await.unwrap();
    let mut line = [0; 15];
    inside.read_exact(&mut line).await.unwrap();
    assert_eq!(&line, b"GET /x HTTP/1.1");
}

#[tokio::test]
async fn a_tunnel_ends_with_the_router() {
    let world = World::new().await;
    let mut stream = world.connect().await;
    stream
        .write_all(
            b"GET / HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: web\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
        )
        .await
        .unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        assert_ne!(stream.read_buf(&mut head).await.unwrap(), 0);
    }
    eventually("the tunnel was dialled", || world.dials() == 1).await;
    drop(world.router);
    assert_eq!(stream.read(&mut [0; 1]).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn only_connections_of_this_process_need_no_token() {
    let world = World::with(Some("secret"), Limits::default()).await;
    assert_eq!(world.get("/").await.status, 401);
    let trusted = world.router.connections();
    let mut stream = trusted.connect_trusted().await.unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: web\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("\"target\":\"/\""), "{answer}");
    world.router.drain(Duration::from_secs(20)).await;
    let refused = trusted.connect_trusted().await.err().unwrap();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}
