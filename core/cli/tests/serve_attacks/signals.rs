//! S10 under load: the end with many waiters, and reloads good and bad.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use ticketing_client::{ReleaseOutcome, TicketBroker, TicketError, TlsMode};
use ticketing_wire::{ErrorCode, Reply};

use crate::broker::Broker;
use crate::raw::{Raw, acquire, id};
use crate::support::Running;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn s10_five_hundred_waiters_are_told_of_the_end() {
    const EACH: u64 = 10;
    let broker = Broker::serve(&["--memory"]);
    let mut holder = Raw::connect(&broker.address);
    holder.granted(&acquire(1, 0, "k"));
    let mut clients: Vec<_> = (0..50).map(|_| Raw::connect(&broker.address)).collect();
    for client in &mut clients {
        let waits = (1..=EACH).flat_map(|n| acquire(n, 255, "k"));
        client.send(&waits.collect::<Vec<u8>>());
        // Answered at once: those before it are in the line.
        client.send(&acquire(EACH + 1, 0, "k"));
        assert_eq!(client.reply(), Reply::TimedOut { id: id(EACH + 1) });
    }

    let told = Instant::now();
    broker.running.signal(Signal::TERM);
    for client in &mut clients {
        let mut refused: Vec<_> = (0..EACH).map(|_| client.reply()).collect();
        refused.sort_by_key(Reply::id);
        let code = ErrorCode::NotActive;
        let expected: Vec<_> = (1..=EACH)
            .map(|n| Reply::Error { id: id(n), code })
            .collect();
        assert_eq!(refused, expected);
    }
    for client in &mut clients {
        assert_eq!(client.next(), None, "closed in the end");
    }
    let (status, _, errors) = broker.running.end();
    assert_eq!(status.code(), Some(0), "{errors:?}");
    // Nobody released the key, so it waited a second for that.
    assert!((SECOND..5 * SECOND).contains(&told.elapsed()));
}

/// A certificate for 127.0.0.1 that is its own authority, and its key, both PEM.
fn certificate() -> (String, String) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

/// The files of a broker with TLS and tokens.
struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let files = Files { folder };
        let config = format!(
            "memory = true\nclient_tokens = ['hush-hush']\n[tls]\ncert = '{}'\nkey = '{}'\n",
            files.path("cert"),
            files.path("key")
        );
        files.write("broker.toml", &config);
        files.write_certificate(&certificate());
        files
    }

    fn path(&self, name: &str) -> String {
        let path: &Path = self.folder.path();
        path.join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn write_certificate(&self, (cert, key): &(String, String)) {
        self.write("cert", cert);
        self.write("key", key);
    }

    fn serve(&self, log: &str) -> (Running, String) {
        Running::serve(["--log", log, "--config", &self.path("broker.toml")])
    }
}

/// Acquires a key and releases it, over a new connection that trusts the certificates in `ca`.
async fn is_served(address: &str, ca: &str) {
    let broker = TicketBroker::builder()
        .addrs([address])
        .token("hush-hush")
        .tls(TlsMode::Ca(ca.into()))
        .connect()
        .unwrap();
    let key = format!("{:?}", std::thread::current().id()).replace(' ', "");
    let ticket = broker.acquire(&key, 30 * SECOND, 60 * SECOND, SECOND).await;
    let ticket = ticket.unwrap_or_else(|error: TicketError| panic!("{error}"));
    assert_eq!(ticket.release().await, Ok(ReleaseOutcome::Released));
    broker.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s10_a_broken_reload_changes_nothing_and_is_one_clear_line() {
    let files = Files::new();
    let config = fs::read_to_string(files.path("broker.toml")).unwrap();
    let cert = fs::read_to_string(files.path("cert")).unwrap();
    let key = fs::read_to_string(files.path("key")).unwrap();
    files.write("ca", &cert);
    let (another, _) = certificate();
    let tokens = |with: &str| config.replace("['hush-hush']", with);
    for (file, content, words) in [
        ("cert", "nothing".to_owned(), "tls.cert"),
        ("cert", cert.replace("-----END", "-----"), "tls.cert"),
        ("cert", another, "another certificate"),
        ("key", "nothing".to_owned(), "tls.key"),
        ("broker.toml", tokens("'hush-hush'"), "client_tokens"),
        (
            "broker.toml",
            tokens("['hush-hush', '']"),
            "client_tokens[1]",
        ),
        ("broker.toml", tokens("['hush-hush'"), "not TOML"),
        (
            "broker.toml",
            "memory = true".to_owned(),
            "[tls] was removed",
        ),
    ] {
        files.write("broker.toml", &config);
        files.write("cert", &cert);
        files.write("key", &key);
        let (running, address) = files.serve("error");
        files.write(file, &content);
        running.signal(Signal::HUP);
        let line = running.logs("");
        assert!(
            line.contains("not reloaded") && line.contains(words) && !line.contains("hush"),
            "{file}: {line}"
        );
        is_served(&address, &files.path("ca")).await;
        running.signal(Signal::TERM);
        let (status, _, errors) = tokio::task::spawn_blocking(|| running.end()).await.unwrap();
        assert!(status.success(), "{status}");
        assert_eq!(errors, [""; 0], "one line alone");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s10_many_reloads_disturb_nobody() {
    let files = Files::new();
    let certificates = [certificate(), certificate()];
    files.write_certificate(&certificates[0]);
    files.write("ca", &certificates.clone().map(|(cert, _)| cert).concat());
    let (running, address) = files.serve("info");
    let (done, served) = (
        Arc::new(AtomicBool::new(false)),
        Arc::<AtomicU64>::default(),
    );
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (address, ca) = (address.clone(), files.path("ca"));
            let (done, served) = (done.clone(), served.clone());
            tokio::spawn(async move {
                while !done.load(Ordering::Relaxed) {
                    is_served(&address, &ca).await;
                    served.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for round in 0..100 {
        files.write_certificate(&certificates[round % 2]);
        running.signal(Signal::HUP);
        tokio::task::block_in_place(|| running.logs("reloaded client_tokens"));
    }
    done.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    println!("{} clients meanwhile", served.load(Ordering::Relaxed));
    assert!(served.load(Ordering::Relaxed) > 0);
    running.signal(Signal::TERM);
    let (status, _, errors) = tokio::task::spawn_blocking(|| running.end()).await.unwrap();
    assert!(status.success(), "{errors:?}");
}
