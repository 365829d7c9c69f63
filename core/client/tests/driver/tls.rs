//! Real TLS with certificates made here: C28, and the driver's clauses inside TLS.

use std::process::Command;
use std::time::Instant;

use ticketing_client::{TicketBroker, TlsMode};
use ticketing_wire::ErrorCode;
use tokio::io::AsyncReadExt;

use crate::peer::tls::{Ca, CaFile, Server};
use crate::peer::{Peer, SOON, ask, outcome, secs, soon, ticket, until};

fn connect(peer: &Peer, host: &str, tls: TlsMode) -> TicketBroker {
    let addr = format!("{host}:{}", peer.port());
    TicketBroker::builder()
        .addrs([addr])
        .tls(tls)
        .connect()
        .unwrap()
}

/// A ticket is granted over it.
async fn works(server: &Server, host: &str, tls: TlsMode) {
    let peer = Peer::start_tls(server.config()).await;
    let broker = connect(&peer, host, tls);
    let mut conn = peer.session().await;
    ticket(&broker, &mut conn, "k", 1).await.keep();
}

/// The client refuses the certificate, says why, and does not authenticate.
async fn refuses(server: &Server, host: &str, tls: TlsMode, why: &str) {
    let peer = Peer::start_tls(server.config()).await;
    let broker = connect(&peer, host, tls);
    let asked = ask(&broker, "k", 1);
    for _ in 0..2 {
        // TLS 1.3: the server's part ends before the client's refusal comes.
        if let Ok(mut conn) = peer.try_accept().await {
            conn.ended().await;
        }
    }
    let e = outcome("refused", asked).await.unwrap_err();
    assert_eq!(e.kind(), "NotConnected", "{e}");
    assert!(e.to_string().contains(why), "{why}: {e}");
    assert_eq!(broker.stats().sessions_usable, 0);
}

#[tokio::test]
async fn c28_a_certificate_of_the_ca_with_the_right_name_is_accepted() {
    let ca = Ca::new("ours");
    let file = CaFile::new(&ca.pem);
    works(&ca.server("localhost"), "localhost", file.mode()).await;
    works(&ca.server("127.0.0.1"), "127.0.0.1", file.mode()).await;
}

#[tokio::test]
async fn c28_a_wrong_name_or_address_is_refused() {
    let ca = Ca::new("ours");
    let file = CaFile::new(&ca.pem);
    let name = "not valid for name";
    refuses(&ca.server("elsewhere"), "localhost", file.mode(), name).await;
    refuses(&ca.server("127.0.0.2"), "127.0.0.1", file.mode(), name).await;
    // A name is no address, even of the same host.
    refuses(&ca.server("localhost"), "127.0.0.1", file.mode(), name).await;
}

#[tokio::test]
async fn c28_an_expired_certificate_is_refused() {
    let ca = Ca::new("ours");
    let file = CaFile::new(&ca.pem);
    refuses(
        &ca.expired("localhost"),
        "localhost",
        file.mode(),
        "expired",
    )
    .await;
}

#[tokio::test]
async fn c28_an_unknown_ca_is_refused() {
    let (ours, other) = (Ca::new("ours"), Ca::new("another"));
    let file = CaFile::new(&ours.pem);
    refuses(
        &other.server("localhost"),
        "localhost",
        file.mode(),
        "UnknownIssuer",
    )
    .await;
    // Neither does the same name make it the same.
    let pretender = Ca::new("ours");
    let server = pretender.server("localhost").with_chain(&pretender);
    refuses(&server, "localhost", file.mode(), "certificate").await;
}

#[tokio::test]
async fn c28_the_ca_file_may_hold_several_certificates_and_a_chain() {
    let (root, other) = (Ca::new("root"), Ca::new("other"));
    let middle = root.intermediate("middle");
    let server = middle.server("localhost");
    let several = CaFile::new(format!("words before\n{}\n{}", other.pem, root.pem));
    works(&root.server("localhost"), "localhost", several.mode()).await;
    works(&other.server("localhost"), "localhost", several.mode()).await;
    // The server sends its own certificate alone; the chain stands in the file.
    let chain = CaFile::new(format!("{}{}", middle.pem, root.pem));
    works(&server, "localhost", chain.mode()).await;
    // Or the server sends the chain and the file has the root.
    let root_only = CaFile::new(&root.pem);
    works(
        &middle.server("localhost").with_chain(&middle),
        "localhost",
        root_only.mode(),
    )
    .await;
    refuses(&server, "localhost", root_only.mode(), "UnknownIssuer").await;
}

#[tokio::test]
async fn c28_skip_verify_accepts_any_certificate() {
    let server = Ca::new("nobody's").expired("elsewhere");
    works(&server, "127.0.0.1", TlsMode::InsecureSkipVerify).await;
}

#[tokio::test]
async fn c28_a_peer_without_tls_is_refused() {
    let peer = Peer::start().await;
    let broker = connect(&peer, "localhost", TlsMode::InsecureSkipVerify);
    let mut conn = peer.accept_tcp().await;
    let mut hello = [0; 1];
    conn.read_exact(&mut hello).await.unwrap();
    assert_eq!(hello[0], 22, "a TLS handshake record, no authentication");
    drop(conn);
    until("an error", || {
        broker.stats().last_connection_error.is_some()
    })
    .await;
}

