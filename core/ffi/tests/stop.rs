//! The end of a process. One test, since `stop` is for good.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::{Duration, Instant};

use ticketing_ffi::*;

use common::{Consumer, Server, encoded, open_to_nobody, options, until};

/// The library's threads, by their name.
#[cfg(target_os = "linux")]
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim() == "ticketing").count()
}

#[test]
fn c27_stop_completes_what_is_pending_and_finishes_releases() {
    let server = Server::start();
    let broker = server.open();
    let nobody = open_to_nobody();
    let mut consumer = Consumer::open();
    let (held, _) = consumer.ticket(broker, "held");
    let (released, _) = consumer.ticket(broker, "released");
    let waits = consumer.acquire(broker, "held", 60_000);
    until("it waits", || broker_stats(broker).sent == 1);
    let unsent = consumer.acquire(nobody, "k", 60_000);
    let ready = consumer.submit(|q, t| submit_ready(nobody, q, t, 600_000));
    let campaign = consumer.submit(|q, t| submit_campaign(nobody, q, t, b"n", 30_000, -1));
    #[cfg(target_os = "linux")]
    assert!(threads() > 0);

    let release = consumer.submit(|q, t| submit_release(q, t, released));
    let begun = Instant::now();
    stop(60_000);
    assert!(begun.elapsed() < Duration::from_secs(30));
    #[cfg(target_os = "linux")]
    until("its threads are gone", || threads() == 0);

    assert_eq!(consumer.end_of(release), Outcome::Released);
    assert!(matches!(
        consumer.error_of(waits),
        TicketError::Indeterminate { .. }
    ));
    assert!(matches!(
        consumer.error_of(unsent),
        TicketError::Closed { .. }
    ));
    assert_eq!(consumer.end_of(ready), Outcome::Ready { usable: false });
    assert!(matches!(
        consumer.error_of(campaign),
        TicketError::Closed { .. }
    ));

    // A ticket that was handed out stays until its lease ends.
    assert_eq!(server.grants(), 1);
    assert!(ticket_remaining_ms(held) > 0);
    let tag = consumer.submit(|q, t| submit_release(q, t, held));
    assert!(matches!(consumer.error_of(tag), TicketError::Closed { .. }));
    ticket_drop(held);

    let opened = broker_open(options(server.addr()));
    assert!(matches!(opened, Err(TicketError::Closed { .. })));
    let keys = encoded(&["k"]);
    let tag = consumer.submit(|q, t| submit_acquire(broker, q, t, &keys, 0, 1_000, 0));
    assert!(matches!(consumer.error_of(tag), TicketError::Closed { .. }));
    stop(60_000);
    stop(-1);
    broker_drop(broker);
}
