//! The lock table, clause by clause.

#[path = "table/recorder.rs"]
mod recorder;

use std::time::Duration;

use recorder::{Bench, Effect, ms};
use ticketing_broker::table::{RestoreError, TableLimits, TableStats};
use ticketing_wire::ErrorCode::{GroupMismatch, NotActive};

fn limits(waiters_per_key: u32, waiters: u32, grants: u32) -> TableLimits {
    TableLimits {
        waiters_per_key,
        waiters,
        grants,
    }
}

#[test]
fn s1_a_key_has_one_holder_and_waiters_are_served_in_arrival_order() {
    let mut bench = Bench::new();
    bench.acquire(1, 1, 0, 30, &["a"]);
    bench.acquire(2, 2, 60, 30, &["a"]);
    bench.acquire(3, 3, 60, 30, &["a"]);
    bench.expect(&[Effect::granted(1, 1, 1, &["a"], 30)]);
    bench.release(1, 4, 1, &["a"]);
    bench.expect(&[
        Effect::Ended(1),
        Effect::released(1, 4),
        Effect::granted(2, 2, 2, &["a"], 30),
    ]);
    bench.release(2, 5, 2, &["a"]);
    bench.expect(&[
        Effect::Ended(2),
        Effect::released(2, 5),
        Effect::granted(3, 3, 3, &["a"], 30),
    ]);
}

#[test]
fn s1_a_set_is_all_or_nothing_and_keeps_its_free_keys_idle() {
    let mut bench = Bench::new();
    bench.acquire(1, 1, 0, 30, &["b"]);
    bench.acquire(2, 2, 60, 30, &["a", "b", "c"]);
    bench.acquire(3, 3, 60, 30, &["a"]);
    bench.acquire(4, 4, 60, 30, &["c", "d"]);
    bench.acquire(5, 5, 60, 30, &["d"]);
    bench.expect(&[Effect::granted(1, 1, 1, &["b"], 30)]);
    bench.release(1, 6, 1, &["b"]);
    bench.expect(&[
        Effect::Ended(1),
        Effect::released(1, 6),
        Effect::granted(2, 2, 2, &["a", "b", "c"], 30),
    ]);
    bench.release(2, 7, 2, &["a", "b", "c"]);
    bench.expect(&[
        Effect::Ended(2),
        Effect::set_released(2, 7),
        Effect::granted(3, 3, 3, &["a"], 30),
        Effect::granted(4, 4, 4, &["c", "d"], 30),
    ]);
}

#[test]
fn s1_a_set_waits_for_the_last_of_its_keys() {
    let mut bench = Bench::new();
    bench.acquire(1, 1, 0, 30, &["a"]);
    bench.acquire(1, 2, 0, 30, &["c"]);
    bench.acquire(2, 3, 60, 30, &["a", "b", "c"]);
    bench.take();
    bench.release(1, 4, 1, &["a"]);
    bench.expect(&[Effect::Ended(1), Effect::released(1, 4)]);
    bench.release(1, 5, 2, &["c"]);
    bench.expect(&[
        Effect::Ended(2),
        Effect::released(1, 5),
        Effect::granted(2, 3, 3, &["a", "b", "c"], 30),
    ]);
}

#[test]
fn s1_wait_0_times_out_on_a_held_key_and_on_a_free_one_that_an_earlier_waiter_wants() {
    let mut bench = Bench::new();
    bench.acquire(1, 1, 0, 30, &["a"]);
    bench.acquire(2, 2, 60, 30, &["a", "b"]);
    bench.take();
    bench.acquire(3, 3, 0, 30, &["a"]);
    bench.acquire(3, 4, 0, 30, &["b"]);
    bench.acquire(3, 5, 0, 30, &["b", "c"]);
    bench.expect(&[
        Effect::timed_out(3, 3),
        Effect::timed_out(3, 4),
        Effect::timed_out(3, 5),
    ]);
    bench.acquire(3, 6, 0, 30, &["c"]);
    bench.expect(&[Effect::granted(3, 6, 2, &["c"], 30)]);
}

