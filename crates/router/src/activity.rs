//! What happens on a connection, and when nothing does.
//!
//! ```text
//! no request in flight ─┬─ the beginning of one has come ─► ends after `header_read_timeout`
//!                       └─ nothing ───────────────────────► ends after `keep_alive`
//! a request in flight ──── nothing moves ─────────────────► ends after `idle_timeout`
//! ```
//!
//! The HTTP library has one limit for the first two. A short one closes connections that proxies in front keep for
//! their next request, which then fails; a long one is a gift to callers that send a header line a minute.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::Limits;

/// A connection that has not sent this much in time has sent neither a request nor the preface of HTTP/2.
const PREFACE: u64 = 24;

/// Counts what happens on one connection.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    read: AtomicU64,
    written: AtomicU64,
    begun: AtomicU64,
    ended: AtomicU64,
    /// What had been read when the last request ended.
    read_at_end: AtomicU64,
    /// Parts of bodies, in both directions.
    parts: AtomicU64,
    is_http2: AtomicBool,
}

/// A request in flight, until it is dropped.
pub struct Busy(Progress);

/// A stream that counts its progress.
pub struct Watched<S> {
    pub stream: S,
    pub progress: Progress,
}

/// Why a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// No request came: the caller may be told first.
    Idle,
    /// The head of a request is not sent to its end, or nothing moves.
    Stuck,
}

/// A state that must not last, and when it was seen first.
#[derive(Default)]
struct Lasting(Option<(u64, Instant)>);

// === impl Lasting ===

impl Lasting {
    /// The state in which a connection begins.
    fn since(began: Instant) -> Self {
        Self(Some((0, began)))
    }

    /// How long this state has been seen.
    fn see(&mut self, state: u64, now: Instant) -> Duration {
        match self.0 {
            Some((seen, since)) if seen == state => now - since,
            _ => {
                self.0 = Some((state, now));
                Duration::ZERO
            }
        }
    }
}

// === impl Progress ===

impl Progress {
    /// A request has come.
    pub fn begin(&self, is_http2: bool) -> Busy {
        self.0.begun.fetch_add(1, Relaxed);
        if is_http2 {
            self.0.is_http2.store(true, Relaxed);
        }
        Busy(self.clone())
    }

    /// A part of a body has passed.
    pub fn part(&self) {
        self.0.parts.fetch_add(1, Relaxed);
    }

    /// Completes when no byte has moved for `limit`, which is noticed within as much again.
    pub async fn idle_for(&self, limit: Duration) {
        let mut seen = self.bytes();
        loop {
            tokio::time::sleep(limit).await;
            let now = self.bytes();
            if std::mem::replace(&mut seen, now) == now {
                return;
            }
        }
    }

    /// Completes when the connection of a caller should end. Notices it within `header_read_timeout`.
    pub async fn ended(&self, limits: &Limits) -> End {
        let tick = limits.header_read_timeout.min(limits.keep_alive).min(limits.idle_timeout);
        let began = Instant::now();
        let (mut idle, mut head, mut still) =
            (Lasting::since(began), Lasting::since(began), Lasting::default());
        loop {
            tokio::time::sleep(tick).await;
            let now = Instant::now();
            let begun = self.0.begun.load(Relaxed);
            if self.is_busy() {
                (idle, head) = (Lasting::default(), Lasting::default());
                if still.see(self.moved(), now) >= limits.idle_timeout {
                    return End::Stuck;
                }
                continue;
            }
            still = Lasting::default();
            if self.bytes() < PREFACE && now - began >= limits.header_read_timeout {
                return End::Stuck;
            }
            if !self.has_part_of_a_head() {
                head = Lasting::default();
            } else if head.see(begun, now) >= limits.header_read_timeout {
                return End::Stuck;
            }
            if idle.see(begun, now) >= limits.keep_alive {
                return End::Idle;
            }
        }
    }

    /// Completes when a connection that takes no more requests has none in flight, for long enough to say goodbye.
    pub async fn left(&self, limits: &Limits) {
        let stuck = async { while self.ended(limits).await != End::Stuck {} };
        let unused = async {
            loop {
                tokio::time::sleep(limits.header_read_timeout).await;
                if !self.is_busy() {
                    return;
                }
            }
        };
        tokio::select! {
            () = stuck => {}
            () = unused => {}
        }
    }

    fn is_busy(&self) -> bool {
        self.0.begun.load(Relaxed) != self.0.ended.load(Relaxed)
    }

    /// HTTP/2 has frames that are no part of a request, so only HTTP/1.1 shows this.
    fn has_part_of_a_head(&self) -> bool {
        !self.0.is_http2.load(Relaxed) && self.0.read.load(Relaxed) != self.0.read_at_end.load(Relaxed)
    }

