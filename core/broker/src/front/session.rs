//! One authenticated connection: bytes in, engine, bytes out. The same for TCP and TLS.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use ticketing_wire::MAX_REQUEST_LEN;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::engine::{Engine, Fault, Input, Outbox, Step};
use crate::table::ConnId;

/// How a session ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    /// Every reply has been written. The caller closes in its own time.
    #[error("everything is answered")]
    Answered,
    #[error("{0}")]
    Lost(io::Error),
    #[error("{0}")]
    Fault(Fault),
    /// S6: a client that does not read.
    #[error("{0} bytes of replies are unread, the limit is limits.unsent_replies = {1}")]
    Unread(usize, usize),
}

/// Buffers that a task needs only while it is being polled, so one set a thread is enough and an
/// idle connection holds none.
struct Scratch {
    input: Box<[u8]>,
    out: Outbox,
    wakers: Vec<Waker>,
}

/// Large enough for hundreds of pipelined requests, small enough not to hold the engine for long.
const INPUT_LEN: usize = 16 * 1024;
const _: () = assert!(
    INPUT_LEN > 2 * MAX_REQUEST_LEN,
    "a partial frame leaves room to read"
);

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch {
        input: vec![0; INPUT_LEN].into(),
        out: Outbox::default(),
        wakers: Vec::new(),
    });
}

pub(super) struct Session<'a, S> {
    engine: &'a Engine,
    id: ConnId,
    stream: S,
    max_unsent: usize,
    half_closed: bool,
    /// Reading or writing failed. If it was writing, what the client had sent before is still read.
    error: Option<io::Error>,
    /// The beginning of a frame whose rest has not come.
    partial: Vec<u8>,
    /// Replies that the transport did not take yet.
    unsent: Outbox,
}

impl<S> Drop for Session<'_, S> {
    fn drop(&mut self) {
        self.engine.disconnect(self.id, &self.unsent);
    }
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> Session<'a, S> {
    pub(super) fn new(engine: &'a Engine, stream: S, max_unsent: usize) -> Self {
        Session {
            engine,
            id: engine.connect(),
            stream,
            max_unsent,
            half_closed: false,
            error: None,
            partial: Vec::new(),
            unsent: Outbox::default(),
        }
    }

    /// Serves requests until the connection ends. On [`End::Answered`] the stream is still open.
    pub(super) async fn run(&mut self) -> End {
        poll_fn(|cx| SCRATCH.with_borrow_mut(|scratch| self.poll(cx, scratch))).await
    }

    /// The stream of a session that has ended.
    pub(super) fn stream(&mut self) -> &mut S {
        &mut self.stream
    }

    fn poll(&mut self, cx: &mut Context<'_>, scratch: &mut Scratch) -> Poll<End> {
        let Scratch { input, out, wakers } = scratch;
        loop {
            let filled = self.read(cx, input);
            let more = filled == input.len();
            let broken = self.error.take_if(|_| !more);
            let follows = match (&broken, self.half_closed) {
                (Some(_), _) => Input::Broken,
                (None, true) => Input::HalfClosed,
                (None, false) => Input::Open,
            };
            let bytes = &input[..filled];
            let step = self
                .engine
                .drive(self.id, bytes, follows, cx.waker(), out, wakers);
            let end = match (broken, step) {
                (Some(error), _) => Some(End::Lost(error)),
                (None, Step::Close(fault)) => Some(End::Fault(fault)),
                (None, _) => None,
            };
            if let Some(end) = end {
                self.unsent.append(out);
                return Poll::Ready(end);
            }
            if let Step::Continue { used } = step {
                self.partial.extend_from_slice(&bytes[used..]);
            }
            match self.write(cx, out) {
                Poll::Ready(Ok(())) if step == Step::Finish => return Poll::Ready(End::Answered),
                Poll::Ready(Err(error)) => {
                    self.error = Some(error);
                    continue;
                }
                _ => {}
            }
            let unsent = self.unsent.bytes().len();
            if unsent > self.max_unsent {
                return Poll::Ready(End::Unread(unsent, self.max_unsent));
            }
            if more {
                // The others' turn before this client's next buffer.
                cx.waker().wake_by_ref();
            }
            return Poll::Pending;
        }
    }

    /// Reads all that is there, or all that fits, behind the partial frame. Reading on until the
    /// transport has no more is how an end of stream is seen with the bytes before it (S5); for
    /// TCP that costs no further system call.
    fn read(&mut self, cx: &mut Context<'_>, input: &mut [u8]) -> usize {
        let mut filled = self.partial.len();
        input[..filled].copy_from_slice(&self.partial);
        self.partial = Vec::new();
        if self.half_closed || (self.engine.is_full() && self.engine.pause(self.id)) {
            return filled;
        }
        while filled < input.len() {
            let mut buf = ReadBuf::new(&mut input[filled..]);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if buf.filled().is_empty() => {
                    self.half_closed = true;
                    break;
                }
                Poll::Ready(Ok(())) => filled += buf.filled().len(),
                Poll::Ready(Err(error)) => {
                    self.error = Some(error);
                    break;
                }
                Poll::Pending => break,
            }
        }
        filled
    }

    /// Writes what was left over, then `out`; leaves `out` empty. Ready once nothing is left.
    fn write(&mut self, cx: &mut Context<'_>, out: &mut Outbox) -> Poll<io::Result<()>> {
        if self.unsent.is_empty() {
            let result = write_all(cx, &mut self.stream, out);
            if !out.is_empty() {
                std::mem::swap(&mut self.unsent, out);
            }
            return result;
        }
        self.unsent.append(out);
        let result = write_all(cx, &mut self.stream, &mut self.unsent);
        if self.unsent.is_empty() {
            self.unsent.shrink();
        }
        result
    }
}

fn write_all<S: AsyncWrite + Unpin>(
    cx: &mut Context<'_>,
    stream: &mut S,
    from: &mut Outbox,
) -> Poll<io::Result<()>> {
    let mut stream = Pin::new(stream);
    while !from.is_empty() {
        match stream.as_mut().poll_write(cx, from.bytes()) {
            Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            Poll::Ready(Ok(written)) => from.advance(written),
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(error)) => {
                // This write was begun with all of it; how far it came is not known (S5).
                from.clear();
                return Poll::Ready(Err(error));
            }
        }
    }
    stream.poll_flush(cx)
}

#[cfg(test)]
mod tests;