#[test]
fn s1_those_who_become_free_together_are_served_in_arrival_order() {
    let mut bench = Bench::new();
    bench.acquire(1, 1, 0, 30, &["a", "b"]);
    bench.acquire(2, 2, 60, 30, &["b"]);
    bench.acquire(3, 3, 60, 30, &["a"]);
    bench.take();
    bench.release(1, 4, 1, &["a", "b"]);
    bench.expect(&[
        Effect::Ended(1),
        Effect::set_released(1, 4),
        Effect::granted(2, 2, 2, &["b"], 30),
        Effect::granted(3, 3, 3, &["a"], 30),
    ]);
}

#[test]
fn s1_a_waiter_that_leaves_lets_those_behind_it_through() {
    let mut bench = Bench::new();
    bench.acquire(1, 1, 0, 30, &["a"]);
    bench.acquire(2, 2, 5, 30, &["a", "b"]);
    bench.acquire(3, 3, 60, 30, &["b"]);
    bench.take();
    bench.at(ms(4999));
    bench.tick();
    bench.expect(&[]);
    bench.at(ms(5000));
    bench.tick();
    bench.expect(&[
        Effect::timed_out(2, 2),
        Effect::granted(3, 3, 2, &["b"], 30),
    ]);
}

#[test]
fn s2_a_lease_ends_never_early_and_runs_from_the_grant() {
    let mut bench = Bench::new();
    bench.at(Duration::from_nanos(123_456_789));
    bench.acquire(1, 1, 0, 2, &["a"]);
    bench.acquire(2, 2, 60, 3, &["a"]);
    bench.take();
    bench.at(Duration::from_nanos(2_123_456_788));
    bench.tick();
    bench.expect(&[]);
    assert_eq!(
        bench.table.next_deadline(),
        Some(Duration::from_nanos(2_123_456_789))
    );
    bench.at(Duration::from_nanos(2_123_456_789));
    bench.tick();
    bench.expect(&[Effect::Ended(1), Effect::granted(2, 2, 2, &["a"], 3)]);
    // The waiter's lease began when it was granted, not when it asked.
    bench.at(Duration::from_nanos(5_123_456_788));
    bench.tick();
    bench.expect(&[]);
    bench.at(Duration::from_nanos(5_123_456_789));
    bench.tick();
    bench.expect(&[Effect::Ended(2)]);
    assert_eq!(bench.table.next_deadline(), None);
}

#[test]
fn s2_a_clock_that_goes_back_ends_nothing_early() {
    let mut bench = Bench::new();
    bench.at(ms(10_000));
    bench.acquire(1, 1, 0, 5, &["a"]);
    bench.at(ms(1));
    bench.acquire(1, 2, 0, 6, &["b"]);
    bench.take();
    bench.at(ms(14_999));
    bench.tick();
    bench.expect(&[]);
    bench.at(ms(15_000));
    bench.tick();
    bench.expect(&[Effect::Ended(1)]);
    bench.at(ms(16_000));
    bench.tick();
    bench.expect(&[Effect::Ended(2)]);
}

#[test]
fn s2_what_ended_while_nobody_looked_ends_in_order() {
    let mut bench = Bench::new();
    bench.acquire(1, 1, 0, 5, &["a"]);
    bench.acquire(2, 2, 4, 30, &["a"]);
    bench.acquire(3, 3, 5, 30, &["a"]);
    bench.acquire(4, 4, 6, 30, &["a"]);
    bench.take();
    bench.at(ms(60_000));
    bench.tick();
    // Wait 2 ended before the lease, wait 3 with it: then the lease goes first.
    bench.expect(&[
        Effect::timed_out(2, 2),
        Effect::Ended(1),
        Effect::granted(3, 3, 2, &["a"], 30),
        Effect::timed_out(4, 4),
    ]);
}

