//! From the address to a usable session: C6, C21–C25.

use std::time::{Duration, Instant};

use serde_json::Value;
use ticketing_client::{TicketBroker, TicketError, TlsMode};
use ticketing_wire::ACCEPTED;
use tokio::io::AsyncReadExt;
use tokio::net::TcpSocket;

use crate::peer::tls::CaFile;
use crate::peer::{Peer, SOON, ask, outcome, secs, soon, until};

/// Waits until the last connection error says so.
async fn error_says(broker: &TicketBroker, what: &str) {
    until(what, || {
        let stats = broker.stats();
        stats
            .last_connection_error
            .is_some_and(|e| e.contains(what))
    })
    .await;
}

#[tokio::test]
async fn c6_what_is_wrong_with_the_addresses_or_the_ca_file_shows_at_once() {
    let made = |addrs: &[&str], tls: TlsMode| {
        let builder = TicketBroker::builder();
        let made = builder.addrs(addrs.iter().copied()).tls(tls).connect();
        made.expect_err("not made")
    };
    for addrs in [&["localhost"][..], &[], &["h:1"; 6]] {
        let e = made(addrs, TlsMode::Off);
        assert_eq!(e.kind(), "InvalidInput", "{addrs:?}: {e}");
    }
    let e = made(&["h:1"], TlsMode::Ca("/nowhere/ca.pem".into()));
    assert_eq!(e.kind(), "Io");
    assert!(e.to_string().contains("/nowhere/ca.pem"), "{e}");
    let e = made(&["h:1"], TlsMode::Ca("/".into()));
    assert_eq!(e.kind(), "Io", "a folder: {e}");
    for text in [
        "",
        "no PEM at all",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\n****\n-----END CERTIFICATE-----\n",
        "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
    ] {
        let file = CaFile::new(text);
        let e = made(&["h:1"], file.mode());
        assert_eq!(e.kind(), "Tls", "{text:?}: {e}");
        assert!(e.to_string().contains(file.path.as_str()), "{e}");
    }
}

#[tokio::test]
async fn c21_making_a_broker_object_waits_for_nothing_and_wait_ready_does() {
    let peer = Peer::start().await;
    let broker = peer.connect();
    assert!(
        !broker.wait_ready(Duration::ZERO).await,
        "nobody answered yet"
    );
    let (ready, _first) = tokio::join!(broker.wait_ready(SOON), peer.session());
    assert!(ready, "one session is enough");
    assert!(broker.wait_ready(Duration::ZERO).await);
    assert_eq!(broker.stats().sessions_usable, 1);
}

#[test]
fn c21_a_broker_object_needs_a_runtime() {
    let e = TicketBroker::connect("127.0.0.1:1").expect_err("no runtime here");
    assert!(
        matches!(
            e,
            TicketError::InvalidInput {
                argument: "runtime",
                ..
            }
        ),
        "{e}"
    );
}

#[tokio::test]
async fn c22_a_wrong_hello_is_refused_with_its_reason_and_never_authenticated() {
    let text = include_str!("../../../../tests/vectors/wire-v3.json");
    let vectors: Value = serde_json::from_str(text).unwrap();
    let hellos = vectors["invalid_hellos"].as_array().unwrap();
    assert!(!hellos.is_empty());
    for hello in hellos {
        let hex = hello["bytes"].as_str().unwrap();
        let bytes: Vec<u8> = (0..hex.len())
            .step_by(2)
            .map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap())
            .collect();
        let peer = Peer::start().await;
        let broker = peer.connect();
        let mut conn = peer.accept().await;
        conn.send(&bytes).await;
        conn.eof().await; // no authentication was sent
        error_says(&broker, "127.0.0.1").await;
        let why = broker.stats().last_connection_error.unwrap();
        assert!(
            why.contains("not a Ticketing broker")
                || why.contains("version")
                || why.contains("mode"),
            "{}: {why}",
            hello["why"]
        );
        assert_eq!(broker.stats().sessions_usable, 0);
    }
}

#[tokio::test]
async fn c22_a_node_of_another_mode_or_slot_is_refused() {
    let node = Peer::start_node(0).await;
    let single = node.connect();
    node.accept().await.send(&hello_of(&node).await).await;
    error_says(&single, "check their number and order").await;

    let (first, second) = (Peer::start_node(1).await, Peer::start_node(0).await);
    let cluster = TicketBroker::connect([first.addr(), second.addr()]).unwrap();
    let mut conn = first.accept().await;
    conn.send(&conn.hello().encode()).await;
    conn.eof().await;
    error_says(&cluster, "check their number and order").await;
}

async fn hello_of(peer: &Peer) -> Vec<u8> {
    peer.accept().await.hello().encode().to_vec()
}

#[tokio::test]
async fn c22_a_handshake_that_is_cut_anywhere_is_an_error_and_is_tried_again() {
    let peer = Peer::start().await;
    let broker = peer.connect();
    let hello = peer.accept().await.hello().encode(); // that one is closed at once
    for cut in [1, 8, 27] {
        let mut conn = peer.accept().await;
        conn.send(&hello[..cut]).await;
        drop(conn);
    }
    let mut conn = peer.accept().await;
    conn.authentication().await;
    drop(conn); // before the result
    let mut conn = peer.accept().await;
    conn.authentication().await;
    conn.send(&[7]).await; // a result that there is not
    error_says(&broker, "not 0 or 1").await;
    let _session = peer.session().await;
    assert!(broker.wait_ready(SOON).await);
}

