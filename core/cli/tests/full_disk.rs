//! `ticketing serve` on a disk that fills up for real: a small tmpfs in a mount namespace (S7).
//!
//! Making one takes root, or a system that lets anybody make user namespaces. Elsewhere the test
//! says on standard error that it was skipped; with `CI=true` it fails instead.

#![allow(
    clippy::unwrap_used,
    reason = "a test says by its line where it failed"
)]

#[path = "serve_attacks/raw.rs"]
#[allow(dead_code, reason = "the attacks use all of it")]
mod raw;
mod support;

use std::io::{Write, stderr};
use std::process::Command;

use raw::{Raw, acquire, id, release};
use support::Running;
use ticketing_wire::{ErrorCode, Reply, Token};

const NAME: &str = "s7_a_full_disk_ends_the_broker_and_loses_nothing";
/// Set where the test runs within its namespace: where to mount.
const WITHIN: &str = "TICKETING_TEST_MOUNT";

#[test]
fn s7_a_full_disk_ends_the_broker_and_loses_nothing() {
    if let Some(folder) = std::env::var_os(WITHIN) {
        return within(folder.to_str().unwrap());
    }
    let folder = tempfile::tempdir().unwrap();
    let namespaces = [&["--mount"][..], &["--map-root-user", "--mount"]];
    let mount = ["mount", "-t", "tmpfs", "none"];
    let Some(namespace) = namespaces.into_iter().find(|namespace| {
        let mut probe = Command::new("unshare");
        probe.args(*namespace).args(mount).arg(folder.path());
        probe.output().is_ok_and(|probe| probe.status.success())
    }) else {
        let text = format!("{NAME} needs a mount namespace: run it as root");
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{text}");
        // Past the harness, which shows nothing of a test that passes.
        writeln!(stderr(), "skipped: {text}").unwrap();
        return;
    };
    let mut again = Command::new("unshare");
    again.args(namespace).arg(std::env::current_exe().unwrap());
    again.args(["--exact", NAME, "--nocapture"]);
    // Its lines are not this run's: whoever counts results would count twice.
    let ran = again.env(WITHIN, folder.path()).output().unwrap();
    let said = [ran.stdout, ran.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(ran.status.success(), "within the namespace: {said}");
    println!("{said}");
}

fn mount(options: &str, folder: &str) {
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", options, "none", folder]);
    assert!(mount.status().unwrap().success(), "{options}");
}

/// A key that fills the disk.
fn key(n: u64) -> String {
    format!("{n:0>100}")
}

fn within(folder: &str) {
    mount("size=2m", folder);
    let data = format!("{folder}/data");
    let serve = || Running::serve(["--data-dir", &data]);
    let (broker, address) = serve();

    // Somebody waits for a key that is held.
    let mut raw = Raw::connect(&address);
    let mut granted = vec![(1, raw.granted(&acquire(1, 0, &key(1))))];
    let mut waiter = Raw::connect(&address);
    waiter.send(&acquire(1, 255, &key(1)));
    waiter.is_served(2, "read-after-it");

    // More and more is held, until the disk is full. Some requests are always under way.
    const AHEAD: u64 = 8;
    let mut sent = 1;
    let mut failed = 0;
    while failed == 0 {
        while sent < granted.len() as u64 + AHEAD {
            sent += 1;
            raw.send(&acquire(sent, 0, &key(sent)));
        }
        match raw.reply() {
            Reply::Acquired { id, token } => granted.push((id.get(), token)),
            Reply::Indeterminate { .. } => failed += 1,
            other => panic!("{other:?}"),
        }
    }
    // S7: those under way and later ones get no other answer, until the broker is gone.
    while let Some(reply) = raw.next() {
        assert!(matches!(reply, Reply::Indeterminate { .. }), "{reply:?}");
        failed += 1;
    }
    assert_eq!(granted.len() as u64 + failed, sent, "each was answered");
    let code = ErrorCode::NotActive;
    assert_eq!(waiter.next(), Some(Reply::Error { id: id(1), code }));
    assert_eq!(waiter.next(), None);
    let (status, _, errors) = broker.end();
    assert_eq!(status.code(), Some(1), "{errors:?}");
    let errors: Vec<_> = errors.iter().filter(|line| line.contains("rror")).collect();
    assert_eq!(errors.len(), 1, "one line: {errors:?}");
    for words in ["No space left", &data, "start the broker again"] {
        assert!(errors[0].contains(words), "{errors:?} lacks {words:?}");
    }
    println!(
        "{} granted, {failed} indeterminate: {}",
        granted.len(),
        errors[0]
    );
    assert!(granted.len() > 1000, "{}", granted.len());

    mount("remount,size=64m", folder);
    let (broker, address) = serve();
    let mut raw = Raw::connect(&address);
    let mut next = 0;
    let mut send = |raw: &mut Raw, frame: &dyn Fn(u64) -> Vec<u8>| {
        next += 1;
        raw.send(&frame(next));
        id(next)
    };
    let highest: Token = granted.last().unwrap().1;
    for (n, token) in granted {
        let key = key(n);
        let id = send(&mut raw, &|id| acquire(id, 0, &key));
        assert_eq!(raw.reply(), Reply::TimedOut { id }, "{key} is held");
        let id = send(&mut raw, &|id| release(id, token, &key));
        assert_eq!(raw.reply(), Reply::Released { id }, "{key} under {token}");
    }
    send(&mut raw, &|id| acquire(id, 0, &key(1)));
    assert!(raw.grant() > highest, "S3");
    drop(broker);
}
