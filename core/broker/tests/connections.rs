//! The broker over real sockets: requests, violations and the ends of connections.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::*;
use socket2::SockRef;
use ticketing_broker::Broker;
use ticketing_wire::{ErrorCode, Reply};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn grants_waits_and_releases() {
    let broker = memory_broker().await;
    let mut first = Peer::connect(broker.local_addr()).await;
    let mut second = Peer::connect(broker.local_addr()).await;
    let token = first.granted(&acquire(1, 0, 30, &["k"])).await;
    second.send(&acquire(1, 30, 30, &["k"])).await;
    second.send(&acquire(2, 0, 30, &["k"])).await;
    assert_eq!(second.reply().await, Reply::TimedOut { id: id(2) });
    first.send(&release(2, token, &["k"])).await;
    assert_eq!(first.reply().await, Reply::Released { id: id(2) });
    let next = second.grant().await;
    assert!(next > token);
}

#[tokio::test]
async fn s2_a_lease_and_a_wait_end_by_themselves() {
    let broker = memory_broker().await;
    let mut holder = Peer::connect(broker.local_addr()).await;
    let mut waiter = Peer::connect(broker.local_addr()).await;
    let before = std::time::Instant::now();
    holder.granted(&acquire(1, 0, 2, &["k"])).await;
    waiter.send(&acquire(1, 1, 1, &["k"])).await;
    waiter.send(&acquire(2, 60, 1, &["k"])).await;
    assert_eq!(waiter.reply().await, Reply::TimedOut { id: id(1) });
    assert!(before.elapsed().as_secs() >= 1);
    waiter.grant().await;
    assert!(before.elapsed().as_secs() >= 2, "never early");
}

#[tokio::test]
async fn every_invalid_request_gets_its_code_or_the_end() {
    let text = include_str!("../../../tests/vectors/wire-v3.json");
    let vectors: serde_json::Value = serde_json::from_str(text).unwrap();
    let broker = memory_broker().await;
    let cases = vectors["invalid_requests"].as_array().unwrap();
    assert!(cases.len() > 10);
    for case in cases {
        let text = |field: &str| case[field].as_str().unwrap();
        let bytes: Vec<u8> = (0..text("bytes").len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&text("bytes")[at..at + 2], 16).unwrap())
            .collect();
        let mut peer = Peer::connect(broker.local_addr()).await;
        peer.send(&bytes).await;
        let answer = peer.next().await;
        if let Some(code) = text("answer").strip_prefix('E') {
            let Some(Reply::Error { id: one, code: got }) = answer else {
                panic!("{}: {answer:?}", text("why"))
            };
            assert_eq!(
                (one, got.get().to_string()),
                (id(1), code.to_owned()),
                "{}",
                text("why")
            );
            // The broker keeps the connection.
            peer.granted(&acquire(2, 0, 1, &[text("why").replace(' ', "-").as_str()]))
                .await;
        } else {
            assert_eq!(answer, None, "{}", text("why"));
        }
    }
}

#[tokio::test]
async fn an_outstanding_id_used_again_is_a_violation() {
    let broker = memory_broker().await;
    let mut peer = Peer::connect(broker.local_addr()).await;
    let token = peer.granted(&acquire(1, 0, 30, &["k"])).await;
    // An answered id may come again: it need not be remembered.
    assert_eq!(
        peer.granted(&acquire(1, 0, 30, &["free"])).await.get(),
        token.get() + 1
    );
    peer.send(&acquire(7, 30, 30, &["k"])).await;
    peer.send(&release(7, token, &["k"])).await;
    assert_eq!(peer.next().await, None);
}

