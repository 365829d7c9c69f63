//! Numbers that stand for nothing (any more) answer `Closed` and never crash.

use ticketing_ffi::*;

use crate::common::{Consumer, Server, encoded, until};

#[track_caller]
fn assert_closed(consumer: &mut Consumer, submit: impl FnOnce(i64, i64)) {
    let tag = consumer.submit(submit);
    let error = consumer.error_of(tag);
    assert!(matches!(error, TicketError::Closed { .. }), "{error:?}");
}

/// Every export with a number for each of its objects.
fn everything_with(number: i64, consumer: &mut Consumer) {
    let key = encoded(&["k"]);
    assert_closed(consumer, |q, t| {
        submit_acquire(number, q, t, &key, 0, 1_000, 0)
    });
    assert_closed(consumer, |q, t| submit_ready(number, q, t, 0));
    assert_closed(consumer, |q, t| submit_close(number, q, t));
    assert_closed(consumer, |q, t| {
        submit_campaign(number, q, t, b"n", 1_000, -1)
    });
    assert_closed(consumer, |q, t| submit_release(q, t, number));
    assert_closed(consumer, |q, t| submit_next_term(q, t, number, 1));
    assert_closed(consumer, |q, t| submit_resign(q, t, number));
    let stats = broker_stats(number);
    assert_eq!((stats.sessions_usable, stats.granted), (0, 0));
    broker_drop(number);
    ticket_drop(number);
    ticket_keep(number);
    assert_eq!(ticket_remaining_ms(number), 0);
    assert!(ticket_keys(number).is_empty());
    leadership_drop(number);
    assert_eq!(leadership_token(number), 0);
    assert_eq!(leadership_remaining_ms(number), 0);
    // As a queue: nobody is there to be told.
    assert_eq!(queue_fd(number), -1);
    assert!(!queue_wait(number, i64::MAX));
    assert!(queue_next(number, 0, 8, i64::MAX).is_empty());
    submit_acquire(number, number, 1, &key, 0, 1_000, 0);
    submit_ready(number, number, 1, 0);
    submit_close(number, number, 1);
    submit_campaign(number, number, 1, b"n", 1_000, -1);
    submit_release(number, 1, number);
    submit_next_term(number, 1, number, 1);
    submit_resign(number, 1, number);
    cancel(number, 1);
    queue_close(number);
}

#[test]
fn unknown_ones() {
    let mut consumer = Consumer::open();
    for number in [0, -1, i64::MIN, i64::MAX, 1 << 40] {
        everything_with(number, &mut consumer);
    }
    // Nothing is under a tag that no call has.
    for tag in [0, -1, i64::MAX] {
        cancel(consumer.queue, tag);
    }
    assert!(queue_next(consumer.queue, consumer.seen, 8, 0).is_empty());
}

/// A queue is no broker object, a ticket no queue …: one object's number means nothing elsewhere.
#[test]
fn foreign_ones() {
    let server = Server::start();
    let broker = server.open();
    let mut consumer = Consumer::open();
    let (ticket, _) = consumer.ticket(broker, "foreign");
    let key = encoded(&["k"]);
    assert_closed(&mut consumer, |q, t| {
        submit_acquire(q, q, t, &key, 0, 1_000, 0)
    });
    assert_closed(&mut consumer, |q, t| {
        submit_acquire(ticket, q, t, &key, 0, 1_000, 0)
    });
    assert_closed(&mut consumer, |q, t| submit_release(q, t, broker));
    assert_closed(&mut consumer, |q, t| submit_resign(q, t, ticket));
    assert_eq!(queue_fd(broker), -1);
    assert!(!queue_wait(ticket, i64::MAX));
    for number in [broker, consumer.queue] {
        ticket_drop(number);
        leadership_drop(number);
    }
    broker_drop(ticket);
    queue_close(ticket);
    queue_close(broker);
    assert!(ticket_remaining_ms(ticket) > 0);
    assert_eq!(server.grants(), 1);
    ticket_drop(ticket);
    server.holds_nothing_soon();
}

#[test]
fn closed_ones() {
    let server = Server::start();
    let broker = server.open();
    let mut consumer = Consumer::open();
    let (ticket, _) = consumer.ticket(broker, "closed");
    ticket_drop(ticket);
    server.holds_nothing_soon();
    everything_with(ticket, &mut consumer);

    let other = queue_open();
    assert!(other > ticket, "numbers are never used twice");
    queue_close(other);
    everything_with(other, &mut consumer);

    // A closed broker object: closing it twice is fine, all else says so.
    for _ in 0..2 {
        let tag = consumer.submit(|q, t| submit_close(broker, q, t));
        assert_eq!(consumer.end_of(tag), Outcome::Closed);
    }
    let key = encoded(&["k"]);
    assert_closed(&mut consumer, |q, t| {
        submit_acquire(broker, q, t, &key, 0, 1_000, 0)
    });
    let tag = consumer.submit(|q, t| submit_ready(broker, q, t, 60_000));
    assert_eq!(consumer.end_of(tag), Outcome::Ready { usable: false });
    broker_drop(broker);
    everything_with(broker, &mut consumer);
}

#[test]
fn a_broker_object_that_is_dropped_lives_as_long_as_its_tickets() {
    let server = Server::start();
    let broker = server.open();
    let mut consumer = Consumer::open();
    let (ticket, _) = consumer.ticket(broker, "outlives");
    broker_drop(broker);
    broker_drop(broker);
    assert!(ticket_remaining_ms(ticket) > 0);
    assert_eq!(ticket_keys(ticket), ["outlives"]);
    let tag = consumer.submit(|q, t| submit_release(q, t, ticket));
    assert_eq!(consumer.end_of(tag), Outcome::Released);
    ticket_drop(ticket);
    until("nothing is held", || server.grants() == 0);
}
