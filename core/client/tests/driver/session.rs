//! One session: losses, replies in any order, stalls, garbage (C7, C11–C13, C15, C22).

use std::time::{Duration, Instant};

use serde_json::Value;
use ticketing_client::TicketBroker;
use ticketing_wire::{Reply, RequestId, Token};
use tokio::task::JoinSet;

use crate::peer::{Conn, Peer, ask, encoded, outcome, secs, soon, ticket, until};

/// A client with one session; its second connection waits to be accepted.
async fn one(peer: &Peer) -> (TicketBroker, Conn) {
    let broker = peer.connect();
    let conn = peer.session().await;
    until("a session", || broker.stats().sessions_usable == 1).await;
    (broker, conn)
}

/// The next acquire is served by a new session.
async fn heals(peer: &Peer, broker: &TicketBroker) {
    let mut conn = peer.session().await;
    ticket(broker, &mut conn, "healed", 99).await.keep();
}

#[tokio::test]
async fn c11_a_lost_connection_makes_a_sent_acquire_indeterminate_and_it_is_never_sent_again() {
    for with_reset in [false, true] {
        let peer = Peer::start().await;
        let (broker, mut conn) = one(&peer).await;
        let asked = ask(&broker, "k", 60);
        assert_eq!(conn.next().await.keys(), ["k"]);
        if with_reset {
            conn.reset();
        } else {
            drop(conn);
        }
        let e = outcome("the lost acquire", asked).await.unwrap_err();
        assert_eq!(e.kind(), "Indeterminate", "{e}");
        // The next request on the wire is another one.
        let mut conn = peer.session().await;
        let next = ask(&broker, "next", 5);
        assert_eq!(conn.grant(1).await.keys(), ["next"]);
        outcome("a ticket", next).await.unwrap().keep();
    }
}

#[tokio::test]
async fn c12_what_the_broker_answers_is_what_the_caller_gets() {
    let peer = Peer::start().await;
    let (broker, mut conn) = one(&peer).await;
    type Answer = fn(RequestId) -> Reply;
    let answers: [(Answer, &str); 3] = [
        (|id| Reply::TimedOut { id }, "Timeout"),
        (|id| Reply::Busy { id }, "Busy"),
        (|id| Reply::Indeterminate { id }, "Indeterminate"),
    ];
    for (answer, kind) in answers {
        let asked = ask(&broker, "k", 5);
        let id = conn.next().await.id();
        conn.reply(answer(id)).await;
        let e = outcome(kind, asked).await.unwrap_err();
        assert_eq!(e.kind(), kind);
    }
}

#[tokio::test]
async fn c13_whatever_is_no_reply_ends_the_session_and_the_next_one_serves() {
    let text = include_str!("../../../../tests/vectors/wire-v3.json");
    let vectors: Value = serde_json::from_str(text).unwrap();
    let mut garbage: Vec<(String, Vec<u8>)> = vectors["invalid_replies"]
        .as_array()
        .unwrap()
        .iter()
        .map(|v| {
            let hex = v["bytes"].as_str().unwrap();
            let byte = |i: usize| u8::from_str_radix(&hex[i..i + 2], 16).unwrap();
            let bytes = (0..hex.len()).step_by(2).map(byte).collect();
            (v["why"].to_string(), bytes)
        })
        .collect();
    assert!(!garbage.is_empty());
    let id = RequestId::new(77).unwrap();
    garbage.push(("uncorrelated".into(), encoded(Reply::TimedOut { id })));
    let id = RequestId::new(1).unwrap();
    let token = Token::new(5).unwrap();
    for reply in [
        Reply::Released { id },
        Reply::NotCurrent { id },
        Reply::SetAcquired { id, token },
    ] {
        garbage.push((format!("{reply:?} to a single acquire"), encoded(reply)));
    }
    garbage.push(("text".into(), b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()));
    for (why, bytes) in garbage {
        let peer = Peer::start().await;
        let (broker, mut conn) = one(&peer).await;
        let asked = ask(&broker, "k", 60);
        conn.next().await;
        // A grant behind it is not read any more.
        let grant = encoded(Reply::Acquired { id, token });
        conn.send(&[bytes, grant].concat()).await;
        let e = outcome(&why, asked).await.unwrap_err();
        assert_eq!(e.kind(), "Indeterminate", "{why}: {e}");
        conn.ended().await;
        let last = broker.stats().last_connection_error.unwrap();
        assert!(last.contains("protocol violation"), "{why}: {last}");
        heals(&peer, &broker).await;
    }
}

