//! S5: what of a grant has reached the transport.

use super::*;
use crate::table::{LockTable, TableLimits};
use crate::token::TokenSource;
use ticketing_wire::{KeySet, Reply, Request, RequestId};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::time::Instant;

const GRANT: usize = 19;

fn engine() -> Engine {
    let tokens = TokenSource::new(0, 0, Box::new(|| 1)).unwrap();
    Engine::new(
        LockTable::new(TableLimits::default(), tokens),
        Instant::now(),
        false,
    )
}

/// A frame of 14 bytes.
fn acquire(n: u64, key: &str) -> Vec<u8> {
    let id = RequestId::new(n).unwrap();
    let keys = KeySet::new([key]).unwrap();
    let mut frame = Vec::new();
    Request::Acquire {
        id,
        wait: 0,
        lease: 30,
        keys: keys.as_keys(),
    }
    .encode(&mut frame);
    frame
}

/// Polls once: as far as the session gets with what is there.
async fn poll_once<S: AsyncRead + AsyncWrite + Unpin>(session: &mut Session<'_, S>) -> Option<End> {
    tokio::select! {
        biased;
        end = session.run() => Some(end),
        () = std::future::ready(()) => None,
    }
}

#[tokio::test]
async fn s5_only_grants_whose_bytes_the_transport_has_stay() {
    // The transport takes 15 bytes at a time, the client reads none.
    let engine = engine();
    let (mut client, stream) = duplex(15);
    let mut session = Session::new(&engine, stream, 1 << 20);
    for (n, key) in [(1, "a"), (2, "b"), (3, "c")] {
        client.write_all(&acquire(n, key)).await.unwrap();
        assert!(poll_once(&mut session).await.is_none());
    }
    assert_eq!(engine.stats().grants, 3);
    drop(session);
    assert_eq!(
        engine.stats().grants,
        1,
        "the first was begun, the others were not"
    );
}

#[tokio::test]
async fn s5_what_was_left_over_is_written_in_order() {
    let engine = engine();
    let (mut client, stream) = duplex(15);
    let mut session = Session::new(&engine, stream, 1 << 20);
    for (n, key) in [(1, "a"), (2, "b"), (3, "c")] {
        client.write_all(&acquire(n, key)).await.unwrap();
        assert!(poll_once(&mut session).await.is_none());
    }
    let mut bytes = [0; 3 * GRANT];
    tokio::select! {
        read = client.read_exact(&mut bytes) => { read.unwrap(); }
        end = session.run() => panic!("{end}"),
    }
    for (n, frame) in (1..).zip(bytes.chunks(GRANT)) {
        let (reply, _) = Reply::decode(frame).unwrap().unwrap();
        assert_eq!(reply.id(), RequestId::new(n));
    }
    drop(session);
    assert_eq!(engine.stats().grants, 3);
}

#[tokio::test]
async fn s5_a_grant_beside_a_violation_is_undone() {
    let engine = engine();
    let (mut client, stream) = duplex(100);
    let mut session = Session::new(&engine, stream, 1 << 20);
    let bytes = [acquire(1, "a"), b"?\0\0".to_vec()].concat();
    client.write_all(&bytes).await.unwrap();
    assert!(matches!(poll_once(&mut session).await, Some(End::Fault(_))));
    drop(session);
    assert_eq!(engine.stats().grants, 0, "nobody was told of it");
}

#[tokio::test]
async fn s5_half_closed_a_session_ends_once_all_is_written() {
    let engine = engine();
    let (mut client, stream) = duplex(15);
    let mut session = Session::new(&engine, stream, 1 << 20);
    client.write_all(&acquire(1, "a")).await.unwrap();
    assert!(poll_once(&mut session).await.is_none());
    client.shutdown().await.unwrap();
    let end = poll_once(&mut session).await;
    assert!(end.is_none(), "four bytes of the reply are left: {end:?}");
    client.read_exact(&mut [0; 15]).await.unwrap();
    assert!(matches!(poll_once(&mut session).await, Some(End::Answered)));
    client.read_exact(&mut [0; GRANT - 15]).await.unwrap();
}

/// Keeps what is written until it is flushed, as TLS does.
#[derive(Default)]
struct Buffered {
    input: Vec<u8>,
    written: Vec<u8>,
    flushed: Vec<u8>,
}