#[tokio::test]
async fn c28_system_roots_are_used_and_an_empty_store_is_an_error() {
    // The environment names the file that stands for the system's store, so: in a child.
    let ca = Ca::new("system");
    let (file, server) = (CaFile::new(&ca.pem), ca.server("localhost"));
    in_child("known", &file, &server);
    in_child("unknown", &file, &Ca::new("elsewhere").server("localhost"));
    in_child("empty", &CaFile::new("nothing"), &server);
}

/// Runs `system_roots_child` in a process whose system store is `roots`.
fn in_child(case: &str, roots: &CaFile, server: &Server) {
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tls::system_roots_child", "--nocapture"])
        .env("TICKETING_TEST_CASE", case)
        .env("TICKETING_TEST_CHAIN", &server.chain_pem)
        .env("TICKETING_TEST_KEY", &server.key_pem)
        .env("SSL_CERT_FILE", &roots.path)
        .env_remove("SSL_CERT_DIR")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let held = text.contains(&format!("{case}: held"));
    assert!(out.status.success() && held, "{case}: {text}");
}

/// What the test above runs in a process of its own.
#[tokio::test]
async fn system_roots_child() {
    let Ok(case) = std::env::var("TICKETING_TEST_CASE") else {
        return;
    };
    let server = Server {
        chain_pem: std::env::var("TICKETING_TEST_CHAIN").unwrap(),
        key_pem: std::env::var("TICKETING_TEST_KEY").unwrap(),
    };
    let roots = TlsMode::SystemRoots;
    match case.as_str() {
        "known" => works(&server, "localhost", roots).await,
        "unknown" => refuses(&server, "localhost", roots, "UnknownIssuer").await,
        _ => {
            let builder = TicketBroker::builder().addrs(["localhost:1"]).tls(roots);
            assert_eq!(builder.connect().unwrap_err().kind(), "Tls");
        }
    }
    println!("{case}: held");
}

#[tokio::test]
async fn c11_c13a_a_tls_peer_that_closes_without_its_close_notify_has_closed() {
    let peer = Peer::start_tls(Ca::new("ours").server("localhost").config()).await;
    let broker = connect(&peer, "localhost", TlsMode::InsecureSkipVerify);
    let mut conn = peer.session().await;
    until("a session", || broker.stats().sessions_usable == 1).await;
    let (first, second) = (ask(&broker, "a", 60), ask(&broker, "b", 60));
    let one = conn.next().await;
    conn.next().await;
    conn.reply(one.granted(4)).await;
    drop(conn); // the socket alone
    let mut ends = Vec::new();
    for task in [first, second] {
        ends.push(match outcome("an outcome", task).await {
            Ok(ticket) => {
                ticket.keep();
                "granted"
            }
            Err(e) => e.kind(),
        });
    }
    ends.sort_unstable();
    assert_eq!(ends, ["Indeterminate", "granted"]);
    let mut next = peer.session().await;
    ticket(&broker, &mut next, "healed", 5).await.keep();
}

#[tokio::test]
async fn c13a_inside_tls_the_half_close_is_a_close_notify_and_replies_are_read_after_it() {
    let peer = Peer::start_tls(Ca::new("ours").server("localhost").config()).await;
    let broker = connect(&peer, "localhost", TlsMode::InsecureSkipVerify);
    let mut conn = peer.session().await;
    until("a session", || broker.stats().sessions_usable == 1).await;
    let (first, second) = (ask(&broker, "a", 60), ask(&broker, "b", 60));
    let (one, two) = (conn.next().await, conn.next().await);
    conn.reply(one.refused(ErrorCode::BadKey)).await;
    conn.eof().await;
    conn.reply(two.granted(6)).await;
    conn.finish().await;
    let mut ends = Vec::new();
    for task in [first, second] {
        ends.push(match outcome("an outcome", task).await {
            Ok(ticket) => {
                ticket.keep();
                "granted"
            }
            Err(e) => e.kind(),
        });
    }
    ends.sort_unstable();
    assert_eq!(ends, ["Protocol", "granted"]);
}

#[tokio::test]
async fn c22_c27_inside_tls_half_a_reply_stalls_and_close_leaves_nothing() {
    let peer = Peer::start_tls(Ca::new("ours").server("localhost").config()).await;
    let broker = connect(&peer, "localhost", TlsMode::InsecureSkipVerify);
    let mut conn = peer.session().await;
    until("a session", || broker.stats().sessions_usable == 1).await;
    let asked = ask(&broker, "k", 60);
    conn.next().await;
    let started = Instant::now();
    conn.send(b"A\0").await;
    let e = outcome("half a reply", asked).await.unwrap_err();
    assert_eq!(e.kind(), "Indeterminate");
    assert!(started.elapsed() >= secs(3));
    let _next = peer.session().await;
    assert!(broker.wait_ready(SOON).await);
    soon("close", broker.close()).await;
    assert_eq!(crate::peer::sockets_to(peer.port()), 0);
}
