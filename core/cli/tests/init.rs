//! `ticketing init`: what it writes is what a broker starts from and a client connects with.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use support::{Running, ticketing};
use ticketing_client::{TicketBroker, TlsMode};

/// Runs `init` with `args`, and gives what it printed.
fn init(args: &[&str]) -> String {
    let (status, output, errors) = Running::start(ticketing([&["init"], args].concat())).end();
    assert!(status.success(), "{args:?}: {errors:?}");
    output.join("\n")
}

/// Starts a broker from the folder, on a free port, in another working directory.
fn serve(dir: &Path) -> (Running, String) {
    serve_on("127.0.0.1:0", dir)
}

fn serve_on(listen: &str, dir: &Path) -> (Running, String) {
    let config = dir.join("broker.toml");
    let mut command = ticketing(["serve", "--listen", listen, "--config"]);
    command.arg(config).current_dir("/");
    Running::listening(command)
}

async fn connects(address: &str, token: &str, tls: TlsMode) -> (bool, Option<String>) {
    let broker = TicketBroker::builder()
        .addrs([address])
        .token(token)
        .tls(tls)
        .connect()
        .unwrap();
    let ready = tokio::select! {
        ready = broker.wait_ready(Duration::from_secs(30)) => ready,
        // Nobody may listen at another address of a host name: that is no verdict.
        () = failed(&broker), if !address.starts_with("localhost:") => false,
    };
    (ready, broker.stats().last_connection_error)
}

async fn failed(broker: &TicketBroker) {
    while broker.stats().last_connection_error.is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_broker_starts_from_it_and_clients_connect_by_tls_with_the_token() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("my broker");
    let dir_text = dir.to_str().unwrap();
    let printed = init(&[
        "--tls",
        "--name",
        "b.example",
        "--name",
        "127.0.0.2",
        dir_text,
    ]);
    let token = fs::read_to_string(dir.join("client-token")).unwrap();
    let token = token.trim_end();
    let ca = || TlsMode::Ca(dir.join("ca.pem").try_into().unwrap());
    let (broker, address) = serve(&dir);
    let port = address.rsplit(':').next().unwrap();

    for host in ["localhost", "127.0.0.1"] {
        let (ready, error) = connects(&format!("{host}:{port}"), token, ca()).await;
        assert!(ready, "{host}: {error:?}");
    }
    let (ready, error) = connects(&address, "another", ca()).await;
    assert!(!ready, "a wrong token: {error:?}");
    let (ready, error) = connects(&address, token, TlsMode::SystemRoots).await;
    assert!(!ready, "nobody else vouches for it: {error:?}");
    assert!(dir.join("data").is_dir(), "its data are beside it");

    drop(broker);
    for (listen, named) in [("127.0.0.2:0", true), ("127.0.0.3:0", false)] {
        let (_broker, address) = serve_on(listen, &dir);
        let (ready, error) = connects(&address, token, ca()).await;
        assert_eq!(ready, named, "{address}: {error:?}");
    }
    let (_broker, address) = serve(&dir);

    // What it prints can be pasted, and holds no secret.
    let key = fs::read_to_string(dir.join("key.pem")).unwrap();
    assert!(!printed.contains(token) && !printed.contains(key.lines().nth(1).unwrap()));
    let exports = printed.lines().filter(|line| line.contains("export "));
    let mut script: Vec<_> = exports.map(str::to_owned).collect();
    assert_eq!(script.len(), 3, "{printed}");
    script.push(format!("export TICKETING_ADDRS={address}"));
    script.push("exec \"$0\" bench --ops 10".to_owned());
    let mut shell = Command::new("sh");
    shell.args(["-ec", &script.join("\n"), env!("CARGO_BIN_EXE_ticketing")]);
    let (status, output, errors) = Running::start(shell).end();
    assert!(status.success(), "{script:?} {output:?} {errors:?}");
    for line in [
        "use ticketing_client::{TicketBroker, TlsMode};",
        ".addrs([\"127.0.0.1:5225\"])",
        ".token(token.trim_end())",
        &format!(".tls(TlsMode::Ca(\"{dir_text}/ca.pem\".into()))"),
    ] {
        assert!(printed.contains(line), "{line}: {printed}");
    }
    for words in ["valid for 3650 days", "listens on 127.0.0.1:5225 alone"] {
        assert!(printed.contains(words), "{words}: {printed}");
    }
}

