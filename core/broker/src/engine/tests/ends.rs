//! S2, S4, S5, S10 and what a violation is: how connections, leases and brokers end.

use super::*;
use crate::engine::Fault;

#[tokio::test(start_paused = true)]
async fn s2_the_timer_ends_a_lease_and_serves_the_next_waiter() {
    let engine = engine(false);
    let timer = engine.clone();
    tokio::spawn(async move { timer.run_timer().await });
    let (mut holder, mut waiter) = (Peer::new(&engine), Peer::new(&engine));
    assert_eq!(holder.send(&acquire(1, 0, 10, &["k"])), [granted(1, 1)]);
    assert_eq!(waiter.send(&acquire(1, 30, 10, &["k"])), []);
    tokio::time::sleep(Duration::from_millis(9_999)).await;
    assert_eq!(waiter.replies(), [], "never early");
    tokio::time::sleep(Duration::from_millis(3)).await;
    assert_eq!(waiter.replies(), [granted(1, 2)]);
    // An earlier deadline than the timer knows of wakes it.
    assert_eq!(waiter.send(&acquire(2, 1, 10, &["k"])), []);
    tokio::time::sleep(Duration::from_millis(1_003)).await;
    assert_eq!(waiter.replies(), [Reply::TimedOut { id: id(2) }]);
}

#[tokio::test(start_paused = true)]
async fn s4_a_lease_that_ran_out_ends_before_the_next_request() {
    let engine = engine(false); // no timer runs
    let mut peer = Peer::new(&engine);
    assert_eq!(peer.send(&acquire(1, 0, 10, &["k"])), [granted(1, 1)]);
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(
        peer.send(&release(2, 1, &["k"])),
        [Reply::NotCurrent { id: id(2) }]
    );
    assert_eq!(peer.send(&acquire(3, 0, 10, &["k"])), [granted(3, 2)]);
}

#[tokio::test]
async fn s5_a_connection_that_ends_takes_its_waiters() {
    let engine = engine(false);
    let (mut holder, mut gone) = (Peer::new(&engine), Peer::new(&engine));
    let mut next = Peer::new(&engine);
    holder.send(&acquire(1, 0, 30, &["k"]));
    gone.send(&acquire(1, 30, 30, &["k"]));
    next.send(&acquire(1, 30, 30, &["k"]));
    gone.disconnect();
    assert_eq!(engine.stats().waiters, 1);
    holder.send(&release(2, 1, &["k"]));
    assert_eq!(next.replies(), [granted(1, 2)]);
}

#[tokio::test]
async fn s5_a_broken_connection_releases_but_acquires_no_more() {
    let engine = engine(false);
    let mut peer = Peer::new(&engine);
    peer.send(&acquire(1, 0, 30, &["k"]));
    peer.drive(
        &[release(2, 1, &["k"]), acquire(3, 0, 30, &["l"])].concat(),
        Input::Broken,
    );
    peer.disconnect();
    assert_eq!(engine.stats().grants, 0);
}

#[tokio::test]
async fn s5_half_closed_releases_are_applied_acquires_and_waiters_refused() {
    let engine = engine(false);
    let (mut peer, mut other) = (Peer::new(&engine), Peer::new(&engine));
    assert_eq!(peer.send(&acquire(1, 0, 30, &["k"])), [granted(1, 1)]);
    assert_eq!(peer.send(&acquire(2, 30, 30, &["k"])), []);
    other.send(&acquire(1, 30, 30, &["k"]));
    let last = [
        release(3, 1, &["k"]),
        acquire(4, 0, 30, &["free"]),
        acquire(5, 30, 30, &["k"]),
    ];
    let replies = peer.drive(&last.concat(), Input::HalfClosed);
    assert_eq!(
        replies,
        [not_active(2), released(3), not_active(4), not_active(5)]
    );
    assert_eq!(peer.step, Step::Finish);
    // The key went to the next in line, not to the one that left.
    assert_eq!(other.replies(), [granted(1, 2)]);
}

