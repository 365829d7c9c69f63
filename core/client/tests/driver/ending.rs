//! C13a: the half-close, what is read after it, and the reset at 1 s.

use std::io::ErrorKind;
use std::time::Instant;

use ticketing_wire::{ErrorCode, Reply};

use crate::peer::{Peer, ask, outcome, secs, soon, until};

#[tokio::test]
async fn c13_c13a_after_e3_it_half_closes_reads_on_and_makes_the_acquires_anew() {
    let peer = Peer::start().await;
    let broker = peer.connect();
    let mut conn = peer.session().await;
    until("a session", || broker.stats().sessions_usable == 1).await;
    let tasks: Vec<_> = (0..4).map(|n| ask(&broker, &format!("k{n}"), 30)).collect();
    let mut sent = Vec::new();
    for _ in 0..4 {
        sent.push(conn.next().await);
    }
    conn.reply(sent[0].refused(ErrorCode::NotActive)).await;
    conn.eof().await;
    // After the half-close: a grant, a refusal, a time-out; then the stream ends.
    conn.reply(sent[1].granted(11)).await;
    conn.reply(sent[2].refused(ErrorCode::NotActive)).await;
    conn.reply(Reply::TimedOut { id: sent[3].id() }).await;
    conn.finish().await;

    let mut next = peer.session().await;
    let mut again = Vec::new();
    for token in [21, 22] {
        again.push(next.grant(token).await.keys()[0].clone());
    }
    again.sort();
    let mut expected = [sent[0].keys()[0].clone(), sent[2].keys()[0].clone()];
    expected.sort();
    assert_eq!(again, expected, "those that E3 named, and only those");
    let mut ends = Vec::new();
    for task in tasks {
        ends.push(match outcome("an outcome", task).await {
            Ok(ticket) => {
                ticket.keep();
                ticket.token().to_string()
            }
            Err(e) => e.kind().to_owned(),
        });
    }
    ends.sort();
    assert_eq!(ends, ["11", "21", "22", "Timeout"]);
}

#[tokio::test]
async fn c13a_a_peer_that_ignores_the_half_close_is_reset_after_1_s() {
    let peer = Peer::start().await;
    let broker = peer.connect();
    let mut conn = peer.session().await;
    until("a session", || broker.stats().sessions_usable == 1).await;
    let (first, second) = (ask(&broker, "a", 30), ask(&broker, "b", 30));
    let (one, _) = (conn.next().await, conn.next().await);
    let started = Instant::now();
    conn.reply(one.refused(ErrorCode::BadKey)).await;
    conn.eof().await;
    assert!(started.elapsed() < secs(30), "the half-close is at once");
    let mut kinds = Vec::new();
    for task in [first, second] {
        kinds.push(outcome("an outcome", task).await.unwrap_err().kind());
    }
    kinds.sort_unstable();
    assert_eq!(kinds, ["Indeterminate", "Protocol"]);
    assert!(started.elapsed() >= secs(1));
    soon("the reset", async {
        // The end of the stream has been read; the reset shows in a write or as the socket's error.
        loop {
            match conn.tcp().take_error().unwrap() {
                Some(e) => {
                    assert!(
                        matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
                        "{e}"
                    );
                    break;
                }
                None => tokio::time::sleep(std::time::Duration::from_millis(1)).await,
            }
        }
    })
    .await;
}

#[test]
fn c13a_a_reply_before_a_close_is_read_although_the_writing_fails() {
    // All on this thread, which looks for what can be read only when nothing else is left to do:
    // so the client writes before it learns of the reply.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .event_interval(u32::MAX)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let peer = Peer::start().await;
        let broker = peer.connect();
        let mut conn = peer.session().await;
        until("a session", || broker.stats().sessions_usable == 1).await;
        let first = ask(&broker, "a", 30);
        let asked = conn.next().await;
        conn.reply(Reply::TimedOut { id: asked.id() }).await;
        conn.reset();
        let second = ask(&broker, "b", 30);
        let e = outcome("the first", first).await.unwrap_err();
        assert_eq!(e.kind(), "Timeout", "{e}");
        let e = outcome("the second", second).await.unwrap_err();
        assert_eq!(e.kind(), "Indeterminate", "{e}");
    });
}
