//! The socket of this machine: no TLS and no token, for the user whose engine it is.
//!
//! `asb` talks to its engine here: a connection costs a fraction of a handshake. Who connects is told by the kernel,
//! and only the same user is served; besides, the file is closed to everybody else.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::{HeaderName, HeaderValue, Request, Response, header};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use kube::client::Body;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{Error, connection};

/// In the data directory.
const SOCKET: &str = "api.sock";

/// Listens until it is told to stop.
pub(crate) fn serve(router: axum::Router, data_dir: &Path, stop: CancellationToken) -> Result<(), Error> {
    let path = data_dir.join(SOCKET);
    let listener = listen(data_dir).map_err(|source| Error::File { path: path.clone(), source })?;
    tokio::spawn(async move {
        run(listener, router, &stop).await;
        // Whoever looks for an engine finds none.
        let _ = std::fs::remove_file(path);
    });
    Ok(())
}

fn listen(data_dir: &Path) -> io::Result<UnixListener> {
    // Whose turn it is, is decided elsewhere: what is left here is a dead engine's.
    match std::fs::remove_file(data_dir.join(SOCKET)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let directory = std::fs::File::open(data_dir)?;
    let listener = UnixListener::bind(address(&directory))?;
    std::fs::set_permissions(data_dir.join(SOCKET), std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// By descriptor: the whole path may be longer than an address can be.
fn address(directory: &std::fs::File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd()))
}

async fn run(listener: UnixListener, router: axum::Router, stop: &CancellationToken) {
    let slots = Arc::new(Semaphore::new(connection::MOST));
    let user = rustix::process::geteuid().as_raw();
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        let result = tokio::select! {
            () = stop.cancelled() => return,
            result = listener.accept() => result,
        };
        let Some((stream, _)) = connection::accepted(result).await else { continue };
        if !stream.peer_cred().is_ok_and(|peer| peer.uid() == user) {
            tracing::warn!("somebody who is another user was turned away from the local socket");
            continue;
        }
        let (router, stop) = (router.clone(), stop.clone());
        tokio::spawn(async move {
            let _slot = slot;
            tokio::select! {
                () = stop.cancelled() => {}
                () = connection::serve(stream, router, |_| None) => {}
            }
        });
    }
}

/// A client of the engine that listens in a data directory, if one does. `every` is a header for all of its requests.
pub fn client(data_dir: &Path, every: Option<(HeaderName, HeaderValue)>) -> Option<kube::Client> {
    let listens = data_dir.join(SOCKET).exists();
    listens.then(|| kube::Client::new(Local { data_dir: data_dir.into(), every }, "default"))
}

/// The transport of such a client: a connection for each request, which is all that an upgrade needs.
#[derive(Clone)]
struct Local {
    data_dir: Arc<Path>,
    every: Option<(HeaderName, HeaderValue)>,
}

impl tower::Service<Request<Body>> for Local {
    type Response = Response<Incoming>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let Self { data_dir, every } = self.clone();
        request.headers_mut().insert(header::HOST, HeaderValue::from_static("localhost"));
        request.headers_mut().extend(every);
        Box::pin(async move {
            let directory = std::fs::File::open(&data_dir)?;
            let stream = UnixStream::connect(address(&directory)).await?;
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection.with_upgrades());
            Ok(sender.send_request(request).await?)
        })
    }
}
