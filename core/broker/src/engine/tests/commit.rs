//! S7: what is on disk before what leaves.

use super::*;

#[tokio::test(start_paused = true)]
async fn s7_no_reply_leaves_before_its_commit() {
    let Pipeline { engine, store, .. } = pipeline(FakeStore::new());
    let mut peer = Peer::new(&engine);
    assert_eq!(peer.send(&acquire(1, 0, 30, &["k"])), []);
    settled().await;
    assert_eq!(store.records(0), ["grant 1 [\"k\"] 30"]);
    assert_eq!(peer.replies(), []);
    store.finish_one().await;
    assert_eq!(peer.replies(), [granted(1, 1)]);

    assert_eq!(peer.send(&release(2, 1, &["k"])), []);
    settled().await;
    assert_eq!(peer.replies(), []);
    store.finish_one().await;
    assert_eq!(peer.replies(), [released(2)]);
    assert_eq!(store.records(1), ["end 1"]);
}

#[tokio::test(start_paused = true)]
async fn s7_the_mark_of_a_token_block_is_in_the_batch_of_its_first_grant() {
    let Pipeline { engine, store, .. } = pipeline(FakeStore::open());
    Peer::new(&engine).send(&acquire(1, 0, 30, &["k"]));
    settled().await;
    assert_eq!(
        store.commits(),
        [[format!("mark {}", 2 << 20), "grant 1 [\"k\"] 30".to_owned()]]
    );
}

