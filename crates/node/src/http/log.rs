//! `pods/log`: the container's output from its log files.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use asb_runtime::Sandbox;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::StreamExt;
use inotify::{Inotify, WatchMask};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use tokio::sync::mpsc;

use super::log_options::Options;
use super::patience::Patience;
use super::{Failure, slot, status};
use crate::node::{Node, uid};
use crate::pod::archive::Archive;

/// Read and sent at a time, about.
const PIECE: usize = 64 << 10;

pub async fn log(
    State(node): State<Node>,
    Path((namespace, pod)): Path<(String, String)>,
    query: Result<Query<Options>, QueryRejection>,
    patience: Patience,
) -> Result<Response, Failure> {
    let options = Options::of(&pod, query)?;
    let (sender, receiver) = mpsc::channel(16);
    match options.previous {
        true => {
            let pod = super::pod(&node, &namespace, &pod).await?;
            super::has_containers(&node, &pod)?;
            spawn_reader(previous(&node, &pod, &options)?, None, options, sender);
        }
        false => {
            let container = options.container.as_deref();
            spawn(patience.sandbox(&node, &namespace, &pod, container).await?, options, sender);
        }
    }
    let lines =
        futures::stream::unfold(receiver, |mut receiver| async { Some((receiver.recv().await?, receiver)) });
    let body = Body::from_stream(lines.map(Ok::<Bytes, io::Error>));
    Ok(([(CONTENT_TYPE, "text/plain")], body).into_response())
}

/// The log of the instance that ended last.
fn previous(node: &Node, pod: &Pod, options: &Options) -> Result<Vec<PathBuf>, Failure> {
    let slot = slot(pod, options.container.as_deref())?;
    let name = slot.name(pod);
    // One that ended and waits to be started again is still there, and is the last that ended.
    let waits = status(pod, slot).is_some_and(|it| it.state.as_ref().is_some_and(|it| it.waiting.is_some()));
    let here = node.shared.sandbox(&uid(pod), slot).filter(|_| waits);
    let archive = Archive::new(&node.shared.volumes.of_pod(&uid(pod)), name);
    let logs = match here {
        Some(sandbox) => sandbox.logs(),
        None if archive.read().is_some() => archive.logs(),
        None => {
            let message =
                format!("previous terminated container {name:?} in pod {:?} not found", pod.name_any());
            return Err(Failure::bad_request(message));
        }
    };
    Ok(logs)
}

/// Sends the wanted lines of a sandbox's log until there are no more, or nobody listens.
fn spawn(sandbox: Sandbox, options: Options, sender: mpsc::Sender<Bytes>) {
    spawn_reader(sandbox.logs(), Some(sandbox), options, sender);
}

/// The same from files; `sandbox` is who may still write to them.
fn spawn_reader(
    files: Vec<PathBuf>,
    sandbox: Option<Sandbox>,
    options: Options,
    sender: mpsc::Sender<Bytes>,
) {
    let reader = Reader { filter: Filter::new(&options, Timestamp::now()), sender, sandbox, files };
    tokio::spawn(async move {
        if let Err(error) = reader.run(&options).await {
            tracing::warn!(%error, "log not read to its end");
        }
    });
}

/// Which lines are wanted, and how they look.
struct Filter {
    since: Option<Timestamp>,
    timestamps: bool,
    /// Bytes that may still be sent.
    budget: Option<u64>,
    /// Lines to pass over.
    skip: usize,
    /// The line before was only the first part of one.
    continued: bool,
}

impl Filter {
    fn new(options: &Options, now: Timestamp) -> Self {
        let seconds =
            options.since_seconds.and_then(|ago| now.checked_sub(jiff::SignedDuration::from_secs(ago)).ok());
        Self {
            since: options.since_time.or(seconds),
            timestamps: options.timestamps,
            budget: options.limit(),
            skip: 0,
            continued: false,
        }
    }

    /// Puts what the client gets of these lines into one piece.
    fn piece(&mut self, lines: &[String]) -> Bytes {
        let mut out = String::new();
        lines.iter().filter_map(|line| parts(line)).for_each(|parts| self.apply(parts, &mut out));
        let mut bytes = Bytes::from(out);
        if let Some(budget) = &mut self.budget {
            bytes.truncate(usize::try_from(*budget).unwrap_or(usize::MAX));
            *budget -= bytes.len() as u64;
        }
        bytes
    }

