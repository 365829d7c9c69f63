//! `ticketing serve` as a process: its first line, exit codes, signals and files.

#![allow(
    clippy::unwrap_used,
    reason = "a test says by its line where it failed"
)]

mod support;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, Signal, prlimit};
use support::{Running, ticketing};
use ticketing_client::{ReleaseOutcome, TicketBroker, TicketError, TlsMode};

const SECOND: Duration = Duration::from_secs(1);

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().unwrap().to_owned()
}

/// Runs `ticketing` to its end; gives the exit code and the only line of standard error.
#[track_caller]
fn refused(args: &[&str]) -> (i32, String) {
    let (status, output, mut errors) = Running::start(ticketing(args)).end();
    assert!(output.is_empty(), "{output:?}");
    assert_eq!(errors.len(), 1, "one line: {errors:?}");
    (status.code().expect("it exits"), errors.remove(0))
}

#[test]
fn s10_the_first_line_is_the_address_with_the_port_that_was_taken() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = ticketing(["serve", "--listen", "[::1]:0", "--worker-threads", "1"]);
    command.current_dir(folder.path());
    let (running, address) = Running::listening(command);
    let address: std::net::SocketAddr = address.parse().unwrap();
    assert!(address.ip().is_loopback() && address.is_ipv6() && address.port() != 0);
    std::net::TcpStream::connect(address).expect("it listens there");
    // Durable, in the default folder.
    assert!(folder.path().join("ticketing-data").is_dir());
    running.signal(Signal::TERM);
    let (status, output, _) = running.end();
    assert!(status.success() && output.is_empty(), "{status} {output:?}");
}

#[test]
fn s10_a_bad_configuration_is_one_line_with_the_key_and_exit_2() {
    let folder = tempfile::tempdir().unwrap();
    let file = path(folder.path(), "broker.toml");
    for (text, words) in [
        ("memroy = true", vec!["broker.toml", "memroy"]),
        ("memory = 1", vec!["memory", "true or false"]),
        (
            "listen = 'here'",
            vec!["listen", "\"here\"", "127.0.0.1:5225"],
        ),
        (
            "listen = '0.0.0.0:0'",
            vec!["listen", "client_tokens", "allow_unauthenticated"],
        ),
        ("client_tokens = ['']", vec!["client_tokens[0]", "empty"]),
        ("[limits]\nwaiters = 0", vec!["limits.waiters = 0", "1 to"]),
        ("[tls]\ncert = 'no.pem'\nkey = 'no.pem'", vec!["no.pem"]),
        ("log = 'a=b=c'", vec!["log = \"a=b=c\"", "allowed"]),
        ("listen = ", vec!["line 1", "not TOML"]),
    ] {
        fs::write(&file, text).unwrap();
        let (code, line) = refused(&["serve", "--memory", "--config", &file]);
        assert_eq!(code, 2, "{text}: {line}");
        assert!(
            words.iter().all(|word| line.contains(word)),
            "{text}: {line}"
        );
    }
    let (code, line) = refused(&["serve", "--memory", "--listen", "nowhere"]);
    assert!(code == 2 && line.contains("--listen"), "{code} {line}");
}

#[test]
fn c29_s10_a_bad_configuration_does_not_show_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let file = path(folder.path(), "broker.toml");
    for text in [
        "client_tokens = ['hush-hush', 7]",
        "client_tokens = 'hush-hush'",
        "client_tokens = ['hush-hush'",
        "client_tokens = [{ token = 'hush-hush', nmae = 'x' }]",
    ] {
        fs::write(&file, text).unwrap();
        let (code, line) = refused(&["serve", "--memory", "--config", &file]);
        assert!(code == 2 && !line.contains("hush"), "{code} {line}");
    }
}

#[test]
fn s10_an_address_in_use_is_one_line_and_exit_1() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (status, _, errors) = Running::start(ticketing([
        "serve", "--memory", "--log", "off", "--listen", &address,
    ]))
    .end();
    assert_eq!(status.code(), Some(1));
    assert!(
        errors.len() == 1 && errors[0].contains(&address),
        "{errors:?}"
    );
}

#[test]
fn s8_a_data_folder_has_one_broker() {
    let folder = tempfile::tempdir().unwrap();
    let data = path(folder.path(), "data");
    let (_running, _) = Running::serve(["--data-dir", &data]);
    let (code, line) = refused(&[
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--log",
        "off",
        "--data-dir",
        &data,
    ]);
    assert!(code == 1 && line.contains(&data), "{code} {line}");
}

