//! A broker that is killed under load and started again, many times over (S1, S3, S7).
//!
//! `TICKETING_LONG=1` makes it hundreds of rounds.

#[path = "../support/mod.rs"]
mod support;

mod actor;
mod ledger;
mod wire;

use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;

use actor::Actor;
use ledger::Ledger;
use support::{Running, ticketing};
use wire::Wire;

const ACTORS: usize = 16;

fn serve(folder: &str) -> (Running, String) {
    Running::serve(["--data-dir", folder])
}

#[test]
fn s7_a_broker_killed_under_load_keeps_its_word() {
    let rounds = if std::env::var_os("TICKETING_LONG").is_some() {
        400
    } else {
        12
    };
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().join("data");
    let folder = folder.to_str().expect("a UTF-8 path");
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);

    let ledger = Mutex::new(Ledger::new(ACTORS));
    let mut actors: Vec<Actor> = (0..ACTORS)
        .map(|n| Actor::new(n, seed ^ n as u64))
        .collect();
    for _ in 0..rounds {
        if random.random_bool(0.25) {
            // Killed while it starts: perhaps in the middle of its recovery.
            let mut command = ticketing(["serve", "--listen", "127.0.0.1:0"]);
            command.args(["--data-dir", folder]);
            let broker = Running::start(command);
            thread::sleep(Duration::from_millis(random.random_range(0..30)));
            drop(broker);
        }
        let (broker, address) = serve(folder);
        let mut probe = Wire::connect(&address).expect("it listens");
        ledger
            .lock()
            .expect("no panic")
            .check_after_restart(&mut probe);
        drop(probe);
        thread::scope(|scope| {
            let threads: Vec<_> = actors
                .iter_mut()
                .map(|actor| scope.spawn(|| actor.work(&address, &ledger)))
                .collect();
            thread::sleep(Duration::from_millis(random.random_range(5..150)));
            broker.signal(Signal::KILL);
            for thread in threads {
                thread.join().expect("an actor saw a broken promise");
            }
        });
        drop(broker);
    }
    let ledger = ledger.into_inner().expect("no panic");
    println!("{ledger:?}");
    assert!(
        ledger.is_telling(rounds),
        "the load was no load: {ledger:?}"
    );

    // A clean end keeps everything too.
    let (broker, _) = serve(folder);
    broker.signal(Signal::TERM);
    assert!(broker.end().0.success());
    let (_broker, address) = serve(folder);
    let mut probe = Wire::connect(&address).expect("it listens");
    { ledger }.check_after_restart(&mut probe);
}
