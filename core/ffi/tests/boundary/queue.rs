//! Waiting for completions: by `queue_wait`, by the descriptor; and the end of a queue.

use std::thread;
use std::time::{Duration, Instant};

use ticketing_ffi::*;

use crate::common::{Consumer, Server, encoded, open_to_nobody, until};

#[test]
fn queue_wait_takes_nothing() {
    let mut consumer = Consumer::open();
    let begun = Instant::now();
    assert!(!queue_wait(consumer.queue, 30));
    assert!(begun.elapsed() >= Duration::from_millis(30));
    assert!(!queue_wait(consumer.queue, -1));
    let tag = consumer.submit(|q, t| submit_release(q, t, -1));
    assert!(queue_wait(consumer.queue, 0));
    assert!(queue_wait(consumer.queue, i64::MAX));
    consumer.error_of(tag);
    assert!(!queue_wait(consumer.queue, 0));
}

#[test]
fn a_close_lets_go_who_waits() {
    let [one, two] = [queue_open(), queue_open()];
    let waiting = [
        thread::spawn(move || queue_wait(one, i64::MAX)),
        thread::spawn(move || queue_next(two, 0, 8, i64::MAX).is_empty()),
    ];
    for queue in [one, two] {
        queue_close(queue);
        queue_close(queue);
    }
    let [waited, empty] = waiting.map(|waiting| waiting.join().unwrap());
    assert!(!waited && empty);
}

/// Grants that nobody was told of are given back, those that somebody was told of are not.
#[test]
fn closing_a_queue_gives_back_what_was_never_handed_out() {
    let server = Server::start();
    let broker = server.open();
    let mut consumer = Consumer::open();
    let (mine, _) = consumer.ticket(broker, "mine");
    consumer.acquire(broker, "lies-here", 0);
    until("it is granted", || server.grants() == 2);
    consumer.acquire(broker, "mine", 60_000);
    until("it waits", || broker_stats(broker).sent >= 1);
    queue_close(consumer.queue);
    until("the others are gone", || server.grants() == 1);
    assert!(ticket_remaining_ms(mine) > 0);
    ticket_drop(mine);
    server.holds_nothing_soon();
    broker_drop(broker);
}

#[test]
fn a_tag_that_is_in_use_is_refused() {
    let broker = open_to_nobody();
    let queue = queue_open();
    let keys = encoded(&["k"]);
    submit_acquire(broker, queue, 9, &keys, 60_000, 30_000, 0);
    submit_acquire(broker, queue, 9, &keys, 60_000, 30_000, 0);
    let refused = queue_next(queue, 0, 8, 0);
    let [
        Completion {
            tag: 9,
            outcome:
                Outcome::Failed {
                    error: TicketError::InvalidInput { argument, .. },
                },
            ..
        },
    ] = &refused[..]
    else {
        panic!("{refused:?}")
    };
    assert_eq!(argument, "tag");
    // The first one is there as before.
    cancel(queue, 9);
    let first = queue_next(queue, 1, 8, 0);
    assert!(
        matches!(
            first[..],
            [Completion {
                tag: 9,
                outcome: Outcome::Failed {
                    error: TicketError::Cancelled { .. }
                },
                ..
            }]
        ),
        "{first:?}"
    );
    queue_close(queue);
    broker_drop(broker);
}

/// As an event loop does it: never a call that waits.
#[cfg(unix)]
#[test]
fn an_event_loop_watches_the_descriptor() {
    use tokio::io::{Interest, unix::AsyncFd};
    let server = Server::start();
    let broker = server.open();
    let queue = queue_open();
    let descriptor = queue_fd(queue);
    assert!(descriptor >= 0);
    assert_eq!(queue_fd(queue), descriptor);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        #[allow(deprecated, reason = "the queue keeps its descriptor open")]
        let watched = AsyncFd::with_interest(descriptor, Interest::READABLE).unwrap();
        const CALLS: i64 = 100;
        for tag in 0..CALLS {
            let keys = encoded(&[&format!("loop-{tag}")]);
            submit_acquire(broker, queue, tag, &keys, 5_000, 30_000, 0);
        }
        let (mut granted, mut seen) = (0, 0);
        while granted < CALLS {
            let readable = tokio::time::timeout(crate::common::SOON, watched.readable());
            // The watch is edge-triggered underneath: looked at again after each drain.
            let mut guard = readable.await.expect("it becomes readable").unwrap();
            let taken = queue_next(queue, seen, 7, 0);
            for completion in &taken {
                let Outcome::Granted { ticket, .. } = completion.outcome else {
                    panic!("{completion:?}")
                };
                ticket_drop(ticket);
                seen = completion.seq;
                granted += 1;
            }
            if taken.is_empty() {
                guard.clear_ready();
            }
        }
    });
    queue_close(queue);
    assert_eq!(queue_fd(queue), -1);
    server.holds_nothing_soon();
    broker_drop(broker);
}
