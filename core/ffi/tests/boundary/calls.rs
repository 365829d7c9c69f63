//! Acquires and releases, and what a broker object tells of them.

use std::time::Duration;

use ticketing_ffi::*;

use crate::common::{Consumer, Server, encoded, until};

#[test]
fn c17_c18_a_ticket_from_its_grant_to_its_release() {
    let server = Server::start();
    let broker = server.open();
    let mut consumer = Consumer::open();
    let keys = encoded(&["b", "a", "b"]);
    let tag = consumer.submit(|q, t| submit_acquire(broker, q, t, &keys, 0, 30_000, 10_000));
    let Outcome::Granted {
        ticket,
        token,
        valid_for_ms,
    } = consumer.end_of(tag)
    else {
        panic!("it is free")
    };
    assert!(token > 0 && (10_000..=30_000).contains(&valid_for_ms));
    assert!(ticket_remaining_ms(ticket) <= valid_for_ms);
    assert_eq!(ticket_keys(ticket), ["a", "b"]);

    let other = consumer.acquire(broker, "a", 0);
    assert!(matches!(
        consumer.error_of(other),
        TicketError::Timeout { .. }
    ));

    // A second release tells the first one's outcome and sends nothing.
    for _ in 0..2 {
        let tag = consumer.submit(|q, t| submit_release(q, t, ticket));
        assert_eq!(consumer.end_of(tag), Outcome::Released);
    }
    ticket_drop(ticket);
    ticket_drop(ticket);
    assert_eq!(server.grants(), 0);
    let stats = broker_stats(broker);
    assert_eq!((stats.granted, stats.released), (1, 1));
    assert_eq!((stats.waiting, stats.sent, stats.given_up), (0, 0, 0));
    assert_eq!((stats.compensated, stats.automatic_dropped), (0, 0));
    assert!(stats.sessions_usable >= 1);
    assert_eq!(stats.last_connection_error, None);
    broker_drop(broker);
}

#[test]
fn c18_a_ticket_that_is_kept_is_not_released() {
    let server = Server::start();
    let broker = server.open();
    let mut consumer = Consumer::open();
    let (kept, _) = consumer.ticket(broker, "kept");
    let (dropped, _) = consumer.ticket(broker, "dropped");
    ticket_keep(kept);
    ticket_drop(kept);
    ticket_drop(dropped);
    until("the other one is released", || server.grants() == 1);
    let tag = consumer.acquire(broker, "kept", 0);
    assert!(matches!(
        consumer.error_of(tag),
        TicketError::Timeout { .. }
    ));
    broker_drop(broker);
}

#[test]
fn c21_ready_says_whether_a_session_is_usable() {
    let server = Server::start();
    let broker = server.open();
    let mut consumer = Consumer::open();
    let tag = consumer.submit(|q, t| submit_ready(broker, q, t, 30_000));
    assert_eq!(consumer.end_of(tag), Outcome::Ready { usable: true });
    broker_drop(broker);

    let nobody = crate::common::open_to_nobody();
    let tag = consumer.submit(|q, t| submit_ready(nobody, q, t, 20));
    assert_eq!(consumer.end_of(tag), Outcome::Ready { usable: false });
    until("the error is told", || {
        broker_stats(nobody).last_connection_error.is_some()
    });
    let tag = consumer.submit(|q, t| submit_ready(nobody, q, t, 60_000));
    cancel(consumer.queue, tag);
    assert!(matches!(
        consumer.error_of(tag),
        TicketError::Cancelled { .. }
    ));
    broker_drop(nobody);
}

#[test]
fn c8_a_cancel_before_anything_is_sent() {
    let nobody = crate::common::open_to_nobody();
    let mut consumer = Consumer::open();
    let tag = consumer.acquire(nobody, "k", 60_000);
    assert_eq!(broker_stats(nobody).waiting, 1);
    cancel(consumer.queue, tag);
    cancel(consumer.queue, tag);
    assert!(matches!(
        consumer.error_of(tag),
        TicketError::Cancelled { .. }
    ));
    assert_eq!(broker_stats(nobody).waiting, 0);
    broker_drop(nobody);
}