#[tokio::test(start_paused = true)]
async fn s7_not_current_leaves_after_all_that_was_applied_before_it() {
    let Pipeline { engine, store, .. } = pipeline(FakeStore::new());
    let (mut holder, mut other) = (Peer::new(&engine), Peer::new(&engine));
    holder.send(&acquire(1, 0, 30, &["k"]));
    settled().await;
    store.finish_one().await;
    // The release is in a commit; that the grant is gone is not on disk yet.
    holder.send(&release(2, 1, &["k"]));
    settled().await;
    assert_eq!(other.send(&release(1, 1, &["k"])), []);
    settled().await;
    assert_eq!(
        other.replies(),
        [],
        "a crash now would bring the grant back"
    );
    store.finish_one().await;
    assert_eq!(other.replies(), [Reply::NotCurrent { id: id(1) }]);
    // With nothing pending it needs no sync.
    assert_eq!(other.send(&release(2, 1, &["k"])), []);
    settled().await;
    assert_eq!(other.replies(), [Reply::NotCurrent { id: id(2) }]);
    assert_eq!(store.commits().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn s7_the_expiry_that_made_room_is_on_disk_with_the_grant() {
    let Pipeline { engine, store, .. } = pipeline(FakeStore::open());
    let mut peer = Peer::new(&engine);
    peer.send(&acquire(1, 0, 1, &["k"]));
    settled().await;
    tokio::time::advance(Duration::from_secs(1)).await;
    peer.send(&acquire(2, 0, 30, &["k"]));
    settled().await;
    assert_eq!(store.records(1), ["end 1", "grant 2 [\"k\"] 30"]);
}

#[tokio::test(start_paused = true)]
async fn s7_requests_that_come_during_a_sync_share_the_next() {
    let Pipeline { engine, store, .. } = pipeline(FakeStore::new());
    let mut peers: Vec<_> = (0..50).map(|_| Peer::new(&engine)).collect();
    peers[0].send(&acquire(1, 0, 30, &["0"]));
    settled().await;
    for (n, peer) in peers.iter_mut().enumerate().skip(1) {
        peer.send(&acquire(1, 0, 30, &[n.to_string().as_str()]));
    }
    settled().await;
    assert_eq!(store.commits().len(), 1, "one at a time");
    store.finish_one().await;
    store.finish_one().await;
    assert_eq!(store.commits().len(), 2);
    assert_eq!(store.records(1).len(), 49);
    for (n, peer) in peers.iter_mut().enumerate() {
        assert_eq!(peer.replies(), [granted(1, n as u64 + 1)]);
    }
}

#[tokio::test(start_paused = true)]
async fn s7_after_a_failed_commit_nothing_is_claimed_and_nothing_tried_again() {
    let Pipeline {
        engine,
        store,
        committer,
    } = pipeline(FakeStore::new());
    let (mut held, mut failing) = (Peer::new(&engine), Peer::new(&engine));
    let (mut waiting, mut later) = (Peer::new(&engine), Peer::new(&engine));
    held.send(&acquire(1, 0, 30, &["held"]));
    settled().await;
    store.finish_one().await;
    assert_eq!(held.replies(), [granted(1, 1)]);
    waiting.send(&acquire(1, 30, 30, &["held"]));
    settled().await;

    committer.abort();
    let failed = FakeStore {
        fails: true,
        ..store.clone()
    };
    let committer = tokio::spawn(Committer::new(engine.clone(), Box::new(failed)).run());
    failing.send(&acquire(1, 0, 30, &["k"]));
    failing.send(&acquire(2, 0, 30, &["k"])); // T in the same batch
    settled().await;
    later.send(&[release(1, 1, &["held"]), acquire(2, 0, 30, &["l"])].concat());
    store.finish_one().await;
    assert!(matches!(
        committer.await.unwrap(),
        Err(CommitError::Failed(_))
    ));

    assert_eq!(failing.replies(), [indeterminate(1), indeterminate(2)]);
    assert_eq!(later.replies(), [indeterminate(1), indeterminate(2)]);
    // The release of "held" was applied in the later batch, so that its waiter was granted there.
    assert_eq!(waiting.replies(), [indeterminate(1)]);
    assert_eq!(later.send(&acquire(3, 30, 30, &["m"])), [indeterminate(3)]);
    assert_eq!(store.commits().len(), 2);
    assert_eq!(
        later.step,
        Step::Finish,
        "the connection ends once all is written"
    );
}

#[tokio::test(start_paused = true)]
async fn s7_after_a_failed_commit_waiters_are_told_not_active() {
    let store = FakeStore::failing();
    let Pipeline {
        engine,
        store,
        committer,
    } = pipeline(store);
    let mut peer = Peer::new(&engine);
    peer.send(&[acquire(1, 0, 30, &["k"]), acquire(2, 30, 30, &["k"])].concat());
    settled().await;
    store.finish_one().await;
    assert!(committer.await.unwrap().is_err());
    assert_eq!(peer.replies(), [indeterminate(1), not_active(2)]);
    assert_eq!(peer.step, Step::Finish);
    peer.disconnect();
    settled().await;
    assert_eq!(store.commits().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn s7_a_lease_that_ends_with_a_failed_commit_is_granted_to_nobody() {
    let Pipeline {
        engine,
        store,
        committer,
    } = pipeline(FakeStore::failing());
    // No timer runs: the lease's end is seen when the failure is.
    let (mut failing, mut waiting) = (Peer::new(&engine), Peer::new(&engine));
    failing.send(&acquire(1, 0, 1, &["k"]));
    waiting.send(&acquire(1, 30, 30, &["k"]));
    settled().await;
    tokio::time::advance(Duration::from_secs(1)).await;
    store.finish_one().await;
    assert!(committer.await.unwrap().is_err());
    assert_eq!(failing.replies(), [indeterminate(1)]);
    assert_eq!(waiting.replies(), [indeterminate(1)], "it was never stored");
}

#[tokio::test(start_paused = true)]
async fn s7_a_failed_commit_wakes_the_idle_and_the_paused() {
    let Pipeline { engine, store, .. } = pipeline(FakeStore::failing());
    let (mut failing, mut idle) = (Peer::new(&engine), Peer::new(&engine));
    let wakes = Wakes::default();
    idle.drive_with(&wakes.waker());
    failing.send(&acquire(1, 0, 30, &["k"]));
    settled().await;
    assert_eq!(wakes.count(), 0);
    store.finish_one().await;
    assert_eq!(wakes.count(), 1, "it comes by and finds that it ends");
    idle.replies();
    assert_eq!(idle.step, Step::Finish);
}

/// Sixty-four clients, each with one request at a time, and a sync of 40 ms: how many requests the
/// later commits hold. `slow` of them take 20 ms to come back, all others no time.
async fn closed_loop(slow: usize) -> Vec<usize> {
    let Pipeline { engine, store, .. } = pipeline(FakeStore::new());
    let gate = store.gate.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(40)).await;
            gate.add_permits(1);
        }
    });
    for n in 0..64 {
        let mut peer = Peer::new(&engine);
        tokio::spawn(async move {
            // Half of them begin while the first commit is under way.
            if n >= 32 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            for request in 1.. {
                peer.send(&acquire(
                    request,
                    0,
                    250,
                    &[format!("{n}-{request}").as_str()],
                ));
                while peer.replies().is_empty() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                if n < slow {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        });
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    (5..15).map(|at| store.records(at).len()).collect()
}

#[tokio::test(start_paused = true)]
async fn s7_two_cohorts_become_one() {
    assert_eq!(closed_loop(0).await, [64; 10]);
}

#[tokio::test(start_paused = true)]
async fn s7_a_sync_waits_for_most_but_not_for_the_slowest() {
    // Six of 64 are slow: the sync does not wait for them; they are in every other one.
    let sizes = closed_loop(6).await;
    assert!(
        sizes.iter().all(|size| [58, 64].contains(size)),
        "{sizes:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn s7_a_gather_lasts_a_quarter_of_the_sync_at_most() {
    let Pipeline { engine, store, .. } = pipeline(FakeStore::new());
    let mut peers: Vec<_> = (0..8).map(|_| Peer::new(&engine)).collect();
    for (n, peer) in peers.iter_mut().enumerate() {
        peer.send(&acquire(1, 0, 250, &[n.to_string().as_str()]));
    }
    settled().await;
    tokio::time::sleep(Duration::from_millis(399)).await;
    store.gate.add_permits(1);
    settled().await; // a sync of 400 ms, then 1 ms
    assert_eq!(store.commits().len(), 1);
    // One of eight comes back.
    peers[0].send(&acquire(2, 0, 250, &["again"]));
    tokio::time::sleep(Duration::from_millis(97)).await;
    assert_eq!(store.commits().len(), 1);
    tokio::time::sleep(Duration::from_millis(4)).await;
    assert_eq!(store.commits().len(), 2);
    store.finish_one().await;
    // From an idle broker a request is committed at once.
    tokio::time::sleep(Duration::from_secs(10)).await;
    peers[1].send(&acquire(2, 0, 250, &["idle"]));
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
    assert_eq!(store.commits().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn s6_a_stalled_store_makes_connections_wait() {
    let Pipeline { engine, store, .. } = pipeline(FakeStore::new());
    let mut peer = Peer::new(&engine);
    peer.send(&acquire(1, 0, 250, &["k"]));
    settled().await;
    assert!(!engine.is_full());
    assert!(!engine.pause(peer.id));
    let mut next = 2;
    while !engine.is_full() {
        assert!(next < 100_000, "never full");
        peer.send(&release(next, next, &["other"]));
        next += 1;
    }
    // Nothing else than the room wakes this one.
    let (mut paused, wakes) = (Peer::new(&engine), Wakes::default());
    paused.drive_with(&wakes.waker());
    assert!(engine.pause(paused.id));
    assert_eq!(wakes.count(), 0);
    store.finish_one().await;
    assert_eq!(wakes.count(), 1, "it reads on");
    assert!(!engine.is_full(), "taken");
    let replies = peer.replies();
    assert_eq!(
        replies.len() as u64,
        next - 1,
        "an empty batch needs no sync"
    );
}