    /// On HTTP/2 bytes move all the time: the router asks the caller whether it is still there, and it answers.
    fn moved(&self) -> u64 {
        if self.0.is_http2.load(Relaxed) {
            self.0.parts.load(Relaxed) + self.0.begun.load(Relaxed) + self.0.ended.load(Relaxed)
        } else {
            self.bytes()
        }
    }

    fn bytes(&self) -> u64 {
        self.0.read.load(Relaxed) + self.0.written.load(Relaxed)
    }

    fn has_read(&self, bytes: &[u8]) {
        let before = self.0.read.fetch_add(bytes.len() as u64, Relaxed);
        if before == 0 && bytes.starts_with(b"PRI") {
            self.0.is_http2.store(true, Relaxed);
        }
    }

    fn has_written(&self, bytes: usize) {
        self.0.written.fetch_add(bytes as u64, Relaxed);
    }
}

// === impl Busy ===

impl Busy {
    pub fn progress(&self) -> &Progress {
        &self.0
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let Counts { read, read_at_end, ended, .. } = &*self.0.0;
        read_at_end.store(read.load(Relaxed), Relaxed);
        ended.fetch_add(1, Relaxed);
    }
}

// === impl Watched ===

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.progress.has_read(&buf.filled()[before..]);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, buf))?;
        self.progress.has_written(written);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, bufs))?;
        self.progress.has_written(written);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn limits() -> Limits {
        Limits {
            header_read_timeout: 10 * SECOND,
            keep_alive: 120 * SECOND,
            idle_timeout: 600 * SECOND,
            ..Limits::default()
        }
    }

    /// When and how a connection ends after `happens`.
    async fn ends(happens: impl AsyncFnOnce(&Progress)) -> (End, Duration) {
        let progress = Progress::default();
        let began = Instant::now();
        let limits = limits();
        let happens = async {
            happens(&progress).await;
            std::future::pending::<()>().await;
        };
        let end = tokio::select! {
            end = progress.ended(&limits) => end,
            () = happens => unreachable!(),
        };
        (end, began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_sends_nothing_or_too_little_ends_soon() {
        assert_eq!(ends(async |_| ()).await, (End::Stuck, 10 * SECOND));
        assert_eq!(ends(async |it| it.has_read(b"GET / HTTP/1.1")).await, (End::Stuck, 10 * SECOND));
        assert_eq!(ends(async |it| it.has_read(b"PRI * HTTP/2.0")).await, (End::Stuck, 10 * SECOND));
        assert_eq!(ends(async |it| it.has_read(&[b'x'; 100])).await, (End::Stuck, 10 * SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_comes_slowly_ends_the_connection_however_many_came_before() {
        let (end, after) = ends(async |it| {
            for _ in 0..20 {
                it.has_read(&[b'x'; 100]);
                drop(it.begin(false));
                tokio::time::sleep(15 * SECOND).await;
            }
            for _ in 0..100 {
                it.has_read(b"x");
                tokio::time::sleep(SECOND).await;
            }
        })
        .await;
        assert_eq!(end, End::Stuck);
        // The first byte of the slow head came after 300 s.
        assert!(after >= 310 * SECOND && after <= 320 * SECOND, "{after:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_kept_for_the_next_request() {
        for is_http2 in [false, true] {
            let (end, after) = ends(async |it| {
                it.has_read(&[b'x'; 100]);
                drop(it.begin(is_http2));
                tokio::time::sleep(100 * SECOND).await;
                it.has_read(&[b'x'; 100]);
                drop(it.begin(is_http2));
            })
            .await;
            assert_eq!(end, End::Idle);
            assert!(after >= 220 * SECOND && after <= 230 * SECOND, "{after:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn frames_that_carry_nothing_do_not_keep_a_connection() {
        for busy in [false, true] {
            let progress = Progress::default();
            progress.has_read(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
            let request = progress.begin(true);
            let _request = busy.then_some(request);
            let pinging = async {
                loop {
                    tokio::time::sleep(5 * SECOND).await;
                    progress.has_written(17);
                    progress.has_read(&[0; 17]);
                }
            };
            let (began, limits) = (Instant::now(), limits());
            let end = tokio::select! {
                end = progress.ended(&limits) => end,
                () = pinging => unreachable!(),
            };
            let (wanted, limit) = if busy { (End::Stuck, 600) } else { (End::Idle, 120) };
            assert_eq!(end, wanted);
            let after = began.elapsed();
            assert!(after >= limit * SECOND && after <= (limit + 10) * SECOND, "{after:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_may_take_any_time_while_something_moves() {
        for is_http2 in [false, true] {
            let (_, after) = ends(async |it| {
                it.has_read(&[b'x'; 100]);
                let request = it.begin(is_http2);
                for _ in 0..20 {
                    tokio::time::sleep(500 * SECOND).await;
                    it.has_written(100);
                    request.progress().part();
                }
            })
            .await;
            assert!(after >= 10_000 * SECOND, "{after:?}");
        }
    }
}