#[test]
fn s8_a_data_folder_that_is_none_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = path(folder.path(), "file");
    fs::write(&file, "something else").unwrap();
    for folder in [&file, &format!("{file}/below")] {
        let (code, line) = refused(&[
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--log",
            "off",
            "--data-dir",
            folder,
        ]);
        assert!(
            code == 1 && line.contains(folder) && line.contains("a file is in the way"),
            "{code} {line}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s7_s10_a_broker_that_is_told_to_end_keeps_its_grants() {
    let folder = tempfile::tempdir().unwrap();
    let data = path(folder.path(), "data");
    for signal in [Signal::TERM, Signal::INT] {
        let (running, address) = Running::serve(["--data-dir", &data]);
        let broker = TicketBroker::connect(address.as_str()).unwrap();
        let kept = broker
            .acquire("kept", SECOND, 100 * SECOND, SECOND)
            .await
            .unwrap();
        kept.keep();
        let told = Instant::now();
        running.signal(signal);
        // It stays for releases as long as something is held.
        let (status, _, errors) = tokio::task::spawn_blocking(|| running.end()).await.unwrap();
        assert!(status.success(), "{status} {errors:?}");
        assert!(told.elapsed() >= SECOND, "{:?}", told.elapsed());

        let (running, address) = Running::serve(["--data-dir", &data]);
        let broker = TicketBroker::connect(address.as_str()).unwrap();
        let held = broker
            .acquire("kept", Duration::ZERO, SECOND, Duration::ZERO)
            .await;
        assert!(matches!(held, Err(TicketError::Timeout { .. })), "{held:?}");
        let free = broker
            .acquire("free", Duration::ZERO, 9 * SECOND, SECOND)
            .await
            .unwrap();
        assert!(free.token() > kept.token());
        assert_eq!(free.release().await, Ok(ReleaseOutcome::Released));
        drop(running);
        fs::remove_dir_all(&data).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s7_a_store_that_fails_ends_the_broker_with_exit_1() {
    let folder = tempfile::tempdir().unwrap();
    // A write past the limit is an error instead of a deadly signal.
    let mut command = std::process::Command::new("sh");
    command.arg("-c").arg("trap '' XFSZ; exec \"$0\" \"$@\"");
    command.arg(env!("CARGO_BIN_EXE_ticketing"));
    command.args([
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--log",
        "off",
        "--data-dir",
    ]);
    command.arg(folder.path().join("data"));
    let (running, address) = Running::listening(command);
    let broker = TicketBroker::connect(address.as_str()).unwrap();
    broker
        .acquire("a", SECOND, 9 * SECOND, SECOND)
        .await
        .expect("the store works");

    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    prlimit(Some(running.id()), Resource::Fsize, none).unwrap();
    let outcome = broker.acquire("b", SECOND, 9 * SECOND, SECOND).await;
    assert!(
        matches!(outcome, Err(TicketError::Indeterminate { .. })),
        "{outcome:?}"
    );
    let (status, _, errors) = tokio::task::spawn_blocking(|| running.end()).await.unwrap();
    assert_eq!(status.code(), Some(1), "{errors:?}");
    assert_eq!(errors.len(), 1, "{errors:?}");
}

/// Is `token` let in?
async fn let_in(address: &str, token: &str) -> bool {
    let broker = TicketBroker::builder()
        .addrs([address])
        .token(token)
        .connect()
        .unwrap();
    match broker
        .acquire("key", SECOND, 9 * SECOND, Duration::ZERO)
        .await
    {
        Ok(_) => true,
        Err(TicketError::Auth { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s9_s10_a_hang_up_reloads_the_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let file = path(folder.path(), "broker.toml");
    fs::write(&file, "client_tokens = ['old']").unwrap();
    let (running, address) = Running::serve(["--memory", "--config", &file]);
    assert!(let_in(&address, "old").await);
    assert!(!let_in(&address, "new").await);

    fs::write(&file, "client_tokens = [{ name = 'n', token = 'new' }]").unwrap();
    running.signal(Signal::HUP);
    running.logs("reloaded");
    assert!(let_in(&address, "new").await);
    assert!(!let_in(&address, "old").await);

    fs::write(&file, "client_tokens = 7").unwrap();
    running.signal(Signal::HUP);
    let line = running.logs("not reloaded");
    assert!(line.contains("client_tokens"), "{line}");
    assert!(let_in(&address, "new").await);
}

/// Writes a certificate for 127.0.0.1 that is its own authority, and its key.
fn certificate(cert: &str, key: &str) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    fs::write(cert, made.cert.pem()).unwrap();
    fs::write(key, made.signing_key.serialize_pem()).unwrap();
}

async fn trusts(address: &str, ca: &str) -> bool {
    let tls = TlsMode::Ca(ca.into());
    let broker = TicketBroker::builder()
        .addrs([address])
        .tls(tls)
        .connect()
        .unwrap();
    broker.wait_ready(2 * SECOND).await
}

#[tokio::test(flavor = "multi_thread")]
async fn s10_a_hang_up_reloads_the_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let [cert, key, old] = ["cert", "key", "old"].map(|name| path(folder.path(), name));
    certificate(&cert, &key);
    fs::copy(&cert, &old).unwrap();
    let (running, address) = Running::serve(["--memory", "--tls-cert", &cert, "--tls-key", &key]);
    assert!(trusts(&address, &old).await);

    certificate(&cert, &key);
    assert!(!trusts(&address, &cert).await, "nobody said so yet");
    running.signal(Signal::HUP);
    running.logs("reloaded");
    assert!(trusts(&address, &cert).await);
    assert!(!trusts(&address, &old).await);
}

#[test]
fn logs_are_json_lines_on_standard_error_when_asked_for() {
    let (running, _) = Running::serve(["--memory", "--log-format", "json"]);
    let first = running.logs("memory mode");
    running.signal(Signal::TERM);
    let (status, output, errors) = running.end();
    assert!(status.success() && output.is_empty());
    for line in errors.iter().chain([&first]) {
        let log: serde_json::Value = serde_json::from_str(line).expect(line);
        assert!(
            log["level"].is_string() && log["timestamp"].is_string(),
            "{line}"
        );
    }
}

#[test]
fn help_goes_to_standard_output() {
    for args in [
        vec!["--help"],
        vec!["serve", "--help"],
        vec!["demo", "-h"],
        vec!["--version"],
    ] {
        let (status, output, errors) = Running::start(ticketing(&args)).end();
        assert!(
            status.success() && errors.is_empty(),
            "{args:?}: {errors:?}"
        );
        let whole = output.join("\n");
        assert!(
            args == ["--version"] || whole.contains("Examples:\n  ticketing"),
            "{whole}"
        );
        assert!(
            !whole.contains("die-with-parent") && !whole.contains("demo-worker"),
            "{whole}"
        );
    }
}