    /// Adds a line, if the client asked for it.
    fn apply(&mut self, (time, tag, text): (&str, &str, &str), out: &mut String) {
        if let Some(fewer) = self.skip.checked_sub(1) {
            self.skip = fewer;
            return;
        }
        if self.since.is_some_and(|since| time.parse::<Timestamp>().is_ok_and(|time| time < since)) {
            return;
        }
        if self.timestamps && !self.continued {
            out.push_str(time);
            out.push(' ');
        }
        out.push_str(text);
        self.continued = tag == "P";
        if !self.continued {
            out.push('\n');
        }
    }

    fn exhausted(&self) -> bool {
        self.budget == Some(0)
    }
}

/// Time, tag and text of `<time> stdout|stderr F|P <text>`.
fn parts(line: &str) -> Option<(&str, &str, &str)> {
    let mut fields = line.splitn(4, ' ');
    let (time, _stream, tag) = (fields.next()?, fields.next()?, fields.next()?);
    Some((time, tag, fields.next().unwrap_or_default()))
}

struct Reader {
    filter: Filter,
    sender: mpsc::Sender<Bytes>,
    /// Who may still write; `None`: nobody.
    sandbox: Option<Sandbox>,
    files: Vec<PathBuf>,
}

impl Reader {
    async fn run(mut self, options: &Options) -> io::Result<()> {
        let files = std::mem::take(&mut self.files);
        let Some((current, older)) = files.split_last() else { return Ok(()) };
        // The watch must be there before the first read, or a line written in between is missed.
        let follow = options.follow && self.sandbox.is_some();
        let mut changes = if follow { Some(watch(current)?) } else { None };
        self.filter.skip = lines_to_skip(options.tail(), &files).await?;
        for path in older {
            let mut old = Follower::new(path.clone());
            self.copy(&mut old).await?;
        }
        let mut file = Follower::new(current.clone());
        let sandbox = self.sandbox.clone();
        let mut ended = std::pin::pin!(async {
            match &sandbox {
                Some(sandbox) => drop(sandbox.wait().await),
                None => std::future::pending().await,
            }
        });
        let mut over = false;
        loop {
            if !self.copy(&mut file).await? {
                return Ok(());
            }
            let Some(changes) = changes.as_mut().filter(|_| !over) else { return Ok(()) };
            tokio::select! {
                change = changes.next() => drop(change.transpose()?),
                // One more round: the last lines may have come just before the end.
                () = &mut ended => over = true,
                () = self.sender.closed() => return Ok(()),
            }
        }
    }

    /// Sends the lines that are there; `false` when no more are wanted.
    async fn copy(&mut self, file: &mut Follower) -> io::Result<bool> {
        loop {
            let lines = file.lines().await?;
            if lines.is_empty() {
                return Ok(true);
            }
            let piece = self.filter.piece(&lines);
            let gone = !piece.is_empty() && self.sender.send(piece).await.is_err();
            if gone || self.filter.exhausted() {
                return Ok(false);
            }
        }
    }
}

async fn lines_to_skip(tail: Option<usize>, files: &[PathBuf]) -> io::Result<usize> {
    let Some(tail) = tail else { return Ok(0) };
    let mut count = 0;
    for path in files {
        let mut file = Follower::new(path.clone());
        loop {
            match file.lines().await?.len() {
                0 => break,
                more => count += more,
            }
        }
    }
    Ok(count.saturating_sub(tail))
}

fn watch(current: &std::path::Path) -> io::Result<inotify::EventStream<[u8; 1024]>> {
    let directory = current.parent().unwrap_or(current);
    let inotify = Inotify::init()?;
    inotify.watches().add(directory, WatchMask::MODIFY | WatchMask::CREATE | WatchMask::MOVE)?;
    inotify.into_event_stream([0; 1024])
}

/// A file that is read from its beginning.
struct Source {
    file: File,
    at: u64,
    /// Only what is in memory: the rest would block, as the disk is to be asked for it.
    at_once: bool,
}

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = match self.at_once {
            false => self.file.read_at(buffer, self.at)?,
            true => {
                let mut buffers = [io::IoSliceMut::new(buffer)];
                match preadv2(&self.file, &mut buffers, self.at, ReadWriteFlags::NOWAIT) {
                    // Not every filesystem knows what it has in memory.
                    Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Err(io::ErrorKind::WouldBlock.into()),
                    read => read?,
                }
            }
        };
        self.at += read as u64;
        Ok(read)
    }
}

/// Reads whole lines from a file that grows and may be replaced by a new one under its name.
#[derive(Default)]
struct Follower {
    path: PathBuf,
    file: Option<BufReader<Source>>,
    /// As [`Source::at_once`].
    at_once: bool,
    /// The beginning of a line whose end is not written yet.
    partial: Vec<u8>,
}

impl Follower {
    fn new(path: PathBuf) -> Self {
        Self { path, ..Self::default() }
    }