#[tokio::test]
async fn c13_a_reply_cut_at_any_byte_is_no_reply() {
    let id = RequestId::new(1).unwrap();
    let token = Token::new(5).unwrap();
    let grant = encoded(Reply::Acquired { id, token });
    for cut in 0..grant.len() {
        let peer = Peer::start().await;
        let (broker, mut conn) = one(&peer).await;
        let asked = ask(&broker, "k", 60);
        conn.next().await;
        conn.send(&grant[..cut]).await;
        conn.finish().await;
        let e = outcome("cut", asked).await.unwrap_err();
        assert_eq!(e.kind(), "Indeterminate", "{cut}: {e}");
        heals(&peer, &broker).await;
    }
}

#[tokio::test]
async fn c15_replies_in_any_order_and_in_any_pieces_reach_their_own_requests() {
    let peer = Peer::start().await;
    let (broker, mut conn) = one(&peer).await;
    let mut tasks = Vec::new();
    for n in 0..20 {
        tasks.push((n, ask(&broker, &format!("key-{n}"), 60)));
    }
    let mut replies = Vec::new();
    for _ in &tasks {
        let asked = conn.next().await;
        let n: u64 = asked.keys()[0][4..].parse().unwrap();
        replies.push(encoded(asked.granted(1000 + n)));
    }
    replies.reverse();
    for piece in replies.concat().chunks(7) {
        conn.send(piece).await;
    }
    for (n, task) in tasks {
        let ticket = outcome("a ticket", task).await.unwrap();
        assert_eq!(
            (ticket.token(), ticket.key()),
            (1000 + n, &*format!("key-{n}"))
        );
        ticket.keep();
    }
}

#[tokio::test]
async fn c22_half_a_reply_and_then_3_s_of_silence_end_the_session() {
    let peer = Peer::start().await;
    let (broker, mut conn) = one(&peer).await;
    let asked = ask(&broker, "k", 60);
    let grant = encoded(conn.next().await.granted(5));
    conn.send(&grant[..4]).await;
    let started = Instant::now();
    // Progress begins the 3 s anew.
    tokio::time::sleep(secs(1)).await;
    conn.send(&grant[4..10]).await;
    let e = outcome("half a reply", asked).await.unwrap_err();
    assert_eq!(e.kind(), "Indeterminate", "{e}");
    assert!(started.elapsed() >= secs(4));
    assert!(started.elapsed() < secs(60), "not the 63 s of the acquire");
    assert!(
        broker
            .stats()
            .last_connection_error
            .unwrap()
            .contains("3 s")
    );
    heals(&peer, &broker).await;
}

#[tokio::test]
async fn c22_an_idle_session_is_not_stalled() {
    let peer = Peer::start().await;
    let (broker, mut conn) = one(&peer).await;
    let asked = ask(&broker, "k", 60);
    let asked_frame = conn.next().await;
    // Longer than what half a reply is given.
    tokio::time::sleep(Duration::from_millis(3500)).await;
    conn.reply(asked_frame.granted(5)).await;
    outcome("a ticket", asked).await.unwrap().keep();
}

#[tokio::test]
async fn c22_a_peer_that_stops_reading_is_left_after_3_s() {
    let peer = Peer::start_narrow();
    let broker = TicketBroker::builder()
        .addrs([peer.addr()])
        .max_pending(16_384)
        .connect()
        .unwrap();
    let mut conn = peer.session().await;
    until("a session", || broker.stats().sessions_usable == 1).await;
    // 2 KB each, 20 MB in all: more than the socket buffers hold.
    let keys: Vec<String> = (0..16).map(|i| format!("{i:0128}")).collect();
    let mut tasks = JoinSet::new();
    for _ in 0..10_000 {
        let (broker, keys) = (broker.clone(), keys.clone());
        tasks.spawn(async move {
            let lease = secs(30);
            broker
                .acquire_set(&keys, secs(200), lease, Duration::ZERO)
                .await
        });
    }
    conn.next().await; // and no more
    let started = Instant::now();
    soon("what was sent is given up", async {
        let e = tasks.join_next().await.unwrap().unwrap().unwrap_err();
        assert_eq!(e.kind(), "Indeterminate", "{e}");
    })
    .await;
    assert!(started.elapsed() < secs(60), "not the 203 s of the acquire");
    let last = broker.stats().last_connection_error.unwrap();
    assert!(last.contains("3 s"), "{last}");
}

