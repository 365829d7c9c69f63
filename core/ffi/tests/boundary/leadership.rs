//! Leadership across the boundary.

use ticketing_ffi::*;

use crate::common::{Consumer, Server, open_to_nobody, until};

#[track_caller]
fn elected(consumer: &mut Consumer, broker: i64, lease_ms: i64) -> (i64, u64) {
    let tag = consumer.submit(|q, t| submit_campaign(broker, q, t, b"reports", lease_ms, -1));
    match consumer.end_of(tag) {
        Outcome::Elected { leadership, token } => (leadership, token),
        other => panic!("{other:?}"),
    }
}

#[test]
fn from_term_to_term_until_it_is_resigned() {
    let server = Server::start();
    let broker = server.open();
    let mut consumer = Consumer::open();
    let (leadership, first) = elected(&mut consumer, broker, 1_000);
    assert_eq!(leadership_token(leadership), first);
    assert!((1..=1_000).contains(&leadership_remaining_ms(leadership)));

    let tag = consumer.submit(|q, t| submit_next_term(q, t, leadership, first));
    let Outcome::Term { token: second } = consumer.end_of(tag) else {
        panic!("a healthy leader has a next term")
    };
    assert!(second > first);

    let token = leadership_token(leadership);
    let waits = consumer.submit(|q, t| submit_next_term(q, t, leadership, token));
    let cancelled = consumer.submit(|q, t| submit_next_term(q, t, leadership, token));
    cancel(consumer.queue, cancelled);
    assert!(matches!(
        consumer.end_of(cancelled),
        Outcome::Term { .. }
            | Outcome::Failed {
                error: TicketError::Cancelled { .. }
            }
    ));

    let tag = consumer.submit(|q, t| submit_resign(q, t, leadership));
    let resigned = consumer.end_of(tag);
    assert!(
        matches!(resigned, Outcome::Released | Outcome::NotCurrent),
        "{resigned:?}"
    );
    assert!(matches!(
        consumer.end_of(waits),
        Outcome::Lost | Outcome::Term { .. }
    ));
    let tag = consumer.submit(|q, t| submit_next_term(q, t, leadership, token));
    assert_eq!(consumer.end_of(tag), Outcome::Lost);
    assert_eq!(leadership_remaining_ms(leadership), 0);
    leadership_drop(leadership);
    server.holds_nothing_soon();
    broker_drop(broker);
}

#[test]
fn a_leadership_that_is_dropped_is_free_for_another() {
    let server = Server::start();
    let [one, two] = [server.open(), server.open()];
    let mut consumer = Consumer::open();
    let (leadership, token) = elected(&mut consumer, one, 30_000);
    let campaign = consumer.submit(|q, t| submit_campaign(two, q, t, b"reports", 30_000, -1));
    leadership_drop(leadership);
    leadership_drop(leadership);
    let Outcome::Elected {
        leadership: next,
        token: later,
    } = consumer.end_of(campaign)
    else {
        panic!("nobody else leads")
    };
    assert!(later > token);
    leadership_drop(next);
    server.holds_nothing_soon();
    [one, two].into_iter().for_each(broker_drop);
}

#[test]
fn it_is_lost_when_the_broker_is_gone() {
    let server = Server::start();
    let broker = server.open();
    let mut consumer = Consumer::open();
    let (leadership, token) = elected(&mut consumer, broker, 1_000);
    drop(server);
    let mut token = token;
    loop {
        let tag = consumer.submit(|q, t| submit_next_term(q, t, leadership, token));
        match consumer.end_of(tag) {
            Outcome::Term { token: next } => token = next,
            Outcome::Lost => break,
            other => panic!("{other:?}"),
        }
    }
    leadership_drop(leadership);
    broker_drop(broker);
}

#[test]
fn a_campaign_that_is_cancelled_holds_nothing() {
    let server = Server::start();
    let broker = server.open();
    let mut consumer = Consumer::open();
    // Before, while and after it is won.
    for round in 0..40 {
        let tag = consumer.submit(|q, t| submit_campaign(broker, q, t, b"reports", 30_000, -1));
        match round % 4 {
            0 => {}
            1 => until("it is under way", || {
                server.grants() > 0 || queue_wait(consumer.queue, 0)
            }),
            2 => drop(queue_wait(consumer.queue, 30_000)),
            _ => std::thread::yield_now(),
        }
        cancel(consumer.queue, tag);
        match consumer.error_of(tag) {
            TicketError::Cancelled { .. } | TicketError::Indeterminate { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    server.holds_nothing_soon();
    // With its queue, too.
    let queue = queue_open();
    submit_campaign(broker, queue, 1, b"reports", 30_000, -1);
    assert!(queue_wait(queue, 30_000));
    queue_close(queue);
    server.holds_nothing_soon();
    broker_drop(broker);
}

#[test]
fn a_campaign_ends_when_its_broker_object_is_closed() {
    let broker = open_to_nobody();
    let mut consumer = Consumer::open();
    let campaign = consumer.submit(|q, t| submit_campaign(broker, q, t, b"reports", 30_000, -1));
    let tag = consumer.submit(|q, t| submit_close(broker, q, t));
    assert_eq!(consumer.end_of(tag), Outcome::Closed);
    let error = consumer.error_of(campaign);
    assert!(matches!(error, TicketError::Closed { .. }), "{error:?}");
    broker_drop(broker);
}
