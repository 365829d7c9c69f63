//! `ticketing serve` on a data directory that is not as it should be (S8, S3): one line that names
//! it and says what to do, exit code 1, and nothing of it touched.

#![allow(
    clippy::unwrap_used,
    reason = "a test says by its line where it failed"
)]

#[path = "serve_attacks/raw.rs"]
#[allow(dead_code, reason = "the attacks use all of it")]
mod raw;
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use raw::{Raw, acquire};
use rustix::process::Signal;
use support::{Running, ticketing};
use tempfile::TempDir;
use ticketing_wire::Token;

/// A folder with one in it that a broker has used.
fn used() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    grant(&data, &[], "before");
    (folder, data)
}

/// Starts a broker, acquires `key` and ends the broker.
fn grant(data: &Path, args: &[&str], key: &str) -> Token {
    let all = [&["--data-dir", data.to_str().unwrap()], args].concat();
    let (running, address) = Running::serve(all);
    let token = Raw::connect(&address).granted(&acquire(1, 0, key));
    running.signal(Signal::TERM);
    assert!(running.end().0.success());
    token
}

/// What is there, but for the lock's process id.
fn content(data: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let entries = fs::read_dir(data)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .filter(|path| !path.ends_with("LOCK"))
        .map(|path| (path.clone(), fs::read(&path).ok()))
        .collect()
}

#[track_caller]
fn is_refused(data: &Path, words: &[&str]) {
    let before = content(data);
    let path = data.to_str().unwrap();
    let mut command = ticketing(["serve", "--listen", "127.0.0.1:0", "--log", "off"]);
    command.args(["--data-dir", path]);
    let (status, output, errors) = Running::start(command).end();
    assert_eq!(status.code(), Some(1), "{errors:?}");
    assert!(
        output.is_empty() && errors.len() == 1,
        "{output:?} {errors:?}"
    );
    for word in [&[path], words].concat() {
        assert!(errors[0].contains(word), "{errors:?} lacks {word:?}");
    }
    assert!(content(data) == before, "touched");
}

#[test]
fn s8_another_file_in_the_place_of_the_database_is_refused() {
    for other in ["", "CREATE TABLE t;", &"SQLite format 3".repeat(5000)] {
        let (_folder, data) = used();
        fs::write(data.join("grants.redb"), other).unwrap();
        is_refused(
            &data,
            &["grants.redb", "not a Ticketing database", "move it away"],
        );
    }
}

#[test]
fn s8_damage_is_refused() {
    let (_folder, data) = used();
    let file = data.join("grants.redb");
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    is_refused(&data, &["grants.redb", "damaged", "backup"]);
}

#[test]
fn s8_a_folder_in_the_place_of_a_file_is_refused() {
    for name in ["grants.redb", "LOCK"] {
        let (_folder, data) = used();
        fs::remove_file(data.join(name)).unwrap();
        fs::create_dir(data.join(name)).unwrap();
        is_refused(&data, &["a folder is in the way", "data_dir"]);
    }
}

/// What it points to may not be mounted: a new database would forget who holds what.
#[test]
fn s8_a_link_to_nothing_is_refused() {
    let (folder, data) = used();
    let file = data.join("grants.redb");
    let elsewhere = folder.path().join("elsewhere");
    fs::rename(&file, &elsewhere).unwrap();
    symlink(&elsewhere, &file).unwrap();
    grant(&data, &[], "through-the-link");
    fs::remove_file(&elsewhere).unwrap();
    is_refused(&data, &["grants.redb is a link to nothing", "mount"]);
    assert!(file.is_symlink() && !elsewhere.exists());
}

/// A wall clock that was set back by ten days looks the same.
#[test]
fn s3_a_mark_far_ahead_of_the_clock_is_told_and_tokens_rise() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let ahead = u64::try_from(now.as_millis()).unwrap() + 10 * 86_400_000;
    let floor = (ahead << 20).to_string();
    let first = grant(&data, &["--token-floor", &floor], "a");
    assert!(first.get() > ahead << 20);

    let (running, address) = Running::serve(["--data-dir", data.to_str().unwrap()]);
    running.logs("ahead of the system clock");
    assert!(Raw::connect(&address).granted(&acquire(1, 0, "b")) > first);
}
