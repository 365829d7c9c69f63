//! `ticketing demo`, small: what it shows, and that it leaves nothing behind however it ends.

#![allow(
    clippy::unwrap_used,
    reason = "a test says by its line where it failed"
)]

mod support;

use std::path::Path;

use rusqlite::Connection;
use rustix::process::Signal;
use support::{Running, eventually, processes_of, ticketing};

/// The sum of the balances, and of what the ledger makes of the opening ones.
fn totals(file: &Path) -> (i64, i64) {
    let database = Connection::open(file).unwrap();
    let number = |sql| database.query_row(sql, [], |row| row.get(0)).unwrap();
    (
        number("SELECT sum(balance) FROM account"),
        number("SELECT 1000 * count(*) FROM account"),
    )
}

#[test]
fn the_demo_holds_and_its_files_say_so_too() {
    let folder = tempfile::tempdir().unwrap();
    let keep = folder.path().join("kept");
    let mut command = ticketing(["demo", "--workers", "2", "--transfers", "30", "--work", "0"]);
    command.arg("--keep").arg(&keep);
    let (status, table, errors) = Running::start(command).end();
    assert!(status.success(), "{table:?} {errors:?}");
    assert_eq!(table.len(), 6, "{table:?}");
    assert!(
        table.iter().all(|line| line.starts_with("ok ")),
        "{table:?}"
    );
    let whole = table.join("\n");
    for words in [
        "30 of 30, 30 in the ledger, by 2 processes",
        "0 overlap",
        "8000 before, 8000 after",
        "25 are gone",
        "refused",
    ] {
        assert!(whole.contains(words), "{words}: {whole}");
    }
    assert_eq!(totals(&keep.join("accounts.db")), (8000, 8000));
    assert_eq!(totals(&keep.join("accounts-unfenced.db")), (7975, 8000));
    assert!(processes_of(folder.path()).is_empty());
}

/// A demo that would go on for long, with its temporary files below `folder`, once a process of it
/// is seen that `is` what the test waits for.
fn long_demo(folder: &Path, transfers: &str, is: impl Fn(&support::Seen) -> bool) -> Running {
    let mut command = ticketing(["demo", "--workers", "2", "--transfers", transfers]);
    command.env("TMPDIR", folder);
    let mut running = Running::start(command);
    eventually("the demo is there", || {
        running.must_run();
        processes_of(folder).iter().any(&is).then_some(())
    });
    running
}

#[test]
fn a_demo_that_is_interrupted_leaves_no_process_and_no_file() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let folder = tempfile::tempdir().unwrap();
        let running = long_demo(folder.path(), "1000000", |process| {
            process.command.contains("demo-worker")
        });
        running.signal(signal);
        let (status, _, errors) = running.end();
        assert_eq!(status.code(), Some(code), "{errors:?}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        eventually("its processes are gone", || {
            processes_of(folder.path()).is_empty().then_some(())
        });
    }
}

#[test]
fn a_holder_that_is_stopped_goes_with_the_demo() {
    let folder = tempfile::tempdir().unwrap();
    let running = long_demo(folder.path(), "2", |process| process.is_stopped);
    running.signal(Signal::TERM);
    assert_eq!(running.end().0.code(), Some(143));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    eventually("its processes are gone", || {
        processes_of(folder.path()).is_empty().then_some(())
    });
}

#[test]
fn a_demo_that_is_killed_leaves_no_process_and_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let running = long_demo(folder.path(), "1000000", |process| {
        process.command.contains("demo-worker")
    });
    running.signal(Signal::KILL);
    eventually("its processes are gone", || {
        processes_of(folder.path()).is_empty().then_some(())
    });
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_demo_that_can_not_run_says_why_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let mut no_folder = ticketing(["demo"]);
    no_folder.env("TMPDIR", folder.path().join("nowhere"));
    let mut taken = ticketing(["demo", "--keep"]);
    taken.arg(folder.path());
    for (command, words) in [(no_folder, "set TMPDIR"), (taken, "--keep")] {
        let (status, output, errors) = Running::start(command).end();
        assert_eq!(status.code(), Some(1));
        assert!(output.is_empty(), "{output:?}");
        assert!(errors.len() == 1 && errors[0].contains(words), "{errors:?}");
    }
}