#[test]
fn s2_the_next_deadline_is_the_first_lease_or_wait_to_end() {
    let mut bench = Bench::new();
    assert_eq!(bench.table.next_deadline(), None);
    bench.acquire(1, 1, 0, 30, &["a"]);
    assert_eq!(bench.table.next_deadline(), Some(ms(30_000)));
    bench.acquire(2, 2, 20, 30, &["a"]);
    assert_eq!(bench.table.next_deadline(), Some(ms(20_000)));
    bench.acquire(2, 3, 0, 10, &["b"]);
    assert_eq!(bench.table.next_deadline(), Some(ms(10_000)));
    // Early after a release, until a tick looks again.
    bench.release(2, 4, 2, &["b"]);
    bench.at(ms(10_000));
    bench.tick();
    assert_eq!(bench.table.next_deadline(), Some(ms(20_000)));
    bench.disconnect(2);
    bench.release(1, 5, 1, &["a"]);
    assert_eq!(bench.table.next_deadline(), None);
}

#[test]
fn s3_a_new_block_is_announced_before_its_first_token() {
    let mut bench = Bench::at_clock(5);
    bench.acquire(1, 1, 0, 30, &["a"]);
    let base = 5 << 20;
    bench.expect_with_marks(&[
        Effect::Mark(base + (1 << 20)),
        Effect::granted(1, 1, base + 1, &["a"], 30),
    ]);
    bench.acquire(1, 2, 0, 30, &["b"]);
    bench.expect_with_marks(&[Effect::granted(1, 2, base + 2, &["b"], 30)]);
}

#[test]
fn s3_a_block_that_a_waiter_begins_is_announced_too() {
    let mut bench = Bench::restored(100);
    bench.restore(7, &["a"], 30).unwrap();
    bench.acquire(1, 1, 60, 30, &["a"]);
    bench.release(2, 2, 7, &["a"]);
    bench.expect_with_marks(&[
        Effect::Ended(7),
        Effect::released(2, 2),
        Effect::Mark(100 + (1 << 20)),
        Effect::granted(1, 1, 101, &["a"], 30),
    ]);
}

#[test]
fn s4_a_release_frees_exactly_its_grant_whichever_connection_it_comes_on() {
    let mut bench = Bench::new();
    bench.acquire(1, 1, 0, 30, &["a"]);
    bench.acquire(1, 2, 0, 30, &["b"]);
    bench.acquire(1, 3, 0, 30, &["c", "d"]);
    bench.take();
    bench.release(9, 4, 1, &["a"]);
    bench.expect(&[Effect::Ended(1), Effect::released(9, 4)]);
    bench.release(9, 5, 3, &["c", "d"]);
    bench.expect(&[Effect::Ended(3), Effect::set_released(9, 5)]);
    bench.release(9, 6, 1, &["a"]);
    bench.expect(&[Effect::not_current(9, 6)]);
    assert_eq!(
        bench.table.stats(),
        TableStats {
            grants: 1,
            waiters: 0,
            keys: 1
        }
    );
}

#[test]
fn s4_a_current_token_with_other_keys_is_a_mismatch_and_any_other_token_not_current() {
    let mut bench = Bench::new();
    bench.acquire(1, 1, 0, 30, &["a"]);
    bench.acquire(1, 2, 0, 30, &["b", "c"]);
    bench.take();
    let mismatches: [(u64, &[&str]); 8] = [
        (1, &["b"]),
        (1, &["x"]),
        (1, &["a", "b"]),
        (2, &["b"]),
        (2, &["c"]),
        (2, &["b", "d"]),
        (2, &["a", "b", "c"]),
        (2, &["b", "c", "d"]),
    ];
    for (id, (token, keys)) in (10..).zip(mismatches) {
        bench.release(1, id, token, keys);
        bench.expect(&[Effect::error(1, id, GroupMismatch)]);
    }
    bench.release(1, 20, 3, &["a"]);
    bench.release(1, 21, u64::MAX, &["b", "c"]);
    bench.expect(&[Effect::not_current(1, 20), Effect::not_current(1, 21)]);
    assert_eq!(bench.table.stats().grants, 2);
}

