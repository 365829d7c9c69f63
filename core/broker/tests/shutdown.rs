//! S10: how a broker ends.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::{Duration, Instant};

use common::*;
use ticketing_broker::Broker;
use ticketing_wire::{ErrorCode, Reply};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test]
async fn s10_waiters_and_new_acquires_are_refused_releases_taken() {
    let broker = memory_broker().await;
    let addr = broker.local_addr();
    let mut peer = Peer::connect(addr).await;
    let a = peer.granted(&acquire(1, 0, 30, &["a"])).await;
    let b = peer.granted(&acquire(2, 0, 30, &["b"])).await;
    peer.send(&acquire(3, 60, 30, &["a"])).await;
    peer.send(&acquire(4, 0, 30, &["a"])).await;
    assert_eq!(peer.reply().await, Reply::TimedOut { id: id(4) });

    let started = Instant::now();
    let work = async {
        assert_eq!(peer.reply().await, error(3, ErrorCode::NotActive));
        peer.send(&acquire(5, 60, 30, &["free"])).await;
        assert_eq!(peer.reply().await, error(5, ErrorCode::NotActive));
        peer.send(&release(6, a, &["a"])).await;
        assert_eq!(peer.reply().await, Reply::Released { id: id(6) });
        // Also on a new connection.
        let mut late = Peer::connect(addr).await;
        late.send(&release(1, b, &["b"])).await;
        assert_eq!(late.reply().await, Reply::Released { id: id(1) });
        assert_eq!(late.next().await, None, "closed in the end");
        assert_eq!(peer.next().await, None);
    };
    let (ended, ()) = tokio::join!(broker.shutdown(), work);
    ended.unwrap();
    assert!(
        started.elapsed() >= Duration::from_secs(1),
        "releases are taken for a second"
    );
    assert!(TcpStream::connect(addr).await.is_err());
    // Once more is no harm, and `wait` knows.
    broker.shutdown().await.unwrap();
    broker.wait().await.unwrap();
}

#[tokio::test]
async fn s10_releases_are_taken_for_a_second_though_nobody_is_connected() {
    let broker = memory_broker().await;
    let mut peer = Peer::connect(broker.local_addr()).await;
    peer.granted(&acquire(1, 0, 30, &["a"])).await;
    drop(peer);
    let started = Instant::now();
    broker.shutdown().await.unwrap();
    assert!(started.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn s10_clients_that_hold_nothing_are_answered_for_a_second_too() {
    let broker = memory_broker().await;
    let mut peer = Peer::connect(broker.local_addr()).await;
    let started = Instant::now();
    let work = async {
        // Answered while it stops: the first before it has read the request to stop, perhaps.
        let mut refused = 0;
        for n in 1.. {
            peer.send(&acquire(n, 0, 1, &[format!("k{n}").as_str()]))
                .await;
            match peer.next().await {
                Some(Reply::Error { .. }) => refused += 1,
                Some(Reply::Acquired { token, .. }) => {
                    peer.send(&release(n, token, &[format!("k{n}").as_str()]))
                        .await;
                    peer.reply().await;
                }
                other => {
                    assert_eq!(other, None);
                    break;
                }
            }
            if refused == 10 {
                assert_eq!(peer.next().await, None, "closed in the end");
                break;
            }
        }
        assert_eq!(refused, 10);
    };
    let (ended, ()) = tokio::join!(broker.shutdown(), work);
    ended.unwrap();
    assert!(started.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn s10_clients_that_go_on_sending_are_not_reset() {
    let broker = memory_broker().await;
    let mut clients = Vec::new();
    for _ in 0..50 {
        let peer = Peer::connect(broker.local_addr()).await;
        let (mut read, mut write) = peer.stream.into_split();
        // Until the broker's end is seen, and never with nothing under way.
        let sender = tokio::spawn(async move {
            while write.write_all(&acquire(1, 0, 0, &["k"])).await.is_ok() {
                tokio::task::yield_now().await;
            }
        });
        clients.push(async move {
            let mut bytes = [0; 4096];
            let end = loop {
                match read.read(&mut bytes).await {
                    Ok(1..) => {}
                    end => break end,
                }
            };
            sender.abort();
            end
        });
    }
    let ends = async {
        for client in clients {
            assert_eq!(soon("the end", client).await.unwrap(), 0);
        }
    };
    let (ended, ()) = tokio::join!(broker.shutdown(), ends);
    ended.unwrap();
}

#[tokio::test]
async fn s10_a_client_that_never_reads_does_not_hold_the_stop_up() {
    let mut config = memory_config();
    config.limits.unsent_replies = 1 << 30;
    let broker = Broker::start(config).await.unwrap();
    let mut peer = Peer::connect(broker.local_addr()).await;
    // Far more than the systems buffer, so that the broker has replies that it can't write.
    let burst: Vec<u8> = (1..10_000).flat_map(|n| acquire(n, 0, 0, &["k"])).collect();
    for _ in 0..100 {
        peer.send(&burst).await;
    }
    soon("the end", broker.shutdown()).await.unwrap();
}
