//! Many brokers one after the other, as a test suite starts them. Alone in its process: it counts
//! the process's files and threads.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::{Duration, Instant};

use common::*;
use ticketing_broker::Broker;
use ticketing_broker::config::Config;

fn count(folder: &str) -> usize {
    std::fs::read_dir(format!("/proc/self/{folder}"))
        .unwrap()
        .count()
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn s10_a_hundred_brokers_leave_no_file_and_no_thread() {
    const BROKERS: u32 = 100;
    let one = || async { Broker::start(Config::for_test()).await.unwrap() };
    drop(one().await);
    until("the first is gone", || count("task") <= 2).await;
    let (files, threads) = (count("fd"), count("task"));

    let started = Instant::now();
    for _ in 0..BROKERS {
        one().await.shutdown().await.unwrap();
    }
    // Nobody could release anything: none of them waited a second for it.
    assert!(started.elapsed() < Duration::from_secs(1) * BROKERS);
    println!(
        "started and shut down: {:?} each",
        started.elapsed() / BROKERS
    );
    let started = Instant::now();
    for n in 0..BROKERS {
        let broker = one().await;
        if n % 2 == 0 {
            let mut peer = Peer::connect(broker.local_addr()).await;
            peer.granted(&acquire(1, 0, 30, &["k"])).await;
        }
    }
    println!(
        "started, used and dropped: {:?} each",
        started.elapsed() / BROKERS
    );
    until("they are gone", || {
        count("fd") <= files && count("task") <= threads
    })
    .await;
}