#[tokio::test]
async fn c7_a_write_that_fails_makes_what_was_handed_over_indeterminate() {
    let peer = Peer::start().await;
    let (broker, conn) = one(&peer).await;
    // The reset is there before the client knows of it: the write meets it.
    conn.reset();
    let asked = ask(&broker, "k", 60);
    let mut next = peer.session().await;
    tokio::select! {
        // Read before it was written: the acquire was unsent and goes to the next session.
        asked = next.try_next() => {
            let asked = asked.unwrap().unwrap();
            assert_eq!(asked.keys(), ["k"]);
        }
        e = asked => assert_eq!(e.unwrap().unwrap_err().kind(), "Indeterminate"),
    }
}

#[tokio::test]
async fn c8_dropping_an_acquire_that_was_not_sent_withdraws_it() {
    let peer = Peer::start().await;
    let broker = peer.connect();
    let asked = ask(&broker, "k", 60);
    until("it waits", || broker.stats().waiting == 1).await;
    asked.abort();
    until("it is gone", || broker.stats().waiting == 0).await;
    let mut conn = peer.session().await;
    let asked = ask(&broker, "next", 5);
    assert_eq!(conn.grant(1).await.keys(), ["next"], "and not k");
    outcome("a ticket", asked).await.unwrap().keep();
}

#[tokio::test]
async fn c9_dropping_a_sent_acquire_ends_its_session_at_once_when_it_is_alone() {
    let peer = Peer::start().await;
    let (broker, mut conn) = one(&peer).await;
    let asked = ask(&broker, "k", 60);
    conn.next().await;
    asked.abort();
    conn.eof().await; // half-closed: the broker withdraws the waiter
    assert_eq!(broker.stats().given_up, 1);
    heals(&peer, &broker).await;
}

#[tokio::test]
async fn c10_a_grant_that_crosses_the_cancellation_is_given_back() {
    let peer = Peer::start().await;
    let (broker, mut first) = one(&peer).await;
    let mut second = peer.session().await;
    until("two sessions", || broker.stats().sessions_usable == 2).await;
    let asked = ask(&broker, "k", 60);
    let mut conns = [&mut first, &mut second];
    let (on, frame) = {
        let [a, b] = &mut conns;
        tokio::select! {
            Ok(Some(asked)) = a.try_next() => (0, asked),
            Ok(Some(asked)) = b.try_next() => (1, asked),
        }
    };
    asked.abort();
    conns[on].eof().await;
    conns[on].reply(frame.granted(7)).await;
    let other = conns[1 - on].next().await;
    assert!(other.is_release());
    assert_eq!(other.keys(), ["k"]);
    conns[1 - on].reply(other.released()).await;
    until("released", || broker.stats().released == 1).await;
    assert_eq!(broker.stats().compensated, 1);
}

#[tokio::test]
async fn c14_a_cluster_is_asked_where_the_leader_is() {
    let (first, second) = (Peer::start_node(0).await, Peer::start_node(1).await);
    let broker = TicketBroker::connect([first.addr(), second.addr()]).unwrap();
    let (mut follower, mut leader) = (first.session().await, second.session().await);
    let asked = ask(&broker, "k", 60);
    let slot = ticketing_wire::Slot::new(1);
    follower.reply(Reply::Leader { slot }).await;
    leader.reply(Reply::Leader { slot }).await;
    leader.grant(4).await;
    outcome("a ticket", asked).await.unwrap().keep();
    // The leader moves.
    let asked = ask(&broker, "k", 60);
    let frame = leader.next().await;
    let slot = ticketing_wire::Slot::new(0);
    follower.reply(Reply::Leader { slot }).await;
    leader
        .reply(Reply::Moved {
            id: frame.id(),
            slot,
        })
        .await;
    follower.grant(5).await;
    outcome("a ticket", asked).await.unwrap().keep();
}

#[tokio::test]
async fn c22_a_process_that_was_stopped_does_not_blame_its_peer() {
    let peer = Peer::start().await;
    let (broker, mut conn) = one(&peer).await;
    let (first, second) = (ask(&broker, "a", 60), ask(&broker, "b", 60));
    let (a, b) = (conn.next().await, conn.next().await);
    let (a, b) = (encoded(a.granted(1)), encoded(b.granted(2)));
    conn.send(&[&a[..], &b[..10]].concat()).await;
    // With the whole reply the half one was read: its 3 s run.
    outcome("the whole reply", first).await.unwrap().keep();
    conn.send(&b[10..]).await;
    // This thread is the client's, too: it stands still for longer than that.
    std::thread::sleep(Duration::from_millis(3500));
    outcome("the other half", second).await.unwrap().keep();
    assert_eq!(broker.stats().last_connection_error, None);
}