#[tokio::test(start_paused = true)]
async fn s5_half_closed_replies_of_an_unfinished_commit_are_delivered() {
    let Pipeline { engine, store, .. } = pipeline(FakeStore::new());
    let mut peer = Peer::new(&engine);
    peer.send(&acquire(1, 0, 30, &["k"]));
    settled().await;
    assert_eq!(
        peer.drive(&acquire(2, 0, 30, &["l"]), Input::HalfClosed),
        []
    );
    assert_eq!(peer.step, Step::Deliver);
    store.finish_one().await;
    let replies = peer.drive(&[], Input::HalfClosed);
    assert_eq!(
        replies,
        [granted(1, 1), not_active(2)],
        "it was granted: no E3 for it"
    );
    assert_eq!(peer.step, Step::Finish);
    peer.disconnect();
    assert_eq!(engine.stats().grants, 1, "written, so it stays");
}

#[tokio::test]
async fn s5_a_grant_that_no_write_holds_is_undone() {
    let engine = engine(false);
    let (mut holder, mut gone) = (Peer::new(&engine), Peer::new(&engine));
    let mut next = Peer::new(&engine);
    holder.send(&acquire(1, 0, 30, &["a", "b"]));
    gone.send(&acquire(1, 30, 30, &["a"]));
    gone.send(&acquire(2, 30, 30, &["b"]));
    next.send(&acquire(1, 30, 30, &["a"]));
    holder.send(&release(2, 1, &["a", "b"]));
    // Both grants are in the outbox; the connection's task has not come by.
    assert_eq!(engine.stats().grants, 2);
    gone.disconnect();
    assert_eq!(next.replies(), [granted(1, 4)]);
    assert_eq!(engine.stats().grants, 1);
}

#[tokio::test]
async fn s5_a_grant_that_was_fetched_but_not_written_is_undone() {
    let engine = engine(false);
    let mut peer = Peer::new(&engine);
    let waker = Waker::noop();
    let frame = acquire(1, 0, 30, &["k"]);
    engine.drive(
        peer.id,
        &frame,
        Input::Open,
        waker,
        &mut peer.out,
        &mut Vec::new(),
    );
    assert_eq!(engine.stats().grants, 1);
    peer.disconnect();
    assert_eq!(engine.stats().grants, 0);
}

#[tokio::test(start_paused = true)]
async fn s5_a_grant_whose_connection_ends_during_its_commit_is_undone_after_it() {
    let Pipeline { engine, store, .. } = pipeline(FakeStore::new());
    let (mut gone, mut next) = (Peer::new(&engine), Peer::new(&engine));
    gone.send(&acquire(1, 0, 30, &["k"]));
    next.send(&acquire(1, 30, 30, &["k"]));
    settled().await;
    gone.disconnect();
    settled().await;
    assert_eq!(store.commits().len(), 1);
    assert_eq!(engine.stats().grants, 1);
    store.finish_one().await;
    assert_eq!(store.records(1), ["end 1", "grant 2 [\"k\"] 30"]);
    store.finish_one().await;
    assert_eq!(next.replies(), [granted(1, 2)]);
}

#[tokio::test(start_paused = true)]
async fn an_id_in_an_unfinished_commit_is_outstanding() {
    let Pipeline { engine, store, .. } = pipeline(FakeStore::new());
    let mut peer = Peer::new(&engine);
    peer.send(&acquire(1, 0, 30, &["k"]));
    settled().await;
    store.finish_one().await;
    peer.replies();
    // Answered: it may come again.
    peer.send(&acquire(1, 0, 30, &["l"]));
    assert_eq!(
        peer.step,
        Step::Continue {
            used: acquire(1, 0, 30, &["l"]).len()
        }
    );
    for frame in [
        acquire(1, 0, 30, &["m"]),
        acquire(1, 0, 0, &["m"]),
        release(1, 9, &["m"]),
    ] {
        peer.send(&frame);
        assert_eq!(peer.step, Step::Close(Fault::DuplicateId(id(1))));
    }
}

#[tokio::test]
async fn a_violation_does_not_hide_what_came_before_it() {
    let engine = engine(false);
    let mut peer = Peer::new(&engine);
    peer.send(&acquire(1, 0, 30, &["k"]));
    peer.send(&[release(2, 1, &["k"]), b"?\0\0".to_vec()].concat());
    assert!(matches!(peer.step, Step::Close(Fault::Violation(_))));
    assert_eq!(engine.stats().grants, 0);
}

