//! How many connections the controller has to its API server, and what each of them carries.

use std::sync::{Arc, Mutex};

use asb_operator::connections::Connections;
use futures::future::join_all;
use http::{Request, Response, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::Client;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// Paths asked for, by connection.
type Seen = Arc<Mutex<Vec<Vec<String>>>>;

/// A server that says yes to everything.
struct Server {
    config: kube::Config,
    seen: Seen,
    _task: JoinSet<()>,
}

impl Server {
    async fn start(protocols: &[&[u8]]) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let chain = vec![made.cert.der().clone()];
        let mut tls =
            rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).expect("TLS");
        tls.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("it is bound").port();
        let mut config = kube::Config::new(format!("https://localhost:{port}").parse().expect("a URL"));
        config.root_cert = Some(vec![made.cert.der().to_vec()]);
        let seen = Seen::default();
        let mut task = JoinSet::new();
        task.spawn(accept(listener, TlsAcceptor::from(Arc::new(tls)), seen.clone()));
        Self { config, seen, _task: task }
    }

    fn client(&self, requests: usize, separate_watches: bool) -> Client {
        Connections { requests, separate_watches }.client(&self.config).expect("a client").build()
    }

    /// What each connection was asked for, in the order in which they were made.
    fn connections(&self) -> Vec<Vec<String>> {
        self.seen.lock().expect("nobody panicked").clone()
    }
}

async fn accept(listener: TcpListener, tls: TlsAcceptor, seen: Seen) {
    let mut connections = JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        let (tls, seen) = (tls.clone(), seen.clone());
        connections.spawn(async move {
            let Ok(stream) = tls.accept(socket).await else { return };
            let at = {
                let mut seen = seen.lock().expect("nobody panicked");
                seen.push(Vec::new());
                seen.len() - 1
            };
            let answer = service_fn(move |request: Request<Incoming>| {
                let version = if request.version() == Version::HTTP_2 { "2" } else { "1" };
                let asked = format!("{version} {}", request.uri().path_and_query().expect("a path"));
                seen.lock().expect("nobody panicked")[at].push(asked);
                async { Ok::<_, std::convert::Infallible>(Response::new("{}".to_owned())) }
            });
            let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            let _ = server.serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

async fn ask(client: &Client, path: &str) {
    let request = Request::get(path).body(Vec::new()).expect("a request");
    client.request_text(request).await.expect("an answer");
}

#[tokio::test]
async fn everything_shares_one_connection() {
    let server = Server::start(&[b"h2", b"http/1.1"]).await;
    let client = server.client(1, false);
    ask(&client, "/first").await;
    join_all((0..20).map(|_| ask(&client, "/api/v1/pods?watch=true"))).await;
    let connections = server.connections();
    assert_eq!(connections.len(), 1, "{connections:?}");
    assert_eq!(connections[0].len(), 21);
    assert!(connections[0].iter().all(|asked| asked.starts_with("2 ")), "{connections:?}");
}

/// MG-08
#[tokio::test]
async fn requests_take_several_connections_in_turn() {
    let server = Server::start(&[b"h2", b"http/1.1"]).await;
    let client = server.client(4, false);
    for at in 0..32 {
        ask(&client, &format!("/{at}")).await;
    }
    let connections = server.connections();
    assert_eq!(connections.len(), 4, "{connections:?}");
    for (at, asked) in connections.iter().enumerate() {
        let turns: Vec<_> = (0..8).map(|turn| format!("2 /{}", turn * 4 + at)).collect();
        assert_eq!(asked, &turns);
    }
}

/// MG-09
#[tokio::test]
async fn watches_have_one_connection_that_no_request_uses() {
    for requests in [1, 4] {
        let server = Server::start(&[b"h2", b"http/1.1"]).await;
        let client = server.client(requests, true);
        for _ in 0..8 {
            ask(&client, "/api/v1/pods?limit=500").await;
            ask(&client, "/api/v1/pods?watch=true&resourceVersion=1").await;
            ask(&client, "/api/v1/namespaces/default/pods/a").await;
        }
        let connections = server.connections();
        assert_eq!(connections.len(), requests + 1, "{connections:?}");
        let (watches, others): (Vec<_>, Vec<_>) =
            connections.iter().partition(|asked| asked.iter().any(|path| path.contains('?')));
        assert_eq!(watches.len(), 1, "{connections:?}");
        assert_eq!(watches[0].len(), 16);
        assert!(
            others.iter().flat_map(|asked| asked.iter()).all(|path| path.ends_with("/a")),
            "{connections:?}"
        );
    }
}

#[tokio::test]
async fn server_without_http2_is_spoken_to_as_it_can() {
    let server = Server::start(&[b"http/1.1"]).await;
    ask(&server.client(2, true), "/old").await;
    assert_eq!(server.connections(), [["1 /old"]]);
}

#[tokio::test]
async fn proxy_is_refused_by_name() {
    let mut config = kube::Config::new("https://localhost:1".parse().expect("a URL"));
    config.proxy_url = Some("http://proxy.example:3128".parse().expect("a URL"));
    let refused =
        Connections { requests: 1, separate_watches: false }.client(&config).err().expect("refused");
    assert!(refused.to_string().contains("http://proxy.example:3128"), "{refused}");
}