#[test]
fn c9_c10_a_cancel_of_a_waiter_and_of_a_grant_that_lies_in_its_queue() {
    let server = Server::start();
    let broker = server.open();
    let mut consumer = Consumer::open();
    let (held, _) = consumer.ticket(broker, "k");
    let waits = consumer.acquire(broker, "k", 60_000);
    until("it is sent", || broker_stats(broker).sent == 1);
    cancel(consumer.queue, waits);
    assert!(matches!(
        consumer.error_of(waits),
        TicketError::Indeterminate { .. }
    ));
    ticket_drop(held);
    server.holds_nothing_soon();

    let granted = consumer.acquire(broker, "k", 0);
    assert!(queue_wait(consumer.queue, 30_000));
    assert_eq!(server.grants(), 1);
    cancel(consumer.queue, granted);
    assert!(matches!(
        consumer.error_of(granted),
        TicketError::Indeterminate { .. }
    ));
    server.holds_nothing_soon();
    broker_drop(broker);
}

#[test]
fn c19_cancelling_a_release_only_ends_the_waiting() {
    let server = Server::start();
    let broker = server.open();
    let mut consumer = Consumer::open();
    let (ticket, _) = consumer.ticket(broker, "k");
    let tag = consumer.submit(|q, t| submit_release(q, t, ticket));
    cancel(consumer.queue, tag);
    consumer.end_of(tag);
    server.holds_nothing_soon();
    broker_drop(broker);
}

#[test]
fn c16_a_grant_that_lay_in_its_queue_too_long_is_given_back() {
    let server = Server::start();
    let broker = server.open();
    let mut consumer = Consumer::open();
    let keys = encoded(&["k"]);
    let tag = consumer.submit(|q, t| submit_acquire(broker, q, t, &keys, 0, 250_000, 249_900));
    assert!(queue_wait(consumer.queue, 30_000));
    // It was sent before that, so at least this much of its lease has gone.
    std::thread::sleep(Duration::from_millis(150));
    let error = consumer.error_of(tag);
    let TicketError::InsufficientLease {
        remaining_ms,
        min_work_ms,
        ..
    } = error
    else {
        panic!("{error:?}")
    };
    assert!(remaining_ms < 249_900);
    assert_eq!(min_work_ms, 249_900);
    server.holds_nothing_soon();
    let (ticket, _) = consumer.ticket(broker, "k");
    ticket_drop(ticket);
    broker_drop(broker);
}

#[test]
fn c16_a_grant_that_a_torn_drain_left_until_it_was_stale() {
    let server = Server::start();
    let broker = server.open();
    let queue = queue_open();
    submit_acquire(broker, queue, 5, &encoded(&["k"]), 0, 30_000, 29_000);
    let taken = queue_next(queue, 0, 8, 30_000);
    let [
        Completion {
            seq: 1,
            tag: 5,
            outcome: Outcome::Granted { ticket, token, .. },
        },
    ] = taken[..]
    else {
        panic!("{taken:?}")
    };
    // The same again, as long as nobody acted on it and it is good enough.
    let again = queue_next(queue, 0, 8, 0);
    let [
        Completion {
            seq: 1,
            tag: 5,
            outcome:
                Outcome::Granted {
                    ticket: t,
                    token: n,
                    valid_for_ms,
                },
        },
    ] = again[..]
    else {
        panic!("{again:?}")
    };
    assert_eq!((t, n), (ticket, token));
    assert!((29_000..=30_000).contains(&valid_for_ms));
    until("it is stale", || ticket_remaining_ms(ticket) < 29_000);
    let stale = queue_next(queue, 0, 8, 0);
    assert!(
        matches!(
            stale[..],
            [Completion {
                seq: 1,
                tag: 5,
                outcome: Outcome::Failed {
                    error: TicketError::InsufficientLease { .. }
                }
            }]
        ),
        "{stale:?}"
    );
    assert_eq!(ticket_remaining_ms(ticket), 0);
    server.holds_nothing_soon();
    queue_close(queue);
    broker_drop(broker);
}

#[test]
fn c20_the_fence_of_each_dialect() {
    for dialect in [
        || Dialect::Sqlite,
        || Dialect::PostgreSql,
        || Dialect::MySql,
    ] {
        assert!(fence_table(dialect()).starts_with("CREATE TABLE"));
        assert_ne!(
            fence_statement(dialect(), true),
            fence_statement(dialect(), false)
        );
    }
}

#[test]
fn the_version_of_the_interface_is_16_hex_digits() {
    let version = interface_version();
    assert_eq!(version.len(), 16);
    assert!(u64::from_str_radix(&version, 16).unwrap() > 0);
}