#[test]
fn s4_a_lease_that_ran_out_ends_before_the_next_request_is_applied() {
    let mut bench = Bench::new();
    bench.acquire(1, 1, 0, 1, &["a"]);
    bench.acquire(1, 2, 0, 1, &["b"]);
    bench.take();
    bench.at(ms(1000));
    bench.release(1, 3, 1, &["a"]);
    bench.expect(&[
        Effect::Ended(1),
        Effect::Ended(2),
        Effect::not_current(1, 3),
    ]);
    bench.acquire(1, 4, 0, 1, &["a"]);
    bench.take();
    bench.at(ms(2000));
    bench.acquire(2, 5, 0, 1, &["a"]);
    bench.expect(&[Effect::Ended(3), Effect::granted(2, 5, 4, &["a"], 1)]);
}

#[test]
fn s5_a_connection_takes_its_waiters_with_it_and_leaves_its_grants() {
    let mut bench = Bench::new();
    bench.acquire(1, 1, 0, 30, &["a"]);
    bench.acquire(2, 2, 60, 30, &["a", "b"]);
    bench.acquire(2, 3, 60, 30, &["b", "c"]);
    bench.acquire(3, 4, 60, 30, &["c"]);
    bench.acquire(2, 5, 60, 30, &["c"]);
    bench.take();
    bench.disconnect(2);
    bench.expect(&[Effect::granted(3, 4, 2, &["c"], 30)]);
    bench.disconnect(1);
    bench.disconnect(3);
    bench.expect(&[]);
    assert_eq!(
        bench.table.stats(),
        TableStats {
            grants: 2,
            waiters: 0,
            keys: 2
        }
    );
}

#[test]
fn s5_a_half_closed_connection_has_its_waiters_refused() {
    let mut bench = Bench::new();
    bench.acquire(1, 1, 0, 30, &["a"]);
    bench.acquire(2, 2, 60, 30, &["a"]);
    bench.acquire(3, 3, 60, 30, &["a"]);
    bench.acquire(2, 4, 60, 30, &["a", "b"]);
    bench.acquire(3, 5, 60, 30, &["b"]);
    bench.take();
    bench.refuse(Some(2));
    bench.expect(&[
        Effect::error(2, 2, NotActive),
        Effect::error(2, 4, NotActive),
        Effect::granted(3, 5, 2, &["b"], 30),
    ]);
    assert_eq!(
        bench.table.stats(),
        TableStats {
            grants: 2,
            waiters: 1,
            keys: 2
        }
    );
}

#[test]
fn s10_a_stop_refuses_every_waiter_and_grants_none_instead() {
    let mut bench = Bench::new();
    bench.acquire(1, 1, 0, 30, &["a"]);
    bench.acquire(2, 2, 60, 30, &["a", "b"]);
    bench.acquire(3, 3, 60, 30, &["b"]);
    bench.take();
    bench.refuse(None);
    let mut refused = bench.take();
    refused.sort_by_key(|effect| format!("{effect:?}"));
    assert_eq!(
        refused,
        [
            Effect::error(2, 2, NotActive),
            Effect::error(3, 3, NotActive)
        ]
    );
    assert_eq!(
        bench.table.stats(),
        TableStats {
            grants: 1,
            waiters: 0,
            keys: 1
        }
    );
}

#[test]
fn s5_a_grant_that_was_not_delivered_is_undone() {
    let mut bench = Bench::new();
    bench.acquire(1, 1, 0, 30, &["a", "b"]);
    bench.acquire(2, 2, 60, 30, &["b"]);
    bench.take();
    bench.undo(1);
    bench.expect(&[Effect::Ended(1), Effect::granted(2, 2, 2, &["b"], 30)]);
    bench.undo(1);
    bench.expect(&[]);
    assert_eq!(
        bench.table.stats(),
        TableStats {
            grants: 1,
            waiters: 0,
            keys: 1
        }
    );
}

