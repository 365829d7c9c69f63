//! C29: the token is in no log, error or debug output.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ticketing_client::{TicketBroker, TlsMode};
use ticketing_wire::ACCEPTED;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::util::SubscriberInitExt;

use crate::peer::{Peer, ask, outcome, secs, until};

const SECRET: &str = "hunter2-quite-secret";

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

/// The secret as text, as a list of bytes and in hex.
fn hidden(text: &str) {
    let bytes: Vec<String> = SECRET.bytes().map(|b| b.to_string()).collect();
    let hex: String = SECRET.bytes().map(|b| format!("{b:02x}")).collect();
    for form in [SECRET, &bytes.join(", "), &hex] {
        assert!(!text.contains(form), "{text}");
    }
}

/// Everything that is logged on this thread, where the client's tasks run too.
fn capture() -> (Log, DefaultGuard) {
    let log = Log::default();
    let writer = log.clone();
    let guard = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish()
        .set_default();
    (log, guard)
}

#[tokio::test]
async fn c28_skipping_the_verification_is_warned_about() {
    let (log, _guard) = capture();
    let skip = TlsMode::InsecureSkipVerify;
    let builder = TicketBroker::builder().addrs(["127.0.0.1:1"]).tls(skip);
    builder.connect().unwrap();
    let text = log.text();
    assert!(
        text.contains("WARN") && text.contains("not verified"),
        "{text}"
    );
}

#[tokio::test]
async fn c29_the_token_is_in_no_log_error_or_debug_output() {
    let (log, _guard) = capture();
    let builder = TicketBroker::builder().token(SECRET).cluster("c");
    hidden(&format!("{builder:?} {builder:#?}"));
    let e = builder.clone().addrs(["nowhere"]).connect().unwrap_err();
    hidden(&format!("{e} {e:?}"));

    let peer = Peer::start().await;
    let broker = builder.clone().addrs([peer.addr()]).connect().unwrap();
    let waiting = ask(&broker, "k", 60);
    peer.accept().await.reject().await;
    let e = outcome("rejected", waiting).await.unwrap_err();
    hidden(&format!("{e} {e:?} {broker:?} {:?}", broker.stats()));
    let mut conn = peer.accept().await;
    conn.authentication().await;
    conn.send(&[ACCEPTED]).await;
    until("a session", || broker.stats().sessions_usable == 1).await;
    let asked = ask(&broker, "k", 5);
    conn.grant(1).await;
    let ticket = outcome("a ticket", asked).await.unwrap();
    hidden(&format!("{ticket:?} {broker:#?}"));
    ticket.keep();
    conn.send(b"garbage").await;
    until("the loss", || broker.stats().sessions_usable == 0).await;
    hidden(&format!("{broker:?}"));
    broker.close().await;

    // Over TLS too: to a peer that does not speak it.
    let broker = builder
        .addrs([peer.addr()])
        .tls(TlsMode::InsecureSkipVerify)
        .connect()
        .unwrap();
    let asked = tokio::spawn({
        let broker = broker.clone();
        async move { broker.acquire("k", secs(1), secs(30), Duration::ZERO).await }
    });
    let e = outcome("no TLS", asked).await.unwrap_err();
    hidden(&format!("{e} {e:?}"));

    let text = log.text();
    assert!(
        text.contains("TRACE") && text.contains("connected"),
        "{text}"
    );
    hidden(&text);
}