    /// The next lines; none when there are no more for now. What was just written is in memory, and read at once. A disk may
    /// take its time, so another thread asks it: once for many lines, because every visit to a thread takes longer than most reads.
    async fn lines(&mut self) -> io::Result<Vec<String>> {
        self.at_once(true);
        match self.read() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return read,
        }
        self.at_once(false);
        let mut follower = std::mem::take(self);
        let read = tokio::task::spawn_blocking(move || {
            let lines = follower.read();
            (follower, lines)
        });
        let (follower, lines) = read.await.map_err(io::Error::other)?;
        *self = follower;
        lines
    }

    fn at_once(&mut self, at_once: bool) {
        self.at_once = at_once;
        self.file.iter_mut().for_each(|file| file.get_mut().at_once = at_once);
    }

    fn read(&mut self) -> io::Result<Vec<String>> {
        let (mut lines, mut bytes) = (Vec::new(), 0);
        while bytes < PIECE {
            match self.line() {
                Ok(Some(line)) => {
                    bytes += line.len();
                    lines.push(line);
                }
                // What could be read comes first; the error will still be there.
                Ok(None) => break,
                Err(_) if !lines.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(lines)
    }

    fn line(&mut self) -> io::Result<Option<String>> {
        loop {
            if self.file.is_none() {
                self.file = match File::open(&self.path) {
                    Ok(file) => Some(BufReader::new(Source { file, at: 0, at_once: self.at_once })),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                    Err(error) => return Err(error),
                };
            }
            let Some(file) = self.file.as_mut() else { return Ok(None) };
            file.read_until(b'\n', &mut self.partial)?;
            if self.partial.last() == Some(&b'\n') {
                self.partial.pop();
                let line = String::from_utf8_lossy(&self.partial).into_owned();
                self.partial.clear();
                return Ok(Some(line));
            }
            if !self.replaced()? {
                return Ok(None);
            }
            self.file = None;
        }
    }

    /// Whether another file stands under the path by now.
    fn replaced(&self) -> io::Result<bool> {
        use std::os::unix::fs::MetadataExt;
        let Some(file) = &self.file else { return Ok(false) };
        match std::fs::metadata(&self.path) {
            Ok(found) => Ok(found.ino() != file.get_ref().file.metadata()?.ino()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filtered(options: Options, lines: &[&str]) -> String {
        let mut filter = Filter::new(&options, "2026-01-01T00:01:00Z".parse().unwrap());
        let lines: Vec<_> = lines.iter().map(ToString::to_string).collect();
        String::from_utf8_lossy(&filter.piece(&lines)).into_owned()
    }

    const LINES: [&str; 3] = [
        "2026-01-01T00:00:00.5Z stdout P one ",
        "2026-01-01T00:00:01Z stdout F line",
        "2026-01-01T00:00:59Z stderr F two",
    ];

    #[test]
    fn parts_of_a_line_are_joined() {
        assert_eq!(filtered(Options::default(), &LINES), "one line\ntwo\n");
        let stamped = filtered(Options { timestamps: true, ..Options::default() }, &LINES);
        assert_eq!(stamped, "2026-01-01T00:00:00.5Z one line\n2026-01-01T00:00:59Z two\n");
    }

    #[test]
    fn since_and_limit_cut() {
        assert_eq!(filtered(Options { since_seconds: Some(10), ..Options::default() }, &LINES), "two\n");
        assert_eq!(filtered(Options { limit_bytes: Some(5), ..Options::default() }, &LINES), "one l");
    }

    #[tokio::test]
    async fn follower_reads_on_in_the_file_that_replaced_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "a\nhalf").unwrap();
        let mut follower = Follower::new(path.clone());
        assert_eq!(follower.lines().await.unwrap(), ["a"], "half a line is not a line");
        assert!(follower.lines().await.unwrap().is_empty());
        std::fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .map(|mut file| io::Write::write_all(&mut file, b" done\n"))
            .unwrap()
            .unwrap();
        std::fs::rename(&path, dir.path().join("old")).unwrap();
        std::fs::write(&path, "b\n").unwrap();
        assert_eq!(follower.lines().await.unwrap(), ["half done", "b"]);
    }

    #[tokio::test]
    async fn long_log_comes_in_pieces() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let line = "x".repeat(1000);
        std::fs::write(file.path(), format!("{line}\n").repeat(100)).unwrap();
        let mut follower = Follower::new(file.path().to_owned());
        let first = follower.lines().await.unwrap().len();
        let rest = follower.lines().await.unwrap().len();
        assert_eq!((first, rest), (PIECE.div_ceil(1000), 100 - first));
        assert!(follower.lines().await.unwrap().is_empty());
    }
}
