//! Who gets in: tokens, limits, TLS, reloads.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use common::*;
use ticketing_broker::config::{ClientToken, Config, TlsConfig};
use ticketing_broker::{AccessError, Broker, StartError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, SupportedProtocolVersion};
use tokio_rustls::{TlsConnector, rustls::version};

fn tokens(tokens: &[&str]) -> Vec<ClientToken> {
    let entry = |token: &&str| ClientToken {
        name: None,
        token: (*token).to_owned().into(),
    };
    tokens.iter().map(entry).collect()
}

fn with_tokens(list: &[&str]) -> Config {
    let mut config = memory_config();
    config.client_tokens = tokens(list);
    config
}

#[tokio::test]
async fn s9_any_of_the_tokens_lets_in_and_nothing_else() {
    let broker = Broker::start(with_tokens(&["first", "second", "third"]))
        .await
        .unwrap();
    for (token, let_in) in [
        ("first", true),
        ("second", true),
        ("third", true),
        ("", false),
        ("secon", false),
        ("second ", false),
    ] {
        let peer = Peer::connect_with(broker.local_addr(), token).await;
        assert_eq!(peer.is_some(), let_in, "{token:?}");
    }
}

#[tokio::test]
async fn s9_a_rejection_arrives_though_the_client_went_on_sending() {
    let broker = Broker::start(with_tokens(&["token"])).await.unwrap();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(broker.local_addr()).await.unwrap();
        stream.read_exact(&mut [0; 28]).await.unwrap();
        // Closing with these unread would reset the connection.
        stream.write_all(&[0; 10_000]).await.unwrap();
        let mut rest = Vec::new();
        stream.shutdown().await.unwrap();
        soon("the end", stream.read_to_end(&mut rest))
            .await
            .unwrap();
        assert_eq!(rest, [0]);
    }
}

#[tokio::test]
async fn s9_without_tokens_any_client_is_let_in() {
    let broker = memory_broker().await;
    for token in ["", "whatever"] {
        Peer::connect_with(broker.local_addr(), token)
            .await
            .expect("let in");
    }
}

#[tokio::test]
async fn s9_without_tokens_only_on_loopback_unless_told_so() {
    let mut config = memory_config();
    // Refused before anything is opened.
    config.listen = "0.0.0.0:0".parse().unwrap();
    let refused = Broker::start(config.clone()).await.unwrap_err();
    assert!(refused.is_configuration());
    assert!(
        refused.to_string().contains("allow_unauthenticated"),
        "{refused}"
    );
}

#[tokio::test]
async fn s9_a_reload_changes_who_gets_in_and_a_broken_one_does_not() {
    let broker = Broker::start(with_tokens(&["old"])).await.unwrap();
    let addr = broker.local_addr();
    let mut before = Peer::connect_with(addr, "old").await.unwrap();
    broker.reload(&with_tokens(&["new"])).unwrap();
    assert!(Peer::connect_with(addr, "old").await.is_none());
    Peer::connect_with(addr, "new").await.expect("let in");

    let refused = broker.reload(&with_tokens(&[""])).unwrap_err();
    assert!(refused.to_string().contains("client_tokens"), "{refused}");
    assert!(Peer::connect_with(addr, "").await.is_none());
    Peer::connect_with(addr, "new").await.expect("still let in");
    // What the broker listens on counts, and that is loopback still.
    let mut elsewhere = with_tokens(&[]);
    elsewhere.listen = "0.0.0.0:0".parse().unwrap();
    broker.reload(&elsewhere).unwrap();
    Peer::connect_with(addr, "any").await.expect("let in");
    // Connections that are open stay.
    before.granted(&acquire(1, 0, 30, &["k"])).await;
}

