//! Tickets at their edges: C16–C19.

use std::time::{Duration, Instant};

use ticketing_client::{ReleaseOutcome, TicketBroker};
use ticketing_wire::{ErrorCode, Reply};

use crate::peer::{Conn, Peer, ask, outcome, secs, soon, ticket, until};

async fn one(peer: &Peer) -> (TicketBroker, Conn) {
    let broker = peer.connect();
    let conn = peer.session().await;
    until("a session", || broker.stats().sessions_usable == 1).await;
    (broker, conn)
}

#[tokio::test]
async fn c16_a_grant_that_comes_too_late_for_min_work_is_given_back() {
    let peer = Peer::start().await;
    let (broker, mut conn) = one(&peer).await;
    let asked = tokio::spawn({
        let broker = broker.clone();
        async move { broker.acquire("k", secs(10), secs(2), secs(1)).await }
    });
    let frame = conn.next().await;
    tokio::time::sleep(Duration::from_millis(1001)).await; // what min_work leaves of the lease
    conn.reply(frame.granted(3)).await;
    let e = outcome("too late", asked).await.unwrap_err();
    assert_eq!(e.kind(), "InsufficientLease", "{e}");
    let release = conn.next().await;
    assert!(release.is_release());
    assert_eq!(broker.stats().compensated, 1);
}

#[tokio::test]
async fn c17_expired_ends_when_nothing_of_the_validity_is_left() {
    let peer = Peer::start().await;
    let (broker, mut conn) = one(&peer).await;
    let started = Instant::now();
    let (ticket, _) = tokio::join!(
        broker.acquire("k", secs(5), secs(4), Duration::ZERO),
        conn.grant(3)
    );
    let ticket = ticket.unwrap();
    assert!(ticket.remaining() <= secs(4) && ticket.remaining() > Duration::ZERO);
    soon("expiry", ticket.expired()).await;
    assert_eq!(ticket.remaining(), Duration::ZERO);
    assert!(started.elapsed() >= secs(4));
    ticket.keep();
}

#[tokio::test]
async fn c17_a_set_has_its_keys_in_order_and_one_token() {
    let peer = Peer::start().await;
    let (broker, mut conn) = one(&peer).await;
    let (set, _) = tokio::join!(
        broker.acquire_set(["b", "a", "b"], secs(5), secs(30), Duration::ZERO),
        conn.grant(3)
    );
    let set = set.unwrap();
    assert_eq!(set.keys().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(set.token(), 3);
    let (released, _) = tokio::join!(set.release(), async {
        let asked = conn.next().await;
        assert_eq!(asked.keys(), ["a", "b"]);
        conn.reply(asked.released()).await;
    });
    assert_eq!(released.unwrap(), ReleaseOutcome::Released);
}

#[tokio::test]
async fn c18_dropping_a_ticket_releases_it() {
    let peer = Peer::start().await;
    let (broker, mut conn) = one(&peer).await;
    drop(ticket(&broker, &mut conn, "k", 8).await);
    let asked = conn.next().await;
    assert!(matches!(&asked, crate::peer::Asked::Release { token: 8, keys, .. } if keys[0] == "k"));
    conn.reply(asked.released()).await;
    until("released", || broker.stats().released == 1).await;
}

#[tokio::test]
async fn c18_keep_gives_the_automatic_release_up() {
    let peer = Peer::start().await;
    let (broker, mut conn) = one(&peer).await;
    let kept = ticket(&broker, &mut conn, "kept", 8).await;
    kept.keep();
    drop(kept);
    // The next frame is what came after it.
    let asked = ask(&broker, "next", 5);
    assert_eq!(conn.grant(9).await.keys(), ["next"]);
    outcome("a ticket", asked).await.unwrap().keep();
}

#[tokio::test]
async fn c18_a_second_release_sends_nothing_and_has_the_first_ones_outcome() {
    let peer = Peer::start().await;
    let (broker, mut conn) = one(&peer).await;
    let held = ticket(&broker, &mut conn, "k", 8).await;
    let answer = async {
        let asked = conn.next().await;
        conn.reply(Reply::NotCurrent { id: asked.id() }).await;
    };
    // Two at once, then a third.
    let (one, two, ()) = tokio::join!(held.release(), held.release(), answer);
    assert_eq!(one.unwrap(), ReleaseOutcome::NotCurrent);
    assert_eq!(two.unwrap(), ReleaseOutcome::NotCurrent);
    assert_eq!(held.release().await.unwrap(), ReleaseOutcome::NotCurrent);
    drop(held);
    let asked = ask(&broker, "next", 5);
    assert_eq!(conn.grant(9).await.keys(), ["next"], "and no release");
    outcome("a ticket", asked).await.unwrap().keep();
}

#[tokio::test]
async fn c18_a_release_that_is_not_awaited_to_its_end_goes_on() {
    let peer = Peer::start().await;
    let (broker, mut conn) = one(&peer).await;
    let held = ticket(&broker, &mut conn, "k", 8).await;
    let asked = {
        let release = std::pin::pin!(held.release());
        tokio::select! {
            biased;
            _ = release => panic!("nobody answered"),
            asked = conn.next() => asked,
        }
    };
    conn.reply(asked.released()).await;
    until("released", || broker.stats().released == 1).await;
    assert_eq!(held.release().await.unwrap(), ReleaseOutcome::Released);
}

#[tokio::test]
async fn c19_a_release_whose_session_is_lost_is_repeated_on_the_next() {
    let peer = Peer::start().await;
    let (broker, mut conn) = one(&peer).await;
    let held = ticket(&broker, &mut conn, "k", 8).await;
    let script = async {
        conn.next().await;
        conn.reset();
        let mut next = peer.session().await;
        let asked = next.next().await;
        assert!(asked.is_release());
        next.reply(asked.refused(ErrorCode::NotActive)).await;
        let mut last = peer.session().await;
        let asked = last.next().await;
        last.reply(asked.released()).await;
        (next, last)
    };
    let (released, _conns) = tokio::join!(held.release(), script);
    assert_eq!(released.unwrap(), ReleaseOutcome::Released);
}

#[tokio::test]
async fn c19_a_release_that_nobody_answers_ends_after_5_s() {
    let peer = Peer::start().await;
    let (broker, mut conn) = one(&peer).await;
    let held = ticket(&broker, &mut conn, "k", 8).await;
    let started = Instant::now();
    let e = soon("5 s", held.release()).await.unwrap_err();
    assert_eq!(e.kind(), "Indeterminate", "{e}");
    assert!(started.elapsed() >= secs(5));
}
