//! How often a session may be retired (C9).

use super::*;

/// Puts one acquire on `sid`, which has to be the only session that can take it.
fn put(rig: &mut Rig, sid: SessionId, key: &str) -> (AcquireId, Frame) {
    let id = rig.acquire(key, 200, 250);
    let frame = rig.sent_one(sid);
    (id, frame)
}

/// A rig in which a session can be brought up at will; the second link stays in its attempt.
fn lonely(max_pending: usize) -> Rig {
    let mut rig = Rig::new(1, max_pending);
    rig.attempt();
    rig
}

/// Opens a session, gives up one acquire on it and keeps `others` more on it unanswered.
fn give_up_one(rig: &mut Rig, others: usize) -> (SessionId, Vec<AcquireId>) {
    let sid = rig.connect();
    let (id, _) = put(rig, sid, "k");
    let others = (0..others).map(|_| put(rig, sid, "o").0).collect();
    rig.cancel(id);
    (sid, others)
}

#[test]
fn c9_at_most_one_retirement_in_100_ms() {
    let (mut rig, a, b) = Rig::pair();
    for key in ["k", "l", "m", "n"] {
        rig.acquire(key, 200, 250);
    }
    let sent = rig.sent_everywhere();
    assert_eq!(sent.iter().filter(|(sid, _)| *sid == a).count(), 2);
    let on = |rig: &Rig, sid| {
        let mut ids = rig.state.acquires.keys().copied().collect::<Vec<_>>();
        ids.sort_unstable();
        ids.into_iter()
            .find(|id| rig.on_wire(*id).unwrap().0 == sid)
            .unwrap()
    };
    let (first, second) = (on(&rig, a), on(&rig, b));
    rig.cancel(first);
    rig.advance(ms(30));
    rig.cancel(second);
    assert!(rig.is_retired(a) && rig.is_open(b));
    // Where it stays, the session goes on as before.
    rig.advance(ms(69));
    assert!(rig.is_open(b));
    let next = rig.acquire("x", 200, 250);
    assert_eq!(rig.sent_one(b).keys, ["x"]);
    rig.advance(ms(1));
    assert!(rig.is_retired(b));
    assert_eq!(rig.kind(next), "pending");
}

#[test]
fn c9_what_is_answered_before_its_turn_retires_nothing() {
    let (mut rig, a, b) = Rig::pair();
    let ids = ["k", "l", "m", "n"].map(|key| rig.acquire(key, 200, 250));
    let sent = rig.sent_everywhere();
    let on = |rig: &Rig, sid| {
        ids.into_iter()
            .find(|id| rig.on_wire(*id).unwrap().0 == sid)
    };
    let (first, second) = (on(&rig, a).unwrap(), on(&rig, b).unwrap());
    let (_, wire) = rig.on_wire(second).unwrap();
    rig.cancel(first);
    rig.cancel(second);
    let (_, frame) = sent
        .iter()
        .find(|(s, f)| *s == b && f.id.get() == wire)
        .unwrap();
    rig.reply(b, frame.timed_out());
    rig.advance(secs(1));
    assert!(rig.is_retired(a) && rig.is_open(b));
}

#[test]
fn c9_at_most_8_sessions_are_retired_or_ending() {
    let mut rig = lonely(1024);
    let mut retired = Vec::new();
    for n in 0..8 {
        // Every second one is alone, so that it is ending rather than retired.
        let (sid, _) = give_up_one(&mut rig, 1);
        assert!(rig.is_retired(sid), "{n}");
        retired.push(sid);
        rig.advance(ms(100));
    }
    let (ninth, _) = give_up_one(&mut rig, 1);
    rig.advance(secs(3));
    assert!(rig.is_open(ninth));
    // Its given-up request stays in its place.
    assert_eq!((rig.state.given_up, rig.state.places), (9, 18));
    rig.lose(retired[3]);
    rig.forget(retired[3]);
    assert!(rig.is_retired(ninth));
}

#[test]
fn c9_ending_sessions_count_as_well() {
    let mut rig = lonely(1024);
    for _ in 0..7 {
        give_up_one(&mut rig, 1);
        rig.advance(ms(100));
    }
    let (eighth, _) = give_up_one(&mut rig, 0);
    assert!(rig.is_ending(eighth));
    rig.advance(ms(100));
    let (ninth, _) = give_up_one(&mut rig, 1);
    rig.advance(ms(800));
    assert!(rig.is_open(ninth));
    rig.advance(ms(100)); // the second of C13a is over
    assert_eq!(rig.over(eighth), Some(SessionEnd::Reset));
    rig.forget(eighth);
    assert!(rig.is_retired(ninth));
}

