//! The recent output of a detached process: bounded, with an offset for every byte that was ever written, so that a
//! reader that lags behind learns how much it has missed.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::watch;

/// A chunk costs about so much beside its bytes, so there are no more chunks than capacity for them.
const SMALLEST: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Stdout,
    Stderr,
}

pub struct Ring {
    capacity: usize,
    chunks: Mutex<Chunks>,
    /// The offset after the last byte, and whether more can come.
    end: watch::Sender<(u64, bool)>,
}

#[derive(Default)]
struct Chunks {
    /// The offset of the first byte that is still there.
    start: u64,
    kept: VecDeque<(Source, Bytes)>,
}

/// What a reader gets next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    Chunk(Source, Bytes),
    /// So many bytes were overwritten before they could be read.
    Dropped(u64),
    End,
}

impl Ring {
    pub fn new(capacity: usize) -> Self {
        Self { capacity, chunks: Mutex::default(), end: watch::Sender::new((0, false)) }
    }

    pub fn push(&self, source: Source, bytes: Bytes) {
        let length = bytes.len() as u64;
        {
            let mut chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
            chunks.kept.push_back((source, bytes));
            let end = self.end.borrow().0 + length;
            while end - chunks.start > self.capacity as u64 || chunks.kept.len() > self.capacity / SMALLEST {
                let Some((_, oldest)) = chunks.kept.pop_front() else { break };
                chunks.start += oldest.len() as u64;
            }
        }
        self.end.send_modify(|end| end.0 += length);
    }

    /// Nothing comes any more.
    pub fn close(&self) {
        self.end.send_modify(|end| end.1 = true);
    }

    /// The chunk at `offset`, which is moved behind it; waits for one.
    pub async fn next(&self, offset: &mut u64) -> Next {
        let mut end = self.end.subscribe();
        loop {
            let (_, closed) = *end.borrow_and_update();
            if let Some(next) = self.at(offset) {
                return next;
            }
            if closed || end.changed().await.is_err() {
                return Next::End;
            }
        }
    }

    fn at(&self, offset: &mut u64) -> Option<Next> {
        let chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        if *offset < chunks.start {
            let dropped = chunks.start - *offset;
            *offset = chunks.start;
            return Some(Next::Dropped(dropped));
        }
        let mut position = chunks.start;
        for (source, bytes) in &chunks.kept {
            let end = position + bytes.len() as u64;
            if *offset < end {
                let rest = bytes.slice((*offset - position) as usize..);
                *offset = end;
                return Some(Next::Chunk(*source, rest));
            }
            position = end;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_reader_gets_everything_in_order_and_then_the_end() {
        let ring = Ring::new(1000);
        ring.push(Source::Stdout, Bytes::from_static(b"out"));
        ring.push(Source::Stderr, Bytes::from_static(b"err"));
        ring.close();
        let mut offset = 0;
        assert_eq!(ring.next(&mut offset).await, Next::Chunk(Source::Stdout, Bytes::from_static(b"out")));
        assert_eq!(ring.next(&mut offset).await, Next::Chunk(Source::Stderr, Bytes::from_static(b"err")));
        assert_eq!(ring.next(&mut offset).await, Next::End);
    }

    #[tokio::test]
    async fn a_reader_that_lags_behind_learns_how_much_is_gone() {
        let ring = Ring::new(128);
        for _ in 0..10 {
            ring.push(Source::Stdout, Bytes::from(vec![b'x'; 40]));
        }
        let mut offset = 0;
        assert_eq!(ring.next(&mut offset).await, Next::Dropped(320));
        assert_eq!(ring.next(&mut offset).await, Next::Chunk(Source::Stdout, Bytes::from(vec![b'x'; 40])));
    }
}
