//! Below TLS: notices a half-read record that makes no progress (C22). Above TLS it cannot be seen,
//! nor told from a whole record without data, such as a session ticket or a key update.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use super::pump::STALL;

/// Type, version and length; the length is in the last two bytes.
const HEADER: usize = 5;

/// Where the bytes read so far leave off. Nothing is decrypted: record headers are in the clear.
#[derive(Debug, Default, PartialEq, Eq)]
struct Position {
    header: [u8; HEADER],
    /// Bytes of the header that are there.
    have: usize,
    /// Bytes of the body that are missing.
    missing: usize,
}

impl Position {
    fn is_within_a_record(&self) -> bool {
        self.have > 0
    }

    fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let more = if self.have < HEADER {
                let more = bytes.len().min(HEADER - self.have);
                self.header[self.have..self.have + more].copy_from_slice(&bytes[..more]);
                self.have += more;
                if self.have == HEADER {
                    self.missing = u16::from_be_bytes([self.header[3], self.header[4]]).into();
                }
                more
            } else {
                let more = bytes.len().min(self.missing);
                self.missing -= more;
                more
            };
            if self.have == HEADER && self.missing == 0 {
                self.have = 0;
            }
            bytes = &bytes[more..];
        }
    }
}

/// A connection that carries TLS records.
pub(super) struct Records<S> {
    inner: S,
    position: Position,
    /// Runs within a record, once the session is up: an attempt has its own 10 s.
    stalled: Option<Pin<Box<Sleep>>>,
    is_timed: bool,
}

impl<S> Records<S> {
    pub(super) fn new(inner: S) -> Self {
        Records {
            inner,
            position: Position::default(),
            stalled: None,
            is_timed: false,
        }
    }

    /// From here on a record that stops half-way is an error.
    pub(super) fn begin_timing(&mut self) {
        self.is_timed = true;
        self.rearm();
    }

    pub(super) fn get_ref(&self) -> &S {
        &self.inner
    }

    /// After each progress.
    fn rearm(&mut self) {
        if !self.is_timed || !self.position.is_within_a_record() {
            self.stalled = None;
        } else if let Some(stalled) = &mut self.stalled {
            stalled.as_mut().reset(Instant::now() + STALL);
        } else {
            self.stalled = Some(Box::pin(sleep(STALL)));
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Records<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        // What is already readable is read first (C22).
        if let Poll::Ready(read) = Pin::new(&mut this.inner).poll_read(cx, buf) {
            this.position.read(&buf.filled()[before..]);
            this.rearm();
            return Poll::Ready(read);
        }
        match &mut this.stalled {
            None => Poll::Pending,
            Some(stalled) => {
                ready!(stalled.as_mut().poll(cx));
                let what = "half a TLS record, and nothing more for 3 s";
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, what)))
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Records<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c22_a_position_within_a_record_is_known_however_the_bytes_are_cut() {
        let record = |len: u16| {
            let mut bytes = vec![0x17, 3, 3];
            bytes.extend(len.to_be_bytes());
            bytes.resize(HEADER + usize::from(len), 0xff);
            bytes
        };
        // Also one without a body, and one longer than a byte can count.
        let bytes = [record(3), record(0), record(700), record(1)].concat();
        let ends = [0, 8, 13, 718, 724];
        assert_eq!(bytes.len(), 724);
        for piece in 1..=bytes.len() {
            let mut position = Position::default();
            let mut at = 0;
            for part in bytes.chunks(piece) {
                position.read(part);
                at += part.len();
                let within = !ends.contains(&at);
                assert_eq!(position.is_within_a_record(), within, "{at} by {piece}");
            }
        }
    }
}