#[test]
fn c9_half_of_the_places_given_up_ends_the_retired_session_with_the_fewest_others() {
    let mut rig = lonely(12);
    // One given up each; 3, 1 and 2 others.
    let mut sessions = Vec::new();
    for others in [3, 1, 2] {
        sessions.push(give_up_one(&mut rig, others));
        rig.advance(ms(100));
    }
    let (fourth, _) = give_up_one(&mut rig, 0);
    rig.eof(fourth);
    rig.forget(fourth);
    rig.advance(ms(100));
    assert_eq!((rig.state.given_up, rig.state.places), (3, 9));
    assert!(sessions.iter().all(|(sid, _)| rig.is_retired(*sid)));

    // Three more make six of twelve.
    let (fifth, _) = {
        let sid = rig.connect();
        let ids: Vec<_> = (0..3).map(|_| put(&mut rig, sid, "k").0).collect();
        for id in &ids[..2] {
            rig.cancel(*id);
        }
        assert!(sessions.iter().all(|(sid, _)| rig.is_retired(*sid)));
        rig.cancel(ids[2]);
        (sid, ids)
    };
    let (fewest, others) = sessions.remove(1);
    assert!(rig.is_ending(fewest), "one other");
    assert!(sessions.iter().all(|(sid, _)| rig.is_retired(*sid)));
    assert!(rig.is_ending(fifth) || rig.is_retired(fifth));

    // What that leaves unresolved is indeterminate, and the places come back.
    rig.advance(secs(1));
    assert_eq!(rig.over(fewest), Some(SessionEnd::Reset));
    assert_eq!(rig.kind(others[0]), "Indeterminate");
}

#[test]
fn c9_half_of_the_places_is_seen_also_when_the_session_is_retired_by_that_very_request() {
    let mut rig = lonely(2);
    let (sid, others) = give_up_one(&mut rig, 1);
    assert!(rig.is_ending(sid));
    rig.advance(secs(1));
    assert_eq!(rig.kind(others[0]), "Indeterminate");
    assert_eq!(rig.state.places, 0);
}

#[test]
fn c9_below_half_of_the_places_no_retired_session_ends_early() {
    let mut rig = lonely(5);
    for _ in 0..2 {
        let (sid, _) = give_up_one(&mut rig, 1);
        rig.advance(secs(9));
        assert!(rig.is_retired(sid));
    }
}

#[test]
fn c9_c19_a_session_that_leaves_a_release_unanswered_for_5_s_is_retired() {
    let (mut rig, a) = Rig::one();
    let cell = rig.release(&["k"], 7);
    rig.sent_one(a);
    let (id, frame) = put(&mut rig, a, "other");
    rig.advance(secs(5) - ms(1));
    assert!(rig.is_open(a) && outcome_of(&cell) == "pending");
    rig.advance(ms(1));
    assert_eq!(outcome_of(&cell), "Indeterminate");
    assert!(rig.is_retired(a), "the other request keeps its outcome");
    rig.reply(a, frame.granted(8));
    assert_eq!(rig.kind(id), "Ok");
    assert!(rig.is_ending(a), "the release holds it up no more");
}

#[test]
fn c9_c19_a_try_that_another_session_answered_for_is_owed_all_the_same() {
    for answers_late in [false, true] {
        let (mut rig, a, b) = Rig::pair();
        let cell = rig.release(&["k"], 7);
        let (first, frame) = rig.sent_anywhere();
        rig.advance(secs(2));
        let (second, again) = rig.sent_anywhere();
        rig.reply(second, again.released());
        assert_eq!(outcome_of(&cell), "Released");
        rig.advance(secs(3) - ms(1));
        assert!(rig.is_open(a) && rig.is_open(b));
        if answers_late {
            rig.reply(first, frame.not_current());
        }
        rig.advance(ms(1));
        assert_eq!(rig.is_open(first), answers_late);
        rig.advance(secs(9));
        assert!(rig.is_open(second));
    }
}

#[test]
fn c9_c19_a_session_is_given_5_s_for_a_try_whatever_the_release_has_left() {
    let (mut rig, a) = Rig::one();
    let cell = rig.release(&["k"], 7);
    rig.sent_one(a);
    rig.advance(secs(4));
    let b = rig.succeed(1);
    rig.sent_one(b);
    rig.advance(secs(1));
    assert_eq!(outcome_of(&cell), "Indeterminate");
    assert!(rig.is_ending(a) && rig.is_open(b));
    rig.advance(secs(4) - ms(1));
    assert!(rig.is_open(b), "its own 5 s");
    rig.advance(ms(1));
    assert!(rig.is_ending(b));
}

/// A peer that grants and never answers a release, for ten minutes.
#[test]
fn c9_c19_a_peer_that_swallows_releases_costs_a_bounded_memory_and_no_hot_loop() {
    let mut rig = Rig::new(1, 1024);
    let (mut opened, mut most) = (0, 0);
    for round in 1..=6000 {
        while let Some(link) = rig.due() {
            rig.succeed(link);
            opened += 1;
        }
        let id = rig.acquire(&format!("key-{round}"), 5, 30);
        for (sid, frame) in rig.sent_everywhere() {
            if matches!(frame.what, What::Acquire { .. }) {
                rig.reply(sid, frame.granted(round));
            }
        }
        let grant = rig.outcome(id).expect("answered").unwrap();
        rig.state
            .release(rig.now, grant.keys, grant.token, Origin::Automatic);
        rig.advance(ms(100));
        let ids: Vec<SessionId> = rig.state.sessions.keys().copied().collect();
        for sid in ids {
            if rig.is_ending(sid) {
                rig.eof(sid);
            }
            if rig.over(sid).is_some() {
                rig.forget(sid);
            }
        }
        let owed = rig.state.sessions.values().map(Session::unanswered).sum();
        most = most.max(owed);
        assert!(rig.state.timers.len() < 1000);
    }
    // 10 releases a second of 2 to 3 tries each; a session lives for its 5 s and some more.
    assert!(most < 400, "{most} entries");
    assert!((100..=240).contains(&opened), "{opened} sessions");
}
