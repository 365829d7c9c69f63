//! Clients that want too much, or take too long: others are served meanwhile.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::*;
use ticketing_broker::Broker;
use ticketing_wire::{HELLO_LEN, Hello, Identity, Reply};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The token of a reply that must be a grant.
fn token_of(reply: &Reply) -> ticketing_wire::Token {
    match reply {
        Reply::Acquired { token, .. } => *token,
        other => panic!("not a grant: {other:?}"),
    }
}

#[tokio::test]
async fn s6_of_eleven_hundred_waiters_on_one_key_the_last_are_refused() {
    let broker = memory_broker().await;
    let mut holder = Peer::connect(broker.local_addr()).await;
    let mut crowd = Peer::connect(broker.local_addr()).await;
    let mut token = holder.granted(&acquire(1, 0, 250, &["k"])).await;
    let waits: Vec<u8> = (1..=1100)
        .flat_map(|n| acquire(n, 255, 250, &["k"]))
        .collect();
    crowd.send(&waits).await;
    for n in 1025..=1100 {
        assert_eq!(crowd.reply().await, Reply::Busy { id: id(n) });
    }
    assert_eq!(broker.stats().waiters, 1024);
    // Those in the line are served in its order; a place that is left can be taken again.
    holder.send(&release(2, token, &["k"])).await;
    crowd.send(&acquire(2000, 255, 250, &["k"])).await;
    for n in (1..=1024).chain([2000]) {
        let granted = crowd.reply().await;
        assert_eq!(granted.id(), Some(id(n)));
        token = token_of(&granted);
        crowd.send(&release(3000 + n, token, &["k"])).await;
        assert_eq!(crowd.reply().await, Reply::Released { id: id(3000 + n) });
    }
    assert_eq!(broker.stats().waiters, 0);
    assert_eq!(broker.stats().keys, 0);
}

/// However much one client asks for, another waits for those alone who came before it.
#[tokio::test]
async fn s1_a_greedy_client_does_not_overtake_a_patient_one() {
    const BEFORE: u64 = 300;
    let broker = memory_broker().await;
    let mut greedy = Peer::connect(broker.local_addr()).await;
    let mut patient = Peer::connect(broker.local_addr()).await;
    let held = greedy.granted(&acquire(1, 0, 250, &["k"])).await;
    let waits = (2..2 + BEFORE).flat_map(|n| acquire(n, 255, 250, &["k"]));
    greedy.send(&waits.collect::<Vec<u8>>()).await;
    until("all of them wait", || {
        broker.stats().waiters as u64 == BEFORE
    })
    .await;
    patient.send(&acquire(1, 255, 250, &["k"])).await;
    until("the patient one too", || {
        broker.stats().waiters as u64 == BEFORE + 1
    })
    .await;

    let mut next = 10_000;
    let mut token = held;
    for _ in 0..BEFORE {
        // For each that it gives back it asks for two more, and tries to get past the line.
        let more = [
            acquire(next, 255, 250, &["k"]),
            acquire(next + 1, 255, 250, &["k"]),
            release(next + 2, token, &["k"]),
            acquire(next + 3, 0, 250, &["k"]),
        ];
        greedy.send(&more.concat()).await;
        let mut granted = None;
        let mut passed = false;
        while granted.is_none() || !passed {
            match greedy.reply().await {
                Reply::Acquired { token, .. } => granted = Some(token),
                Reply::TimedOut { id: at } => passed = at == id(next + 3),
                Reply::Released { .. } | Reply::Busy { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        token = granted.expect("looped until then");
        next += 4;
    }
    greedy.send(&release(next, token, &["k"])).await;
    let granted = patient.grant().await;
    assert_eq!(granted.get(), held.get() + BEFORE + 1);
}

#[tokio::test]
async fn s6_an_authentication_that_never_comes_blocks_nobody() {
    let mut config = memory_config();
    config.limits.auth_timeout = Duration::from_secs(1);
    let broker = Broker::start(config).await.unwrap();
    let mut silent = Vec::new();
    for n in 0..100 {
        let mut stream = TcpStream::connect(broker.local_addr()).await.unwrap();
        // Nothing at all, or all but the last byte.
        stream.write_all(&[0; 31][..n % 32]).await.unwrap();
        silent.push(stream);
    }
    Peer::connect(broker.local_addr())
        .await
        .granted(&acquire(1, 0, 30, &["k"]))
        .await;
    for mut stream in silent {
        let mut bytes = Vec::new();
        // What it sent and nobody read may make the end a reset.
        let _ = soon("the end", stream.read_to_end(&mut bytes)).await;
        assert_eq!(bytes.len(), HELLO_LEN);
    }
}

#[tokio::test]
async fn s6_a_client_that_sends_a_byte_at_a_time_is_served_and_holds_up_nobody() {
    let broker = memory_broker().await;
    let mut other = Peer::connect(broker.local_addr()).await;
    let mut slow = TcpStream::connect(broker.local_addr()).await.unwrap();
    slow.set_nodelay(true).unwrap();
    let mut hello = [0; HELLO_LEN];
    slow.read_exact(&mut hello).await.unwrap();
    let hello = Hello::decode(&hello).unwrap();
    let mut bytes = hello.auth("", &Identity::single()).to_vec();
    bytes.extend(acquire(1, 0, 30, &["a", "b"]));
    bytes.extend(acquire(2, 0, 30, &["c"]));
    let last = bytes.pop().unwrap();
    for (n, byte) in (1..).step_by(2).zip(bytes) {
        slow.write_all(&[byte]).await.unwrap();
        // The keys of a request that has not come in full are free.
        let token = other.granted(&acquire(n, 0, 30, &["c"])).await;
        other.send(&release(n + 1, token, &["c"])).await;
        assert_eq!(other.reply().await, Reply::Released { id: id(n + 1) });
    }
    slow.write_all(&[last]).await.unwrap();
    let mut replies = [0; 1 + 19 + 19];
    soon("its replies", slow.read_exact(&mut replies))
        .await
        .unwrap();
    for (n, frame) in (1..).zip(replies[1..].chunks(19)) {
        assert_eq!(Reply::decode(frame).unwrap().unwrap().0.id(), Some(id(n)));
    }
}