#[tokio::test]
async fn every_cut_of_a_stream_gives_the_same_answers() {
    let broker = memory_broker().await;
    let mut peer = Peer::connect(broker.local_addr()).await;
    let stream_of = |first: u64| {
        [
            acquire(first, 0, 30, &["a"]),
            acquire(first + 1, 0, 30, &["a"]),
            acquire(first + 2, 0, 30, &["b", "c"]),
            acquire(first + 3, 0, 0, &["d"]),
        ]
        .concat()
    };
    let len = stream_of(1).len();
    for (first, cut) in (1..).step_by(10).zip(1..len) {
        let stream = stream_of(first);
        // The answer to the first request says that the cut frame behind it has been read too.
        peer.send(&[&acquire(first + 9, 0, 0, &["ping"])[..], &stream[..cut]].concat())
            .await;
        assert_eq!(peer.reply().await, error(first + 9, ErrorCode::BadLease));
        peer.send(&stream[cut..]).await;
        let one = peer.grant().await;
        assert_eq!(
            peer.reply().await,
            Reply::TimedOut { id: id(first + 1) },
            "cut at {cut}"
        );
        let set = peer.grant().await;
        assert_eq!(peer.reply().await, error(first + 3, ErrorCode::BadLease));
        peer.send(&release(first + 4, one, &["a"])).await;
        peer.send(&release(first + 5, set, &["b", "c"])).await;
        assert_eq!(peer.reply().await, Reply::Released { id: id(first + 4) });
        assert_eq!(peer.reply().await, Reply::SetReleased { id: id(first + 5) });
    }
}

#[tokio::test]
async fn a_long_pipeline_is_answered_in_full() {
    let broker = memory_broker().await;
    let peer = Peer::connect(broker.local_addr()).await;
    let mut stream = Vec::new();
    for n in 1..=20_000 {
        stream.extend(acquire(n, 0, 30, &[format!("key-{}", n % 5000).as_str()]));
    }
    let (mut read, mut write) = peer.stream.into_split();
    let sender = tokio::spawn(async move {
        write.write_all(&stream).await.unwrap();
        write
    });
    let (mut buf, mut next) = (Vec::new(), 1);
    while next <= 20_000 {
        assert_ne!(soon("replies", read.read_buf(&mut buf)).await.unwrap(), 0);
        let mut used = 0;
        while let Some((reply, len)) = Reply::decode(&buf[used..]).unwrap() {
            used += len;
            assert_eq!(reply.id(), Some(id(next)));
            assert_eq!(matches!(reply, Reply::Acquired { .. }), next <= 5000);
            next += 1;
        }
        buf.drain(..used);
    }
    drop(sender.await.unwrap());
}

#[tokio::test]
async fn s4_a_release_counts_on_whichever_connection_it_comes() {
    let broker = memory_broker().await;
    let mut first = Peer::connect(broker.local_addr()).await;
    let mut second = Peer::connect(broker.local_addr()).await;
    let token = first.granted(&acquire(1, 0, 30, &["a", "b"])).await;
    second.send(&release(1, token, &["a"])).await;
    assert_eq!(second.reply().await, error(1, ErrorCode::GroupMismatch));
    second.send(&release(2, token, &["a", "b"])).await;
    assert_eq!(second.reply().await, Reply::SetReleased { id: id(2) });
    second.send(&release(3, token, &["a", "b"])).await;
    assert_eq!(second.reply().await, Reply::NotCurrent { id: id(3) });
}

