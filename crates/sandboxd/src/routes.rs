//! One service for every port: the legacy API, REST below `/v1` and gRPC, told apart by path and content type.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::{HeaderMap, Request, StatusCode};
use tokio::sync::{Semaphore, watch};

use crate::auth::Token;
use crate::cli::Options;
use crate::process::Table;
use crate::reply::{self, Reply};
use crate::{auth, grpc, legacy, paths, rest};

/// Each holds a descriptor of the kernel's, with a queue of events.
const MAX_WATCHES: usize = 16;

/// Everything that requests share.
pub struct State {
    pub table: Table,
    pub chunk: usize,
    pub started: Instant,
    pub metadata: std::collections::BTreeMap<String, String>,
    pub watches: Arc<Semaphore>,
    /// Turns true once, when the daemon stops.
    pub stopping: watch::Sender<bool>,
    root: Option<PathBuf>,
    token: Option<Token>,
}

impl State {
    pub fn new(options: &Options) -> Result<Self, String> {
        let token = auth::file(options.token_file.clone()).map(|file| Token::read(&file)).transpose()?;
        if let Some(root) = &options.root {
            create(root)?;
        }
        Ok(Self {
            table: Table::default(),
            chunk: options.chunk,
            started: Instant::now(),
            metadata: rest::metadata::visible(std::env::vars_os(), &options.metadata_prefix),
            watches: Arc::new(Semaphore::new(MAX_WATCHES)),
            stopping: watch::Sender::new(false),
            root: options.root.clone(),
            token,
        })
    }

    /// The root of the REST and gRPC APIs.
    pub fn root(&self) -> PathBuf {
        self.root.clone().unwrap_or_else(paths::workspace)
    }

    pub async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Reply {
        let path = request.uri().path();
        let is_grpc = is_grpc(request.headers());
        let allowed =
            self.token.as_ref().is_none_or(|token| token.allows(request.method(), path, request.headers()));
        match () {
            () if !allowed && is_grpc => grpc::unauthenticated(),
            () if !allowed => unauthorized(),
            () if is_grpc => grpc::answer(self, request).await,
            () if path == "/v1" || path.starts_with("/v1/") => rest::answer(self, request).await,
            () => legacy::answer(request, &self.table).await,
        }
    }
}

/// Returns when the daemon stops.
pub async fn stopped(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

fn create(root: &std::path::Path) -> Result<(), String> {
    use std::os::unix::fs::DirBuilderExt;
    let problem = |reason: String| format!("`--root-dir {}` cannot be used: {reason}", root.display());
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(root);
    match made {
        Ok(()) if root.is_dir() => Ok(()),
        Ok(()) => Err(problem("not a directory".to_owned())),
        Err(error) => Err(problem(error.to_string())),
    }
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

fn unauthorized() -> Reply {
    let mut reply = reply::error(
        StatusCode::UNAUTHORIZED,
        "UNAUTHENTICATED",
        "this daemon wants a token: send `Authorization: Bearer TOKEN`",
    );
    reply.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    reply
}
