//! When a grant is good enough to be handed out (C16), and what the counters say of it.

use super::*;

/// An acquire with a lease of 10 s and this `min_work`, answered after so long and taken after
/// so long again. What the caller gets, and whether the grant was given back.
fn grant_after(min_work: Duration, answered: Duration, taken: Duration) -> (&'static str, bool) {
    let (mut rig, a) = Rig::one();
    let id = rig.ask(&["k"], 9, 10, min_work);
    let frame = rig.sent_one(a);
    rig.stop(answered);
    rig.reply(a, frame.granted(4));
    // Given back as soon as it is known to be too old, not first when somebody asks.
    let left = secs(10).saturating_sub(answered);
    let enough = left >= min_work && !left.is_zero();
    assert_eq!(rig.releasing().is_empty(), enough);
    rig.stop(taken);
    let kind = rig.kind(id);
    let back = rig.releasing();
    assert!(back.is_empty() || back == BTreeMap::from([(4, 1)]));
    assert_eq!(
        rig.state.counters.granted,
        u64::from(kind == "Ok"),
        "tickets handed out"
    );
    assert_eq!(rig.state.counters.compensated, back.len() as u64);
    // C19: the compensating release takes a place, whenever it is made.
    assert_eq!(rig.state.places, back.len());
    if !back.is_empty() {
        let release = rig.sent_one(a);
        rig.reply(a, release.not_current());
    }
    rig.assert_idle();
    (kind, !back.is_empty())
}

#[test]
fn c16_checked_where_the_reply_is_parsed() {
    let none = Duration::ZERO;
    assert_eq!(grant_after(secs(4), secs(6), none), ("Ok", false));
    assert_eq!(
        grant_after(secs(4), secs(6) + ms(1), none),
        ("InsufficientLease", true)
    );
    assert_eq!(grant_after(none, ms(9999), none), ("Ok", false));
    assert_eq!(
        grant_after(none, secs(10), none),
        ("InsufficientLease", true)
    );
    assert_eq!(
        grant_after(none, secs(11), none),
        ("InsufficientLease", true)
    );
}

#[test]
fn c16_checked_again_when_it_is_taken() {
    let none = Duration::ZERO;
    assert_eq!(grant_after(secs(4), secs(1), secs(5)), ("Ok", false));
    assert_eq!(
        grant_after(secs(4), secs(1), secs(5) + ms(1)),
        ("InsufficientLease", true)
    );
    assert_eq!(grant_after(none, none, ms(9999)), ("Ok", false));
    assert_eq!(
        grant_after(none, none, secs(10)),
        ("InsufficientLease", true)
    );
}

#[test]
fn c16_min_work_equal_to_the_lease_cannot_succeed() {
    assert_eq!(
        grant_after(secs(10), ms(1), Duration::ZERO),
        ("InsufficientLease", true)
    );
}

#[test]
fn c16_the_validity_starts_just_before_the_hand_over() {
    let (mut rig, a) = Rig::one();
    let id = rig.acquire("k", 60, 10);
    rig.stop(secs(3)); // unsent: does not count against the lease
    let handed = rig.now;
    let frame = rig.hand_over(a).unwrap().remove(0);
    rig.stop(secs(2)); // the write takes its time: counts
    rig.state.transmitted(rig.now, a);
    rig.stop(secs(4)); // in the broker's line: counts
    rig.reply(a, frame.granted(3));
    let grant = rig.outcome(id).unwrap().unwrap();
    assert_eq!(grant.valid_before, handed + secs(10));
}

#[test]
fn c16_a_made_anew_acquire_has_the_validity_of_its_last_try() {
    let (mut rig, a) = Rig::one();
    let id = rig.acquire("k", 60, 10);
    let first = rig.sent_one(a);
    rig.advance(secs(4));
    rig.reply(a, first.error(ErrorCode::NotActive));
    let b = rig.connect();
    let again = rig.sent_one(b);
    rig.reply(b, again.granted(3));
    let grant = rig.outcome(id).unwrap().unwrap();
    assert_eq!(rig.now.until(grant.valid_before), secs(10));
}

#[test]
fn c16_the_error_says_what_was_left_and_what_was_needed() {
    let (mut rig, a) = Rig::one();
    let id = rig.ask(&["k"], 9, 10, ms(4500));
    let frame = rig.sent_one(a);
    rig.stop(ms(6001));
    rig.reply(a, frame.granted(4));
    let Some(Err(TicketError::InsufficientLease {
        remaining_ms,
        min_work_ms,
        ..
    })) = rig.outcome(id)
    else {
        panic!()
    };
    assert_eq!((remaining_ms, min_work_ms), (3999, 4500));
}

#[test]
fn c16_grants_that_go_back_never_exceed_the_places() {
    // Not taken in time, one after the other: each holds a place until its release is finished.
    let mut rig = Rig::new(1, 2);
    let a = rig.connect();
    rig.attempt();
    let ids = ["k", "l"].map(|k| rig.acquire(k, 9, 10));
    let frames = rig.sent(a);
    let granted: Vec<Reply> = frames.iter().map(|f| f.granted(f.id.get())).collect();
    rig.replies(a, &granted);
    rig.advance(secs(10));
    for id in ids {
        assert_eq!(rig.kind(id), "InsufficientLease");
    }
    rig.acquire("m", 9, 10);
    let releases = rig.sent(a);
    assert!(releases.iter().all(|f| !f.is_acquire()), "no place yet");
    rig.reply(a, releases[0].released());
    assert_eq!(rig.sent_one(a).keys, ["m"]);
}