#[tokio::test]
async fn s5_half_close_answers_everything_and_then_closes() {
    let broker = memory_broker().await;
    let mut holder = Peer::connect(broker.local_addr()).await;
    let mut peer = Peer::connect(broker.local_addr()).await;
    let held = holder.granted(&acquire(1, 0, 30, &["held"])).await;
    let own = peer.granted(&acquire(1, 0, 30, &["own"])).await;
    peer.send(&acquire(2, 30, 30, &["held"])).await;
    peer.send(&acquire(3, 0, 30, &["held"])).await;
    assert_eq!(peer.reply().await, Reply::TimedOut { id: id(3) });
    peer.send(&release(4, own, &["own"])).await;
    peer.stream.shutdown().await.unwrap();
    let mut replies = peer.rest().await;
    replies.sort_by_key(Reply::id);
    assert_eq!(
        replies,
        [
            error(2, ErrorCode::NotActive),
            Reply::Released { id: id(4) }
        ]
    );
    // Its waiter has left the line; its release is in effect.
    holder.send(&release(2, held, &["held"])).await;
    assert_eq!(holder.reply().await, Reply::Released { id: id(2) });
    holder.granted(&acquire(3, 0, 30, &["held", "own"])).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn s5_an_acquire_that_comes_with_the_end_is_refused() {
    let broker = memory_broker().await;
    for n in 0..20 {
        let mut peer = Peer::connect(broker.local_addr()).await;
        // One segment: the end of the stream is there whenever the broker reads.
        SockRef::from(&peer.stream).set_tcp_cork(true).unwrap();
        peer.send(&acquire(1, 0, 30, &[format!("k{n}").as_str()]))
            .await;
        peer.stream.shutdown().await.unwrap();
        assert_eq!(peer.rest().await, [error(1, ErrorCode::NotActive)]);
    }
}

#[tokio::test]
async fn s5_a_reset_takes_the_waiters_with_it() {
    let broker = memory_broker().await;
    let mut holder = Peer::connect(broker.local_addr()).await;
    let mut gone = Peer::connect(broker.local_addr()).await;
    let mut next = Peer::connect(broker.local_addr()).await;
    let held = holder.granted(&acquire(1, 0, 30, &["k"])).await;
    gone.send(&acquire(1, 255, 30, &["k"])).await;
    gone.send(&acquire(2, 0, 30, &["k"])).await;
    assert_eq!(gone.reply().await, Reply::TimedOut { id: id(2) });
    gone.reset();
    next.send(&acquire(1, 255, 30, &["k"])).await;
    next.send(&acquire(2, 0, 30, &["k"])).await;
    assert_eq!(next.reply().await, Reply::TimedOut { id: id(2) });
    // Bounded by the broker's reading of the reset, not by anybody's wait.
    holder.send(&release(2, held, &["k"])).await;
    next.grant().await;
}

#[tokio::test]
async fn s5_grants_outlive_their_connection() {
    let broker = memory_broker().await;
    let mut holder = Peer::connect(broker.local_addr()).await;
    let token = holder.granted(&acquire(1, 0, 250, &["k"])).await;
    holder.stream.shutdown().await.unwrap();
    assert_eq!(holder.next().await, None);
    let mut other = Peer::connect(broker.local_addr()).await;
    other.send(&acquire(1, 0, 30, &["k"])).await;
    assert_eq!(other.reply().await, Reply::TimedOut { id: id(1) });
    other.send(&release(2, token, &["k"])).await;
    assert_eq!(other.reply().await, Reply::Released { id: id(2) });
}

#[tokio::test]
async fn s6_a_client_that_never_reads_is_closed() {
    let mut config = memory_config();
    config.limits.unsent_replies = 64 * 1024;
    let broker = Broker::start(config).await.unwrap();
    let mut peer = Peer::connect(broker.local_addr()).await;
    let burst: Vec<u8> = (1..1000).flat_map(|n| acquire(n, 0, 0, &["k"])).collect();
    // The systems' buffers take megabytes before the broker's own begin to fill.
    let sent = soon("the broker closes", async {
        let mut sent = 0_u64;
        while peer.stream.write_all(&burst).await.is_ok() {
            sent += burst.len() as u64;
        }
        sent
    })
    .await;
    assert!(sent > 0);
    // Others are served meanwhile and after.
    Peer::connect(broker.local_addr())
        .await
        .granted(&acquire(1, 0, 30, &["k"]))
        .await;
}

#[tokio::test]
async fn s3_tokens_start_above_the_configured_floor() {
    let mut config = memory_config();
    config.token_floor = 1 << 62;
    let broker = Broker::start(config).await.unwrap();
    let mut peer = Peer::connect(broker.local_addr()).await;
    let token = peer.granted(&acquire(1, 0, 30, &["k"])).await;
    assert!(token.get() > 1 << 62);
}

#[tokio::test]
async fn s6_limits_are_answered_busy() {
    let mut config = memory_config();
    config.limits.waiters_per_key = 2;
    config.limits.waiters = 3;
    config.limits.grants = 4;
    let broker = Broker::start(config).await.unwrap();
    let mut peer = Peer::connect(broker.local_addr()).await;
    peer.granted(&acquire(1, 0, 30, &["a"])).await;
    peer.granted(&acquire(2, 0, 30, &["b", "c", "d"])).await;
    peer.send(&acquire(3, 0, 30, &["e"])).await;
    assert_eq!(peer.reply().await, Reply::Busy { id: id(3) });
    for n in 4..=6 {
        peer.send(&acquire(n, 60, 30, &["a"])).await;
    }
    assert_eq!(peer.reply().await, Reply::Busy { id: id(6) });
    peer.send(&acquire(7, 60, 30, &["b"])).await;
    peer.send(&acquire(8, 60, 30, &["c"])).await;
    assert_eq!(peer.reply().await, Reply::Busy { id: id(8) });
}