#[tokio::test]
async fn every_cut_of_a_stream_gives_the_same_answers() {
    let stream = [
        acquire(1, 0, 30, &["a"]),
        acquire(2, 0, 30, &["a"]),
        acquire(3, 0, 30, &["b", "c"]),
        release(4, 1, &["a"]),
        acquire(5, 0, 0, &["a"]),
        release(6, 2, &["b", "c"]),
    ]
    .concat();
    let whole = Peer::new(&engine(false)).send(&stream);
    assert_eq!(whole.len(), 6);
    for cut in 0..=stream.len() {
        let mut peer = Peer::new(&engine(false));
        let mut replies = peer.send(&stream[..cut]);
        let Step::Continue { used } = peer.step else {
            panic!("{:?}", peer.step)
        };
        replies.extend(peer.send(&stream[used..]));
        assert_eq!(replies, whole, "cut at {cut}");
    }
}

#[tokio::test(start_paused = true)]
async fn s10_a_stopping_broker_refuses_acquires_and_takes_releases() {
    let Pipeline {
        engine,
        store,
        committer,
    } = pipeline(FakeStore::new());
    let mut peer = Peer::new(&engine);
    peer.send(&acquire(1, 0, 30, &["held"]));
    settled().await;
    store.finish_one().await;
    peer.replies();
    peer.send(
        &[
            acquire(2, 0, 30, &["pending"]),
            acquire(3, 30, 30, &["held"]),
        ]
        .concat(),
    );
    settled().await;
    engine.stop();
    peer.send(&[acquire(4, 30, 30, &["held"]), acquire(5, 0, 30, &["x"])].concat());
    peer.send(&release(6, 1, &["held"]));
    store.finish_one().await;
    store.finish_one().await;
    let replies = peer.replies();
    // The one in an unfinished commit gets its true answer.
    let refused = [not_active(3), not_active(4), not_active(5)];
    assert_eq!(
        replies,
        [&[granted(2, 2)][..], &refused, &[released(6)]].concat()
    );
    assert!(matches!(peer.step, Step::Continue { .. }));
    engine.finish();
    peer.replies();
    assert_eq!(peer.step, Step::Finish);

    // What is applied before the end is committed before the end.
    peer.send(&release(7, 2, &["pending"]));
    engine.drain();
    settled().await;
    assert!(!committer.is_finished());
    store.finish_one().await;
    committer.await.unwrap().unwrap();
    assert_eq!(store.commits().last().unwrap(), &["end 2"]);
    assert_eq!(peer.replies(), [released(7)]);
}

#[tokio::test]
async fn s6_a_connection_is_small_again_after_a_burst() {
    let engine = engine(false);
    let (mut holder, mut peer) = (Peer::new(&engine), Peer::new(&engine));
    holder.send(&acquire(1, 0, 30, &["k"]));
    for n in 1..1000 {
        peer.send(&acquire(n, 30, 30, &["k"]));
    }
    let id = peer.id;
    let room = || {
        let state = engine.lock();
        let conn = &state.effects.conns[&id];
        (conn.outstanding.capacity(), conn.outbox.capacity())
    };
    assert!(room().0 >= 999);
    engine.stop();
    assert!(room().1 >= 999 * 12);
    assert_eq!(peer.replies().len(), 999);
    assert!(room().0 <= 16);
    assert!(room().1 <= 256);
}

#[tokio::test]
async fn a_panic_in_the_table_ends_its_task_and_no_more() {
    let mut calls = 0;
    let clock = move || {
        calls += 1;
        assert_eq!(calls, 1, "the clock breaks");
        1
    };
    let tokens = TokenSource::new(0, 0, Box::new(clock)).unwrap();
    let table = LockTable::new(TableLimits::default(), tokens);
    let engine = Arc::new(Engine::new(table, Instant::now(), false));
    let mut peer = Peer::new(&engine);
    let task = tokio::spawn(async move {
        let leave = Leave(&peer.engine.clone(), peer.id);
        peer.send(&acquire(1, 0, 30, &["k"]));
        drop(leave);
    });
    assert!(task.await.unwrap_err().is_panic());

    /// Disconnects on the way out, as a session does.
    struct Leave<'a>(&'a Engine, ConnId);

    impl Drop for Leave<'_> {
        fn drop(&mut self) {
            self.0.disconnect(self.1, &Outbox::default());
        }
    }
}
