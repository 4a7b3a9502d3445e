//! The socket of this machine, as `asb` and those whom it is not for meet it.

mod common;
use common::*;

use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use axum::extract::ws::{self, WebSocketUpgrade};
use futures::StreamExt as _;
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams, WatchParams};

const PROTOCOL: &str = "v5.channel.k8s.io";

fn maps(client: kube::Client) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap"));
    Api::namespaced_with(client, "default", &kind)
}

fn socket(world: &World) -> std::path::PathBuf {
    world.dir.path().join("api.sock")
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777
}

#[tokio::test(flavor = "multi_thread")]
async fn client_on_the_socket_writes_and_watches() {
    let world = World::new().await;
    assert!(asb_apiserver::local_client(world.dir.path(), None).is_none(), "nobody listens yet");
    world.server.serve_locally().expect("it listens");
    let client = asb_apiserver::local_client(world.dir.path(), None).expect("somebody listens");
    let maps = maps(client);
    let map = serde_json::from_value(config_map("a")).expect("a map");
    maps.create(&PostParams::default(), &map).await.expect("created");
    let mut events = maps.watch(&WatchParams::default(), "0").await.expect("a watch").boxed();
    let first = events.next().await.expect("an event").expect("no error");
    assert!(
        matches!(first, kube::api::WatchEvent::Added(added) if added.metadata.name.as_deref() == Some("a"))
    );
    world.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_can_be_upgraded_and_has_the_headers_of_its_client() {
    let world = World::new().await;
    // Says back what the client prefers.
    let kubelet = async |headers: HeaderMap, upgrade: WebSocketUpgrade| {
        let said = headers["prefer"].to_str().unwrap_or_default().to_owned();
        upgrade.protocols([PROTOCOL]).on_upgrade(async move |mut socket| {
            socket.send(ws::Message::Text(said.into())).await.expect("sent");
        })
    };
    world.server.set_kubelet(axum::Router::new().fallback(kubelet));
    world.server.serve_locally().expect("it listens");
    world.create(PODS, pod("a")).await;
    let prefer = (HeaderName::from_static("prefer"), HeaderValue::from_static("wait=7"));
    let client = asb_apiserver::local_client(world.dir.path(), Some(prefer)).expect("somebody listens");
    let request = Request::get(format!("{PODS}/a/exec?command=true")).body(Vec::new()).expect("a request");
    let connection = client.connect(request).await.expect("upgraded");
    let first = connection.into_stream().next().await.expect("a message").expect("no error");
    assert_eq!(first.into_text().expect("a text").as_str(), "wait=7");
}

#[tokio::test(flavor = "multi_thread")]
async fn socket_is_closed_to_others_and_goes_with_the_server() {
    let world = World::new().await;
    // What an engine that was killed has left.
    drop(std::os::unix::net::UnixListener::bind(socket(&world)).expect("bound"));
    world.server.serve_locally().expect("it takes the place of what was left");
    assert!(std::fs::metadata(socket(&world)).expect("a file").file_type().is_socket());
    assert_eq!(mode(&socket(&world)), 0o600);
    world.server.shutdown().await;
    let gone = async {
        while socket(&world).exists() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), gone).await.expect("the socket goes");
}

/// Somebody opens up the directory and the file: the kernel still says who connects.
#[tokio::test(flavor = "multi_thread")]
async fn another_user_is_not_served() {
    let world = World::new().await;
    world.server.serve_locally().expect("it listens");
    for (path, mode) in [(world.dir.path().to_owned(), 0o755), (socket(&world), 0o666)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("opened up");
    }
    let ask = |user: &str| {
        let script = "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\ntry:\n \
            s.sendall(b'GET /api/v1/secrets HTTP/1.1\\r\\nHost: a\\r\\nConnection: close\\r\\n\\r\\n')\n \
            print('told', s.makefile('rb').read().decode()[:12])\nexcept ConnectionError:\n print('told')\n";
        let asked = Command::new("setpriv")
            .args(["--reuid", user, "--regid", user, "--clear-groups", "/usr/bin/python3", "-c", script])
            .arg(socket(&world))
            .output()
            .expect("setpriv and python3 are needed");
        format!("{}{}", String::from_utf8_lossy(&asked.stdout), String::from_utf8_lossy(&asked.stderr))
    };
    assert_eq!(ask("0").trim(), "told HTTP/1.1 200");
    assert_eq!(ask("65534").trim(), "told", "connected, and nothing came");
}

#[tokio::test(flavor = "multi_thread")]
async fn path_of_the_directory_may_be_longer_than_an_address() {
    let dir = tempfile::tempdir().expect("a directory");
    let data_dir = dir.path().join("d".repeat(120)).join("e".repeat(120));
    std::fs::create_dir_all(&data_dir).expect("made");
    let config = asb_apiserver::Config { data_dir: data_dir.clone(), crds: Vec::new(), node_name: None };
    let server = asb_apiserver::ApiServer::open(config).await.expect("opened");
    server.serve_locally().expect("it listens");
    let client = asb_apiserver::local_client(&data_dir, None).expect("somebody listens");
    client.apiserver_version().await.expect("it answers");
}