#[test]
fn s6_waiters_per_key_and_in_all_are_limited() {
    let mut bench = Bench::with(limits(2, 3, 100));
    bench.acquire(1, 1, 0, 30, &["a"]);
    bench.acquire(1, 2, 0, 30, &["b"]);
    bench.acquire(2, 3, 60, 30, &["a"]);
    bench.acquire(2, 4, 60, 30, &["a", "c"]);
    bench.take();
    bench.acquire(2, 5, 60, 30, &["a"]);
    bench.acquire(2, 6, 60, 30, &["a", "b"]);
    bench.expect(&[Effect::busy(2, 5), Effect::busy(2, 6)]);
    bench.acquire(2, 7, 60, 30, &["b"]);
    bench.acquire(2, 8, 60, 30, &["c"]);
    bench.expect(&[Effect::busy(2, 8)]);
    // Whoever would not queue is not told to come back.
    bench.acquire(2, 9, 0, 30, &["a"]);
    bench.expect(&[Effect::timed_out(2, 9)]);
    bench.disconnect(2);
    bench.acquire(2, 10, 60, 30, &["a"]);
    bench.expect(&[]);
}

#[test]
fn s6_each_key_of_a_set_counts_as_a_grant() {
    let mut bench = Bench::with(limits(10, 10, 3));
    bench.acquire(1, 1, 0, 30, &["a", "b"]);
    bench.acquire(1, 2, 0, 30, &["c", "d"]);
    bench.expect(&[
        Effect::granted(1, 1, 1, &["a", "b"], 30),
        Effect::busy(1, 2),
    ]);
    // A waiting set keeps its free keys idle, so they count; a held one is there already.
    bench.acquire(1, 3, 60, 30, &["b", "c", "d"]);
    bench.acquire(1, 4, 60, 30, &["b", "c"]);
    bench.acquire(1, 5, 0, 30, &["d"]);
    bench.expect(&[Effect::busy(1, 3), Effect::busy(1, 5)]);
    bench.release(1, 6, 1, &["a", "b"]);
    bench.acquire(1, 7, 0, 30, &["d"]);
    bench.expect(&[
        Effect::Ended(1),
        Effect::set_released(1, 6),
        Effect::granted(1, 4, 2, &["b", "c"], 30),
        Effect::granted(1, 7, 3, &["d"], 30),
    ]);
}

#[test]
fn s7_a_restored_grant_is_held_for_its_full_lease() {
    let mut bench = Bench::restored(100);
    bench.at(ms(500));
    bench.restore(7, &["a", "b"], 10).unwrap();
    bench.restore(9, &["c"], 20).unwrap();
    bench.acquire(1, 1, 60, 30, &["b"]);
    bench.at(ms(10_499));
    bench.tick();
    bench.expect(&[]);
    bench.at(ms(10_500));
    bench.tick();
    bench.expect(&[Effect::Ended(7), Effect::granted(1, 1, 101, &["b"], 30)]);
    bench.release(2, 2, 9, &["c"]);
    bench.expect(&[Effect::Ended(9), Effect::released(2, 2)]);
}

#[test]
fn s7_a_store_that_contradicts_itself_is_refused() {
    let mut bench = Bench::restored(100);
    bench.restore(7, &["a", "b"], 10).unwrap();
    let held = bench.restore(8, &["b", "c"], 10).unwrap_err();
    assert!(
        matches!(&held, RestoreError::KeyHeld { key, .. } if key == "b"),
        "{held}"
    );
    let twice = bench.restore(7, &["d"], 10).unwrap_err();
    assert!(matches!(twice, RestoreError::TokenHeld(_)), "{twice}");
    let above = bench.restore(101, &["d"], 10).unwrap_err();
    assert!(
        matches!(above, RestoreError::AboveMark { mark: 100, .. }),
        "{above}"
    );
    bench.restore(100, &["d"], 10).unwrap();
    // What was refused has left nothing behind.
    assert_eq!(
        bench.table.stats(),
        TableStats {
            grants: 2,
            waiters: 0,
            keys: 3
        }
    );
}
