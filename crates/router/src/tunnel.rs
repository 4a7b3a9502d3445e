//! Bytes both ways between a caller and a sandbox, after a switch of protocols.
//!
//! A tunnel that waits holds no buffer: bytes are read into one that all tunnels of a thread share, and only what the
//! other side does not take at once is kept. So ten thousand idle WebSockets cost little more than their sockets.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::activity::{Progress, Watched};

const SCRATCH: usize = 64 * 1024;

thread_local! {
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH].into_boxed_slice());
}

/// One direction of a tunnel.
#[derive(Default)]
struct Direction {
    /// Read, but not yet written; `..written` is.
    kept: Vec<u8>,
    written: usize,
    state: State,
}

#[derive(Default, PartialEq, Eq)]
enum State {
    #[default]
    Open,
    /// The reader has ended; what is kept is still to be written.
    Ending,
    Ended,
}

/// Carries bytes until both sides have ended, one has failed, or nothing has moved for `idle_timeout`.
pub async fn carry<A, B>(caller: A, sandbox: B, idle_timeout: Duration) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let progress = Progress::default();
    let mut caller = Watched { stream: caller, progress: progress.clone() };
    let mut sandbox = sandbox;
    let (mut up, mut down) = (Direction::default(), Direction::default());
    let both = poll_fn(|cx| {
        let upward = up.poll(cx, &mut caller, &mut sandbox)?;
        let downward = down.poll(cx, &mut sandbox, &mut caller)?;
        if upward.is_ready() && downward.is_ready() { Poll::Ready(Ok(())) } else { Poll::Pending }
    });
    tokio::select! {
        ended = both => ended,
        () = progress.idle_for(idle_timeout) => Err(io::ErrorKind::TimedOut.into()),
    }
}

// === impl Direction ===

impl Direction {
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut (impl AsyncRead + Unpin),
        writer: &mut (impl AsyncWrite + Unpin),
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_write_kept(cx, writer))?;
            match self.state {
                State::Ended => return Poll::Ready(Ok(())),
                State::Ending => {
                    ready!(Pin::new(&mut *writer).poll_shutdown(cx))?;
                    self.state = State::Ended;
                }
                State::Open => ready!(self.poll_pass(cx, reader, writer))?,
            }
        }
    }

    fn poll_write_kept(
        &mut self,
        cx: &mut Context<'_>,
        writer: &mut (impl AsyncWrite + Unpin),
    ) -> Poll<io::Result<()>> {
        while self.written < self.kept.len() {
            match ready!(Pin::new(&mut *writer).poll_write(cx, &self.kept[self.written..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.written += count,
            }
        }
        if self.written > 0 {
            // Freed, not only emptied: most tunnels wait for a long time after a burst.
            self.kept = Vec::new();
            self.written = 0;
        }
        Poll::Ready(Ok(()))
    }

    /// Reads once, and writes as much of that as the writer takes.
    fn poll_pass(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut (impl AsyncRead + Unpin),
        writer: &mut (impl AsyncWrite + Unpin),
    ) -> Poll<io::Result<()>> {
        BUFFER.with_borrow_mut(|buffer| {
            let mut read = ReadBuf::new(buffer);
            if Pin::new(&mut *reader).poll_read(cx, &mut read)?.is_pending() {
                // Whatever a layer below has buffered leaves before this direction waits.
                ready!(Pin::new(&mut *writer).poll_flush(cx))?;
                return Poll::Pending;
            }
            let mut rest = read.filled();
            if rest.is_empty() {
                self.state = State::Ending;
                return Poll::Ready(Ok(()));
            }
            while !rest.is_empty() {
                match Pin::new(&mut *writer).poll_write(cx, rest)? {
                    Poll::Ready(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    Poll::Ready(count) => rest = &rest[count..],
                    Poll::Pending => {
                        self.kept = rest.to_vec();
                        return Poll::Ready(Ok(()));
                    }
                }
            }
            Poll::Ready(Ok(()))
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn bytes_pass_both_ways_through_small_buffers_and_an_end_passes_too() {
        let (mut caller, near) = duplex(7);
        let (mut sandbox, far) = duplex(5);
        let tunnel = tokio::spawn(carry(near, far, Duration::from_secs(60)));
        let sent: Vec<u8> = (0..100_000_u32).map(|number| number as u8).collect();
        let talking = async {
            let (mut from, mut to) = tokio::io::split(&mut caller);
            let writing = async {
                to.write_all(&sent).await.unwrap();
                to.shutdown().await.unwrap();
            };
            let mut received = Vec::new();
            tokio::join!(writing, async { from.read_to_end(&mut received).await.unwrap() });
            received
        };
        let echoing = async {
            let (mut from, mut to) = tokio::io::split(&mut sandbox);
            tokio::io::copy(&mut from, &mut to).await.unwrap();
            to.shutdown().await.unwrap();
        };
        let (received, ()) = tokio::join!(talking, echoing);
        assert!(received == sent, "every byte came back, in order");
        tunnel.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_tunnel_in_which_nothing_moves_ends() {
        let (_caller, near) = duplex(7);
        let (_sandbox, far) = duplex(7);
        let ended = carry(near, far, Duration::from_secs(60)).await;
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_tunnel_whose_reader_does_not_read_ends_too() {
        let (mut caller, near) = duplex(7);
        let (_sandbox, far) = duplex(7);
        let tunnel = tokio::spawn(carry(near, far, Duration::from_secs(60)));
        let flooding = async { while caller.write_all(&[0; 7]).await.is_ok() {} };
        flooding.await;
        assert_eq!(tunnel.await.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