impl AsyncRead for Buffered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.input.is_empty() {
            return Poll::Pending;
        }
        buf.put_slice(&std::mem::take(&mut self.input));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Buffered {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.written.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = std::mem::take(&mut self.written);
        self.flushed.extend(written);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn replies_are_flushed() {
    let engine = engine();
    let stream = Buffered {
        input: acquire(1, "a"),
        ..Buffered::default()
    };
    let mut session = Session::new(&engine, stream, 1 << 20);
    assert!(poll_once(&mut session).await.is_none());
    assert_eq!(session.stream().flushed.len(), GRANT);
}

#[tokio::test]
async fn s6_a_session_whose_client_reads_again_is_small_again() {
    const MANY: usize = 1000;
    let engine = engine();
    let (mut client, stream) = duplex(MANY * 14);
    let mut session = Session::new(&engine, stream, 1 << 20);
    for turn in 0..3 {
        let bytes = (1..=MANY as u64).flat_map(|n| acquire(n, "a"));
        client.write_all(&bytes.collect::<Vec<u8>>()).await.unwrap();
        assert!(poll_once(&mut session).await.is_none(), "turn {turn}");
    }
    assert!(session.unsent.capacity() > MANY);
    let mut replies = vec![0; GRANT + (3 * MANY - 1) * 11];
    tokio::select! {
        read = client.read_exact(&mut replies) => { read.unwrap(); }
        end = session.run() => panic!("{end}"),
    }
    assert!(session.unsent.capacity() <= 256);
}

#[tokio::test]
async fn s6_nothing_is_read_while_the_open_batch_is_full() {
    let tokens = TokenSource::new(0, 0, Box::new(|| 1)).unwrap();
    let table = LockTable::new(TableLimits::default(), tokens);
    // Replies are held, and no committer takes them.
    let engine = Engine::new(table, Instant::now(), true);
    let other = engine.connect();
    let mut n = 0;
    while !engine.is_full() {
        let bytes: Vec<u8> = (n + 1..n + 1000).flat_map(|n| acquire(n, "a")).collect();
        let (mut out, mut wakers) = (Outbox::default(), Vec::new());
        let waker = Waker::noop();
        engine.drive(other, &bytes, Input::Open, waker, &mut out, &mut wakers);
        n += 1000;
    }
    let (mut client, stream) = duplex(100);
    let mut session = Session::new(&engine, stream, 1 << 20);
    client.write_all(&acquire(1, "free")).await.unwrap();
    assert!(poll_once(&mut session).await.is_none());
    assert_eq!(engine.stats().grants, 1, "that of the other connection");
}

#[tokio::test]
async fn s6_unsent_replies_are_bounded() {
    let engine = engine();
    let (mut client, stream) = duplex(15);
    let mut session = Session::new(&engine, stream, 2 * GRANT + 4);
    for (n, key) in [(1, "a"), (2, "b"), (3, "c")] {
        client.write_all(&acquire(n, key)).await.unwrap();
        assert!(poll_once(&mut session).await.is_none());
    }
    client.write_all(&acquire(4, "d")).await.unwrap();
    let end = poll_once(&mut session).await;
    assert!(matches!(end, Some(End::Unread(61, 42))), "{end:?}");
}

/// Gives its bytes, then fails to write.
struct Broken(Vec<u8>);

impl AsyncRead for Broken {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.0.is_empty() {
            return Poll::Pending;
        }
        let len = self.0.len().min(buf.remaining());
        buf.put_slice(&self.0[..len]);
        self.0.drain(..len);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Broken {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn s5_when_writing_fails_what_the_client_had_sent_is_still_read() {
    let engine = engine();
    let mut holder = Session::new(&engine, Broken(acquire(1, "held")), 1 << 20);
    assert!(matches!(poll_once(&mut holder).await, Some(End::Lost(_))));
    drop(holder);
    assert_eq!(engine.stats().grants, 1, "a write that holds it was begun");

    // More than one buffer of requests, the last of them a release.
    let mut bytes = Vec::new();
    for n in 1..2000 {
        bytes.extend(acquire(n, "held"));
    }
    let keys = KeySet::new(["held"]).unwrap();
    let (id, token) = (
        RequestId::MAX,
        ticketing_wire::Token::new((1 << 20) + 1).unwrap(),
    );
    Request::Release {
        id,
        token,
        keys: keys.as_keys(),
    }
    .encode(&mut bytes);
    assert!(bytes.len() > INPUT_LEN);
    let mut session = Session::new(&engine, Broken(bytes), 1 << 20);
    assert!(matches!(poll_once(&mut session).await, Some(End::Lost(_))));
    drop(session);
    assert_eq!(engine.stats().grants, 0);
}

/// Has bytes whenever it is asked, and takes all that it is given.
struct Endless {
    frame: Vec<u8>,
    given: usize,
}

impl AsyncRead for Endless {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        for _ in 0..buf.remaining() {
            let byte = self.frame[self.given % self.frame.len()];
            buf.put_slice(&[byte]);
            self.given += 1;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Endless {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn s6_a_flood_leaves_the_others_their_turn() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    struct Count(AtomicUsize);
    impl std::task::Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    let engine = engine();
    let flood = Endless {
        frame: acquire(1, "held"),
        given: 0,
    };
    let mut session = Session::new(&engine, flood, 1 << 20);
    let wakes = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(wakes.clone());
    let mut cx = Context::from_waker(&waker);
    for turn in 1..=3 {
        let polled = Box::pin(session.run()).as_mut().poll(&mut cx);
        assert!(polled.is_pending());
        assert!(session.stream().given <= turn * INPUT_LEN);
        assert_eq!(
            wakes.0.load(Ordering::Relaxed),
            turn,
            "it comes back for the rest"
        );
    }
}
