//! `ticketing` whose standard streams are gone: nobody reads its lines any more, or they can't be
//! written. That is no reason for a broker to end.

#![allow(
    clippy::unwrap_used,
    reason = "a test says by its line where it failed"
)]

mod support;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use support::{eventually, ticketing};

/// A process of a test; killed when dropped.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Started {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("it runs");
    }

    fn code(&mut self) -> Option<i32> {
        let ended = eventually("it ends", || self.0.try_wait().expect("a child"));
        ended.code()
    }
}

/// Starts a broker whose standard error is `errors` and whose standard output nobody reads after
/// the first line; gives its address.
fn serve(errors: Stdio) -> (Started, String) {
    let mut command = ticketing(["serve", "--memory", "--listen", "127.0.0.1:0"]);
    command.stdout(Stdio::piped()).stderr(errors);
    let mut child = Started(command.spawn().unwrap());
    let mut first = String::new();
    BufReader::new(child.0.stdout.take().unwrap())
        .read_line(&mut first)
        .unwrap();
    let address = first.trim_end().strip_prefix("listening on ").unwrap();
    (child, address.to_owned())
}

/// Has the broker log, looks whether it still serves, and ends it.
fn outlives_its_logs(mut broker: Started, address: &str) {
    // Each of these is a line in the log.
    for _ in 0..20 {
        broker.signal(Signal::HUP);
        TcpStream::connect(address).expect("it serves");
        thread::yield_now();
    }
    broker.signal(Signal::TERM);
    assert_eq!(broker.code(), Some(0));
}

#[test]
fn s10_a_broker_outlives_who_reads_its_logs() {
    let (mut broker, address) = serve(Stdio::piped());
    drop(broker.0.stderr.take());
    outlives_its_logs(broker, &address);
}

#[cfg(target_os = "linux")]
#[test]
fn s10_a_broker_outlives_a_full_disk_under_its_logs() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let (broker, address) = serve(full.into());
    outlives_its_logs(broker, &address);
}

#[cfg(target_os = "linux")]
#[test]
fn s10_a_first_line_that_nobody_takes_is_no_failure() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut command = ticketing(["serve", "--memory", "--listen", "127.0.0.1:0"]);
    command.stdout(full).stderr(Stdio::piped());
    let mut broker = Started(command.spawn().unwrap());
    let mut errors = BufReader::new(broker.0.stderr.take().unwrap()).lines();
    let listens = errors.find(|line| line.as_ref().unwrap().contains("listening on"));
    let line = listens.unwrap().unwrap();
    let address = line.split("listening on ").nth(1).unwrap();
    TcpStream::connect(address.trim()).expect("it serves");
    broker.signal(Signal::TERM);
    assert_eq!(broker.code(), Some(0));
}

/// The exit code does not depend on whether its reason can be read.
#[cfg(target_os = "linux")]
#[test]
fn s10_an_exit_code_is_the_same_when_nobody_reads_why() {
    for (args, code) in [(vec!["--help"], 0), (vec!["serve", "--memroy"], 2)] {
        for broken in [true, false] {
            let mut command: Command = ticketing(&args);
            if broken {
                let full = || File::options().write(true).open("/dev/full").unwrap();
                command.stdout(full()).stderr(full());
            } else {
                let gone = || std::io::pipe().unwrap().1;
                command.stdout(gone()).stderr(gone());
            }
            let mut ended = Started(command.spawn().unwrap());
            assert_eq!(ended.code(), Some(code), "{args:?}");
        }
    }
}
