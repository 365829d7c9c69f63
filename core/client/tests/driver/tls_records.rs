//! Half-read TLS records (C22): below TLS they are bytes, above it nothing.

use std::time::{Duration, Instant};

use ticketing_client::{Ticket, TicketBroker, TicketError, TlsMode};
use tokio::task::JoinHandle;

use crate::peer::tls::Ca;
use crate::peer::{Conn, Peer, ask, encoded, outcome, secs, ticket, until};

/// A session inside TLS with one acquire on it, and the record that grants it.
struct Asked {
    peer: Peer,
    broker: TicketBroker,
    conn: Conn,
    asked: JoinHandle<Result<Ticket, TicketError>>,
    record: Vec<u8>,
}

impl Asked {
    async fn new() -> Self {
        let peer = Peer::start_tls(Ca::new("ours").server("localhost").config()).await;
        let builder = TicketBroker::builder().addrs([format!("localhost:{}", peer.port())]);
        let broker = builder.tls(TlsMode::InsecureSkipVerify).connect().unwrap();
        let mut conn = peer.session().await;
        until("a session", || broker.stats().sessions_usable == 1).await;
        let asked = ask(&broker, "k", 60);
        let frame = conn.next().await;
        let record = conn.record(&encoded(frame.granted(5)));
        Asked {
            peer,
            broker,
            conn,
            asked,
            record,
        }
    }

    async fn into_ticket(self) {
        let ticket = outcome("a ticket", self.asked).await.unwrap();
        assert_eq!(ticket.token(), 5);
        assert_eq!(self.broker.stats().last_connection_error, None);
        ticket.keep();
    }
}

/// Silence after so many bytes of the record ends the session.
async fn stalls(bytes: usize) {
    let mut t = Asked::new().await;
    let started = Instant::now();
    t.conn.send_raw(&t.record[..bytes]).await;
    let e = outcome("half a record", t.asked).await.unwrap_err();
    assert_eq!(e.kind(), "Indeterminate", "{e}");
    assert!(started.elapsed() >= secs(3), "{:?}", started.elapsed());
    assert!(started.elapsed() < secs(60), "not the 63 s of the acquire");
    let last = t.broker.stats().last_connection_error.unwrap();
    assert!(last.contains("half a TLS record"), "{last}");
    let mut conn = t.peer.session().await;
    ticket(&t.broker, &mut conn, "healed", 6).await.keep();
}

#[tokio::test]
async fn c22_half_a_tls_record_and_nothing_more_for_3_s_ends_the_session() {
    // Within the header, just after it, and within the body.
    tokio::join!(stalls(1), stalls(4), stalls(5), stalls(20));
}

#[tokio::test]
async fn c22_a_tls_record_in_slow_pieces_makes_progress() {
    let mut t = Asked::new().await;
    let started = Instant::now();
    let pieces = [0..2, 2..5, 5..9, 9..30, 30..t.record.len()];
    for piece in pieces {
        t.conn.send_raw(&t.record[piece]).await;
        tokio::time::sleep(Duration::from_millis(900)).await;
    }
    assert!(started.elapsed() > secs(3));
    t.into_ticket().await;
}

#[tokio::test]
async fn c22_tls_records_without_data_are_whole() {
    // The session tickets have come with the handshake.
    let mut t = Asked::new().await;
    let record = std::mem::take(&mut t.record);
    t.conn.send_raw(&record[..record.len() - 1]).await;
    t.conn.send_raw(&record[record.len() - 1..]).await;
    outcome("a ticket", t.asked).await.unwrap().keep();
    t.asked = ask(&t.broker, "next", 60);
    let frame = t.conn.next().await;
    t.conn.send_key_update().await;
    // Longer than half a record is given.
    tokio::time::sleep(Duration::from_millis(3500)).await;
    t.conn.reply(frame.granted(5)).await;
    t.into_ticket().await;
}

#[tokio::test]
async fn c22_a_process_that_was_stopped_within_a_tls_record_does_not_blame_its_peer() {
    let mut t = Asked::new().await;
    t.conn.send_raw(&t.record[..20]).await;
    // With a whole record behind it nothing is to be seen of the half one, so it is given time.
    tokio::time::sleep(Duration::from_millis(300)).await;
    t.conn.send_raw(&t.record[20..]).await;
    // This thread is the client's, too: it stands still for longer than 3 s.
    std::thread::sleep(Duration::from_millis(3500));
    t.into_ticket().await;
}
