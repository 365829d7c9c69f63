//! Bytes of one session, both ways, until the state machine says that it is over.

use std::future::{pending, poll_fn};
use std::io;
use std::net::Shutdown;
use std::task::Poll;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::connect::Stream;
use crate::shared::Shared;
use crate::state::{SessionEnd, SessionId, Transmit};

/// A write or a half-read frame that makes no progress for so long ends the session (C22).
pub(super) const STALL: Duration = Duration::from_secs(3);
const READ_BUFFER: usize = 16 * 1024;

/// What is written at once: one TLS record.
const WRITE_SIZE: usize = 16 * 1024;

/// Tells the state machine that the socket is closed, also when the task ends by a bug.
struct Closed<'a>(&'a Shared, SessionId);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        if self.0.check_process().is_ok() {
            self.0.with(|state, now| state.forget(now, self.1));
        }
    }
}

pub(super) async fn run(shared: &Shared, id: SessionId, stream: Stream) {
    let closed = Closed(shared, id);
    match stream {
        Stream::Plain(mut tcp) => {
            let (read, write) = tcp.split();
            let end = exchange(shared, id, read, write).await;
            close(&tcp, end);
        }
        Stream::Tls(mut tls) => {
            tls.get_mut().0.begin_timing();
            let (mut read, mut write) = tokio::io::split(*tls);
            let end = exchange(shared, id, &mut read, &mut write).await;
            close(read.unsplit(write).get_ref().0.get_ref(), end);
        }
    }
    drop(closed);
}

async fn exchange(
    shared: &Shared,
    id: SessionId,
    read: impl AsyncRead + Unpin,
    write: impl AsyncWrite + Unpin,
) -> SessionEnd {
    let io = async {
        // Reading first: a process that was stopped must not blame its peer (C22).
        tokio::join!(biased; receive(shared, id, read), send(shared, id, write));
        pending::<()>().await;
    };
    tokio::select! {
        biased;
        end = poll_fn(|cx| shared.with(|state, _| state.poll_over(id, cx))) => end,
        () = io => unreachable!("it is pending at its end"),
    }
}

async fn receive(shared: &Shared, id: SessionId, mut from: impl AsyncRead + Unpin) {
    let mut buf = vec![0; READ_BUFFER];
    let mut half_read = false;
    loop {
        let read = from.read(&mut buf);
        let read = if half_read {
            timeout(STALL, read).await
        } else {
            Ok(read.await)
        };
        let n = match read {
            Ok(Ok(n)) => n,
            // A TLS peer that closes without its close_notify ends the stream all the same.
            Ok(Err(e)) if e.kind() == io::ErrorKind::UnexpectedEof => 0,
            Ok(Err(e)) => return lost(shared, id, &format!("the connection broke: {e}")),
            Err(_) => return lost(shared, id, "half a reply, and nothing more for 3 s"),
        };
        if n == 0 {
            return shared.with(|state, now| state.end_of_stream(now, id));
        }
        half_read = shared.with(|state, now| state.received(now, id, &buf[..n]));
    }
}

async fn send(shared: &Shared, id: SessionId, mut to: impl AsyncWrite + Unpin) {
    let mut buf = Vec::new();
    loop {
        poll_fn(|cx| shared.with(|state, _| state.poll_sendable(id, cx))).await;
        // The first request woke this task; tasks that are ready to make theirs come first, so
        // that one write carries them all. Unsent meanwhile, they can still be withdrawn (C8).
        after_the_ready().await;
        let next = shared.with(|state, now| state.transmit(now, id, &mut buf));
        let done = match next {
            None => continue,
            Some(Transmit::Write) => write_all(&mut to, &buf).await,
            Some(Transmit::Shutdown) => {
                // The peer may be gone already; the reading side finds that out.
                let _ = timeout(STALL, to.shutdown()).await;
                return;
            }
        };
        match done {
            Ok(()) => shared.with(|state, now| state.transmitted(now, id)),
            Err(e) => {
                let why = format!("writing failed: {e}");
                return shared.with(|state, now| state.write_failed(now, id, &why));
            }
        }
    }
}

/// Ends once every task that is ready now has run: tokio puts a task that wakes itself behind them.
async fn after_the_ready() {
    let mut behind = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut behind, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Writes everything, as long as it makes progress.
async fn write_all(to: &mut (impl AsyncWrite + Unpin), mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let n = bytes.len().min(WRITE_SIZE);
        let step = async {
            let n = to.write(&bytes[..n]).await?;
            // TLS may have taken the bytes without having sent them.
            to.flush().await?;
            Ok(n)
        };
        let stalled = |_| io::Error::new(io::ErrorKind::TimedOut, "no progress for 3 s");
        match timeout(STALL, step).await.map_err(stalled)? {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => bytes = &bytes[n..],
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn lost(shared: &Shared, id: SessionId, why: &str) {
    shared.with(|state, now| state.lost(now, id, why));
}

/// Closes the socket. `shutdown` first: a copy of the descriptor in a child process would keep
/// the connection up (C30).
fn close(tcp: &TcpStream, end: SessionEnd) {
    let socket = SockRef::from(tcp);
    // Both fail only on a connection that has gone by itself.
    let _ = match end {
        SessionEnd::Close => socket.shutdown(Shutdown::Both),
        SessionEnd::Reset => socket.set_linger(Some(Duration::ZERO)),
    };
}