#[tokio::test]
async fn s6_connections_above_the_limit_are_closed_before_the_hello() {
    let mut config = memory_config();
    config.limits.connections = 3;
    let broker = Broker::start(config).await.unwrap();
    let addr = broker.local_addr();
    let first = Peer::connect(addr).await;
    let _second = Peer::connect(addr).await;
    // One that has not authenticated counts too.
    let mut third = TcpStream::connect(addr).await.unwrap();
    third.read_exact(&mut [0; 28]).await.unwrap();
    let mut fourth = TcpStream::connect(addr).await.unwrap();
    let end = soon("the end", fourth.read(&mut [0; 1])).await;
    assert!(!matches!(end, Ok(1..)), "no byte of a hello");
    drop(first);
    // Its place is free once the broker has seen its end.
    soon("a place", async {
        loop {
            let mut stream = TcpStream::connect(addr).await.unwrap();
            if stream.read_exact(&mut [0; 28]).await.is_ok() {
                break;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn s6_a_client_that_does_not_authenticate_is_closed_in_time() {
    let mut config = memory_config();
    config.limits.auth_timeout = Duration::from_secs(1);
    let broker = Broker::start(config).await.unwrap();
    let started = Instant::now();
    let mut silent = TcpStream::connect(broker.local_addr()).await.unwrap();
    let mut slow = TcpStream::connect(broker.local_addr()).await.unwrap();
    slow.write_all(&[0; 31]).await.unwrap();
    let mut bytes = Vec::new();
    soon("the end", silent.read_to_end(&mut bytes))
        .await
        .unwrap();
    assert_eq!(bytes.len(), 28, "the hello alone");
    assert!(started.elapsed() >= Duration::from_secs(1));
    let mut bytes = Vec::new();
    let _ = soon("the end", slow.read_to_end(&mut bytes)).await;
    assert_eq!(bytes.len(), 28);
}

#[test]
fn a_broker_may_be_started_and_kept_anywhere() {
    fn everywhere<T: Send + Sync + 'static>(_: &T) {}
    fn movable<T: Send + 'static>(_: &T) {}
    let starting = Broker::start(memory_config());
    movable(&starting);
    let checked = |broker: &Broker| everywhere(broker);
    let _ = checked;
}

#[tokio::test]
async fn several_brokers_run_in_one_process_and_stop_when_dropped() {
    let (one, two) = (memory_broker().await, memory_broker().await);
    let mut first = Peer::connect(one.local_addr()).await;
    let mut second = Peer::connect(two.local_addr()).await;
    first.granted(&acquire(1, 0, 30, &["k"])).await;
    second.granted(&acquire(1, 0, 30, &["k"])).await;
    let addr = one.local_addr();
    drop(one);
    assert_eq!(first.next().await, None);
    soon("the port is closed", async {
        while TcpStream::connect(addr).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    second.granted(&acquire(2, 0, 30, &["l"])).await;
}

#[tokio::test]
async fn s10_an_address_in_use_is_an_error_that_names_it() {
    let broker = memory_broker().await;
    let mut config = memory_config();
    config.listen = broker.local_addr();
    let error = Broker::start(config).await.unwrap_err();
    assert!(matches!(error, StartError::Listen { .. }));
    assert!(!error.is_configuration());
    let error = error.to_string();
    assert!(
        error.contains(&broker.local_addr().to_string()) && error.contains("another port"),
        "{error}"
    );
}

/// A folder with a certificate for 127.0.0.1 and its key.
struct Certificate {
    _dir: tempfile::TempDir,
    config: TlsConfig,
    der: CertificateDer<'static>,
}

fn certificate() -> Certificate {
    let dir = tempfile::tempdir().unwrap();
    let path = |name| Utf8PathBuf::from_path_buf(dir.path().join(name)).unwrap();
    let config = TlsConfig {
        cert: path("cert.pem"),
        key: path("key.pem"),
    };
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(&config.cert, made.cert.pem()).unwrap();
    std::fs::write(&config.key, made.signing_key.serialize_pem()).unwrap();
    Certificate {
        config,
        der: made.cert.der().clone(),
        _dir: dir,
    }
}

fn with_tls(certificate: &Certificate) -> Config {
    let mut config = memory_config();
    config.tls = Some(certificate.config.clone());
    config
}

async fn tls(
    addr: SocketAddr,
    trusted: &Certificate,
    versions: &[&'static SupportedProtocolVersion],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.der.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(addr).await.unwrap();
    let name = ServerName::IpAddress(addr.ip().into());
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
}

#[tokio::test]
async fn tls_carries_the_same_protocol() {
    let certificate = certificate();
    let broker = Broker::start(with_tls(&certificate)).await.unwrap();
    for (n, version) in [&version::TLS12, &version::TLS13].into_iter().enumerate() {
        let stream = tls(broker.local_addr(), &certificate, &[version])
            .await
            .unwrap();
        let mut peer = Peer::handshake(stream, "").await.unwrap();
        let token = peer.granted(&acquire(1, 0, 30, &["k"])).await;
        peer.send(&acquire(2, 30, 30, &["k"])).await;
        // Far more than one TLS record, both ways.
        let burst: Vec<u8> = (3..5000).flat_map(|n| acquire(n, 0, 0, &["k"])).collect();
        peer.send(&burst).await;
        for n in 3..5000 {
            assert_eq!(peer.reply().await.id(), Some(id(n)));
        }
        peer.send(&release(5000, token, &["k"])).await;
        peer.stream.shutdown().await.unwrap();
        let mut rest = peer.rest().await;
        rest.sort_by_key(ticketing_wire::Reply::id);
        // The broker's own end of TLS, and not a cut.
        assert_eq!(peer.stream.read(&mut [0]).await.unwrap(), 0);
        assert_eq!(rest.len(), 2, "version {n}: {rest:?}");
        // The end may come before the release is read, or with it.
        assert_eq!(rest[1], ticketing_wire::Reply::Released { id: id(5000) });
        if let ticketing_wire::Reply::Acquired { token, .. } = rest[0] {
            let stream = tls(broker.local_addr(), &certificate, &[version])
                .await
                .unwrap();
            let mut peer = Peer::handshake(stream, "").await.unwrap();
            peer.send(&release(1, token, &["k"])).await;
            peer.reply().await;
        }
    }
}

#[tokio::test]
async fn s6_a_tls_handshake_that_never_comes_blocks_nobody() {
    let certificate = certificate();
    let mut config = with_tls(&certificate);
    config.limits.auth_timeout = Duration::from_secs(1);
    let broker = Broker::start(config).await.unwrap();
    let started = Instant::now();
    let mut silent: Vec<_> = Vec::new();
    for _ in 0..20 {
        silent.push(TcpStream::connect(broker.local_addr()).await.unwrap());
    }
    let stream = tls(broker.local_addr(), &certificate, &[&version::TLS13])
        .await
        .unwrap();
    Peer::handshake(stream, "")
        .await
        .unwrap()
        .granted(&acquire(1, 0, 30, &["k"]))
        .await;
    for mut stream in silent {
        let _ = soon("the end", stream.read(&mut [0; 1])).await;
    }
    assert!(started.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn s10_a_reload_changes_the_certificate_and_a_broken_one_does_not() {
    let (old, new) = (certificate(), certificate());
    let broker = Broker::start(with_tls(&old)).await.unwrap();
    let addr = broker.local_addr();
    broker.reload(&with_tls(&new)).unwrap();
    assert!(tls(addr, &old, &[&version::TLS13]).await.is_err());
    tls(addr, &new, &[&version::TLS13]).await.unwrap();

    let mut mixed = with_tls(&new);
    mixed.tls.as_mut().unwrap().key = old.config.key.clone();
    let refused = broker.reload(&mixed).unwrap_err();
    assert!(matches!(refused, AccessError::Certificate { .. }));
    let refused = refused.to_string();
    assert!(refused.contains("another certificate"), "{refused}");
    for (content, part) in [
        ("", "no certificate"),
        ("-----BEGIN CERTIFICATE-----\n", "PEM"),
    ] {
        std::fs::write(&old.config.cert, content).unwrap();
        let refused = broker.reload(&with_tls(&old)).unwrap_err().to_string();
        assert!(refused.contains(part), "{refused}");
        assert!(refused.contains(old.config.cert.as_str()), "{refused}");
    }
    std::fs::remove_file(&old.config.cert).unwrap();
    let refused = broker.reload(&with_tls(&old)).unwrap_err().to_string();
    assert!(refused.starts_with("tls.cert = "), "{refused}");
    let refused = broker.reload(&memory_config()).unwrap_err();
    assert!(matches!(refused, AccessError::TlsSwitched { added: false }));
    tls(addr, &new, &[&version::TLS13]).await.unwrap();
}
