//! Durable mode over real sockets and a real data directory.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::{Duration, Instant};

use camino::Utf8Path;
use common::*;
use ticketing_broker::Broker;
use ticketing_broker::config::Config;
use ticketing_wire::{Reply, Token};

fn durable_config(dir: &tempfile::TempDir) -> Config {
    let mut config = memory_config();
    config.memory = false;
    config.data_dir = Utf8Path::from_path(dir.path()).unwrap().join("data");
    config
}

#[tokio::test]
async fn s7_grants_are_held_again_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::start(durable_config(&dir)).await.unwrap();
    let mut peer = Peer::connect(broker.local_addr()).await;
    let gone = peer.granted(&acquire(1, 0, 250, &["gone"])).await;
    let held = peer.granted(&acquire(2, 0, 250, &["a", "b"])).await;
    let brief = peer.granted(&acquire(3, 0, 1, &["brief"])).await;
    peer.send(&release(4, gone, &["gone"])).await;
    assert_eq!(peer.reply().await, Reply::Released { id: id(4) });
    peer.send(&release(5, gone, &["gone"])).await;
    assert_eq!(peer.reply().await, Reply::NotCurrent { id: id(5) });
    drop(peer);
    broker.shutdown().await.unwrap();
    drop(broker);

    let broker = Broker::start(durable_config(&dir)).await.unwrap();
    let restarted = Instant::now();
    let mut peer = Peer::connect(broker.local_addr()).await;
    peer.send(&acquire(1, 0, 30, &["a"])).await;
    assert_eq!(peer.reply().await, Reply::TimedOut { id: id(1) });
    peer.send(&release(2, held, &["a", "b"])).await;
    assert_eq!(peer.reply().await, Reply::SetReleased { id: id(2) });
    let again: Token = peer.granted(&acquire(3, 0, 30, &["gone"])).await;
    assert!(again > brief, "tokens only rise");
    broker.shutdown().await.unwrap();
    assert!(restarted.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn s7_half_closed_by_the_client_replies_of_its_commit_arrive() {
    use tokio::io::AsyncWriteExt;
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::start(durable_config(&dir)).await.unwrap();
    for round in 0..20 {
        let mut peer = Peer::connect(broker.local_addr()).await;
        let key = format!("k{round}");
        peer.send(&acquire(1, 0, 30, &[&key])).await;
        peer.stream.shutdown().await.unwrap();
        // Granted or refused, as the end of the stream was seen; but always answered.
        assert_eq!(peer.rest().await.len(), 1);
    }
}

#[tokio::test]
async fn s7_many_clients_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::start(durable_config(&dir)).await.unwrap();
    let addr = broker.local_addr();
    let clients: Vec<_> = (0..32)
        .map(|n| {
            tokio::spawn(async move {
                let mut peer = Peer::connect(addr).await;
                let key = format!("key-{}", n % 4);
                let mut last = None;
                for round in 0..5 {
                    let token = peer.granted(&acquire(2 * round + 1, 60, 30, &[&key])).await;
                    assert!(Some(token) > last);
                    last = Some(token);
                    peer.send(&release(2 * round + 2, token, &[&key])).await;
                    assert_eq!(
                        peer.reply().await,
                        Reply::Released {
                            id: id(2 * round + 2)
                        }
                    );
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
}

#[tokio::test]
async fn s8_a_data_directory_in_use_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::start(durable_config(&dir)).await.unwrap();
    let refused = Broker::start(durable_config(&dir)).await.unwrap_err();
    assert!(!refused.is_configuration());
    assert!(refused.to_string().contains("in use"), "{refused}");
    broker.shutdown().await.unwrap();
    Broker::start(durable_config(&dir)).await.unwrap();
}

#[tokio::test]
async fn s8_a_broker_that_is_dropped_gives_its_data_directory_up() {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::start(durable_config(&dir)).await.unwrap();
    let mut peer = Peer::connect(broker.local_addr()).await;
    let token = peer.granted(&acquire(1, 0, 250, &["a"])).await;
    drop(broker);
    assert_eq!(peer.next().await, None);

    // The store is closed on a thread of its own, a moment later.
    let again = async {
        loop {
            match Broker::start(durable_config(&dir)).await {
                Ok(broker) => break broker,
                Err(refused) => assert!(refused.to_string().contains("in use"), "{refused}"),
            }
        }
    };
    let broker = soon("the data directory", again).await;
    let mut peer = Peer::connect(broker.local_addr()).await;
    peer.send(&release(1, token, &["a"])).await;
    assert_eq!(peer.reply().await, Reply::Released { id: id(1) });
}