#[tokio::test]
async fn c28_a_broker_reached_by_a_name_that_its_certificate_lacks_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("b");
    let dir_text = dir.to_str().unwrap();
    // The address that it listens on needs no --name.
    let listen = "127.0.0.4:5225";
    let printed = init(&["--tls", "--name", "127.0.0.2", "--listen", listen, dir_text]);
    assert!(printed.contains(listen), "{printed}");
    let token = fs::read_to_string(dir.join("client-token")).unwrap();
    for (host, good) in [("127.0.0.4", true), ("[::1]", true), ("127.0.0.3", false)] {
        let (_broker, address) = serve_on(&format!("{host}:0"), &dir);
        let ca = TlsMode::Ca(dir.join("ca.pem").try_into().unwrap());
        let (ready, error) = connects(&address, token.trim_end(), ca).await;
        assert_eq!(ready, good, "{host}: {error:?}");
        assert!(good || error.unwrap().contains("certificate"), "{host}");
    }
}

#[tokio::test]
async fn without_tls_there_is_a_configuration_and_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("b");
    let printed = init(&[dir.to_str().unwrap()]);
    assert!(
        !printed.contains("tls") && !printed.contains("TLS"),
        "{printed}"
    );
    let mut names: Vec<_> = fs::read_dir(&dir)
        .unwrap()
        .map(|f| f.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["broker.toml", "client-token"]);
    let token = fs::read_to_string(dir.join("client-token")).unwrap();
    let (_broker, address) = serve(&dir);
    let (ready, error) = connects(&address, token.trim_end(), TlsMode::Off).await;
    assert!(ready, "{error:?}");
}

#[test]
fn the_certificate_is_for_the_names_that_were_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("b");
    init(&[
        "--tls",
        "--name",
        "b.example",
        "--name",
        "10.1.2.3",
        dir.to_str().unwrap(),
    ]);
    let openssl = |args: &[&str]| {
        let mut command = Command::new("openssl");
        command.args(args).current_dir(&dir);
        let (status, output, errors) = Running::start(command).end();
        assert!(status.success(), "{args:?}: {output:?} {errors:?}");
        output.join("\n")
    };
    let text = openssl(&["x509", "-in", "cert.pem", "-noout", "-text"]);
    for words in [
        "DNS:localhost",
        "IP Address:127.0.0.1",
        "IP Address:0:0:0:0:0:0:0:1",
        "DNS:b.example",
        "IP Address:10.1.2.3",
        "TLS Web Server Authentication",
        "CA:FALSE",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let text = openssl(&["x509", "-in", "ca.pem", "-noout", "-text"]);
    for words in ["CA:TRUE, pathlen:0", "Certificate Sign"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    openssl(&[
        "verify",
        "-CAfile",
        "ca.pem",
        "-purpose",
        "sslserver",
        "-verify_hostname",
        "b.example",
        "cert.pem",
    ]);
    openssl(&[
        "x509",
        "-in",
        "cert.pem",
        "-noout",
        "-checkend",
        "300000000",
    ]);
}

#[test]
fn secrets_are_their_owners_alone() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("b");
    init(&["--tls", dir.to_str().unwrap()]);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir), 0o700);
    for name in ["broker.toml", "client-token", "key.pem"] {
        assert_eq!(mode(&dir.join(name)), 0o600, "{name}");
    }
    for name in ["ca.pem", "cert.pem"] {
        assert_eq!(mode(&dir.join(name)) & 0o133, 0, "{name}");
    }
}

#[test]
fn nothing_is_overwritten_and_a_refusal_changes_nothing() {
    for there in [
        "broker.toml",
        "client-token",
        "ca.pem",
        "cert.pem",
        "key.pem",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(there);
        fs::write(&file, "mine").unwrap();
        let dir = folder.path().to_str().unwrap();
        let (status, output, errors) = Running::start(ticketing(["init", "--tls", dir])).end();
        assert_eq!((status.code(), output.len()), (Some(2), 0));
        assert!(errors[0].contains(file.to_str().unwrap()), "{errors:?}");
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
        assert_eq!(fs::read_dir(dir).unwrap().count(), 1);
    }
}

#[test]
fn what_cannot_be_is_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let dir = folder.path().join("new");
    let (file, dir) = (file.to_str().unwrap(), dir.to_str().unwrap());
    for (args, code, words) in [
        (vec![file], 1, file),
        (vec!["/proc/nowhere"], 1, "/proc/nowhere"),
        (vec!["--name", "b.example", dir], 2, "--tls"),
        (
            vec!["--tls", "--name", "b.example:5225", dir],
            2,
            "host name",
        ),
        (vec!["--listen", "here", dir], 2, "--listen"),
        (vec!["--listen", "127.0.0.1:0", dir], 2, "1 to 65535"),
        (vec![], 2, "<DIR>"),
    ] {
        let (status, _, errors) = Running::start(ticketing([&["init"], &args[..]].concat())).end();
        assert_eq!(status.code(), Some(code), "{args:?}: {errors:?}");
        assert_eq!(errors.len(), 1, "{args:?}: {errors:?}");
        assert!(errors[0].contains(words), "{args:?}: {errors:?}");
    }
    assert!(!Path::new(dir).exists());
}