#[tokio::test]
async fn c22_connection_tls_and_handshake_within_10_s() {
    let silent = async {
        let peer = Peer::start().await;
        let started = Instant::now();
        let broker = peer.connect();
        let mut conn = peer.accept().await; // and not a word
        conn.eof().await;
        assert!(started.elapsed() >= secs(10));
        error_says(&broker, "within 10 s").await;
    };
    let no_tls = async {
        let peer = Peer::start().await;
        let started = Instant::now();
        let tls = TlsMode::InsecureSkipVerify;
        let builder = TicketBroker::builder().addrs([peer.addr()]).tls(tls);
        let broker = builder.connect().unwrap();
        let mut conn = peer.accept_tcp().await;
        let mut hello = Vec::new();
        soon("the end", conn.read_to_end(&mut hello)).await.unwrap();
        assert_eq!(hello[0], 22, "the client's part of a TLS handshake");
        assert!(started.elapsed() >= secs(10));
        error_says(&broker, "within 10 s").await;
    };
    // Plain towards TLS: each waits for the other to speak.
    let tls_wanted = async {
        let peer = Peer::start().await;
        let broker = peer.connect();
        let mut conn = peer.accept_tcp().await;
        let read = soon("the end", conn.read(&mut [0; 1])).await;
        assert_eq!(read.unwrap(), 0, "not a word");
        error_says(&broker, "does it want TLS?").await;
    };
    tokio::join!(silent, no_tls, tls_wanted);
}

#[tokio::test]
async fn c22_a_peer_that_accepts_and_closes_meets_no_hot_loop() {
    let peer = Peer::start().await;
    let _broker = peer.connect();
    let started = Instant::now();
    // Two links, five attempts each: half of 100, 200, 400 and 800 ms at least between them.
    for _ in 0..10 {
        drop(peer.accept().await);
    }
    assert!(started.elapsed() >= Duration::from_millis(750));
}

#[tokio::test]
async fn c22_a_name_is_resolved_and_all_its_addresses_are_tried() {
    // `localhost` is ::1 or 127.0.0.1 or both; the peer is on 127.0.0.1 alone.
    let peer = Peer::start().await;
    let broker = TicketBroker::connect(format!("localhost:{}", peer.port())).unwrap();
    let _session = peer.session().await;
    assert!(broker.wait_ready(SOON).await);
}

#[tokio::test]
async fn c23_one_dropped_connection_of_the_two_is_no_outage() {
    let peer = Peer::start().await;
    let broker = peer.connect();
    let [first, mut second] = peer.pair().await.0;
    until("two sessions", || broker.stats().sessions_usable == 2).await;
    first.reset();
    until("one session", || broker.stats().sessions_usable == 1).await;
    let asked = ask(&broker, "k", 5);
    second.grant(1).await;
    outcome("a ticket", asked).await.unwrap().keep();
    let _third = peer.session().await;
    until("two again", || broker.stats().sessions_usable == 2).await;
}

#[tokio::test]
async fn c24_a_rejected_token_fails_acquires_at_once_and_heals_without_a_restart() {
    let peer = Peer::start().await;
    let broker = TicketBroker::builder()
        .addrs([peer.addr()])
        .token("wrong")
        .connect()
        .unwrap();
    let waiting = ask(&broker, "k", 200);
    let conn = peer.accept().await;
    let other = peer.accept().await;
    conn.reject().await;
    let e = outcome("the acquire that waited", waiting)
        .await
        .unwrap_err();
    assert_eq!(e.kind(), "Auth");
    let e = outcome("a new acquire", ask(&broker, "k", 200))
        .await
        .unwrap_err();
    assert_eq!(e.kind(), "Auth");
    other.reject().await;

    // The configuration is mended: the next attempt is let in.
    let mut conn = peer.accept().await;
    conn.authentication().await;
    conn.send(&[ACCEPTED]).await;
    assert!(broker.wait_ready(SOON).await);
    let asked = ask(&broker, "k", 5);
    conn.grant(1).await;
    outcome("a ticket", asked).await.unwrap().keep();
}

#[tokio::test]
async fn c24_after_a_rejection_it_tries_at_the_slowest_back_off() {
    let peer = Peer::start().await;
    let _broker = peer.connect();
    let started = Instant::now();
    for _ in 0..2 {
        peer.accept().await.reject().await;
    }
    drop(peer.accept().await); // the third attempt
    assert!(
        started.elapsed() >= Duration::from_millis(1600),
        "3.2 s, at least half of it"
    );
}

#[tokio::test]
async fn c25_without_a_session_an_acquire_waits_and_then_says_the_last_error() {
    // Taken, so that nobody else gets it, but nobody listens there.
    let taken = TcpSocket::new_v4().unwrap();
    taken.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = taken.local_addr().unwrap().port();
    let broker = TicketBroker::connect(format!("127.0.0.1:{port}")).unwrap();
    let started = Instant::now();
    let (short, immediate) = (ask(&broker, "k", 1), ask(&broker, "k", 0));
    let e = outcome("wait 1", short).await.unwrap_err();
    assert!(started.elapsed() >= secs(1));
    assert_eq!(e.kind(), "NotConnected");
    assert!(e.to_string().contains("refused"), "{e}");
    assert!(e.to_string().contains(&format!("127.0.0.1:{port}")), "{e}");
    let e = outcome("wait 0", immediate).await.unwrap_err();
    assert!(started.elapsed() >= secs(5), "5 s for wait 0");
    assert_eq!(e.kind(), "NotConnected");
}

#[tokio::test]
async fn c25_an_acquire_goes_out_as_soon_as_there_is_a_session() {
    let peer = Peer::start().await;
    let broker = peer.connect();
    let asked = ask(&broker, "k", 200);
    until("it waits", || broker.stats().waiting == 1).await;
    let mut conn = peer.session().await;
    conn.grant(5).await;
    assert_eq!(outcome("a ticket", asked).await.unwrap().token(), 5);
    soon("its release", conn.next()).await;
}
