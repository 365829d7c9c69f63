//! How a session ends (C13a).

use super::*;

/// A session with four acquires and a release on it, after `begin` has begun its end.
fn ending(
    begin: impl FnOnce(&mut Rig, SessionId, &Frame),
) -> (Rig, SessionId, Vec<AcquireId>, Vec<Frame>) {
    let (mut rig, a) = Rig::one();
    let ids = ["j", "k", "l", "m"]
        .map(|k| rig.acquire(k, 60, 90))
        .to_vec();
    let frames = rig.sent(a);
    begin(&mut rig, a, &frames[0]);
    (rig, a, ids, frames)
}

type Begin = fn(&mut Rig, SessionId, &Frame);

/// The three ways into C13a that leave other requests unanswered.
fn begins() -> [(&'static str, Begin); 3] {
    [
        ("M", |rig, a, f| rig.reply(a, f.moved(None))),
        ("E3", |rig, a, f| {
            rig.reply(a, f.error(ErrorCode::NotActive))
        }),
        ("E1", |rig, a, f| rig.reply(a, f.error(ErrorCode::BadKey))),
    ]
}

#[test]
fn c13a_nothing_more_is_sent_and_the_sending_side_is_shut_down() {
    for (name, begin) in begins() {
        let (mut rig, a, _, _) = ending(begin);
        let unsent = rig.acquire("x", 60, 90);
        rig.release(&["y"], 3);
        assert_eq!(rig.sent(a), [], "{name}");
        assert!(rig.shut.contains(&a), "{name}");
        assert_eq!(rig.over(a), None, "it goes on reading: {name}");
        assert_eq!(rig.kind(unsent), "pending");
    }
}

#[test]
fn c13a_a_write_under_way_is_finished_before_the_shutdown() {
    let (mut rig, a) = Rig::one();
    rig.acquire("k", 60, 90);
    let frame = rig.sent_one(a);
    rig.acquire("l", 60, 90);
    rig.hand_over(a).unwrap();
    rig.reply(a, frame.error(ErrorCode::NotActive));
    rig.state.transmitted(rig.now, a);
    assert_eq!(rig.sent(a), []);
    assert!(rig.shut.contains(&a));
}

#[test]
fn c13a_replies_read_then_resolve_their_own_requests() {
    for (name, begin) in begins() {
        let (mut rig, a, ids, frames) = ending(begin);
        rig.sent(a);
        rig.advance(ms(999));
        rig.reply(a, frames[1].granted(5));
        rig.reply(a, frames[2].busy());
        assert_eq!(rig.kind(ids[1]), "Ok", "{name}");
        assert_eq!(rig.kind(ids[2]), "Busy", "{name}");
        assert_eq!(rig.kind(ids[3]), "pending", "{name}");
        // What is unresolved at the end of stream is indeterminate.
        rig.eof(a);
        assert_eq!(rig.kind(ids[3]), "Indeterminate", "{name}");
        assert_eq!(rig.over(a), Some(SessionEnd::Close), "{name}");
    }
}

#[test]
fn c13a_at_1_s_it_is_closed_with_a_reset() {
    for (name, begin) in begins() {
        let (mut rig, a, ids, frames) = ending(begin);
        rig.sent(a);
        // Replies do not extend the second.
        rig.advance(ms(900));
        rig.reply(a, frames[1].busy());
        rig.reply(a, frames[2].error(ErrorCode::NoLeader));
        assert_eq!(rig.sent(a), [], "{name}");
        rig.advance(ms(99));
        assert_eq!(rig.over(a), None, "{name}");
        assert_eq!(rig.kind(ids[3]), "pending", "{name}");
        rig.advance(ms(1));
        assert_eq!(rig.over(a), Some(SessionEnd::Reset), "{name}");
        assert_eq!(rig.kind(ids[3]), "Indeterminate", "{name}");
    }
}

#[test]
fn c13a_the_second_runs_also_while_the_shutdown_has_to_wait() {
    let (mut rig, a) = Rig::one();
    rig.acquire("k", 60, 90);
    let frame = rig.sent_one(a);
    let stuck = rig.acquire("l", 60, 90);
    rig.hand_over(a).unwrap(); // and the peer does not read
    rig.reply(a, frame.error(ErrorCode::NotActive));
    rig.advance(secs(1));
    assert_eq!(rig.over(a), Some(SessionEnd::Reset));
    assert_eq!(rig.kind(stuck), "Indeterminate");
}

#[test]
fn c13a_a_wave_of_e3_resolves_each_of_its_requests() {
    let (mut rig, a, ids, frames) = ending(|_, _, _| {});
    let cell = rig.release(&["r"], 3);
    let release = rig.sent_one(a);
    let mut wave: Vec<Reply> = frames
        .iter()
        .map(|f| f.error(ErrorCode::NotActive))
        .collect();
    wave.push(release.error(ErrorCode::NotActive));
    rig.replies(a, &wave);
    rig.eof(a);
    rig.forget(a);
    // Nothing is indeterminate: each is made anew on the next session.
    let b = rig.connect();
    let anew = rig.sent(b);
    let mut names: Vec<_> = anew.iter().map(|f| f.keys[0].as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["j", "k", "l", "m", "r"]);
    for frame in &anew {
        let reply = if frame.is_acquire() {
            frame.granted(9)
        } else {
            frame.released()
        };
        rig.reply(b, reply);
    }
    assert!(ids.into_iter().all(|id| rig.kind(id) == "Ok"));
    assert_eq!(outcome_of(&cell), "Released");
    rig.assert_idle();
}

#[test]
fn c13a_grants_of_given_up_requests_are_given_back_while_it_ends() {
    for cancel_first in [false, true] {
        let (mut rig, a, ids, frames) = ending(|_, _, _| {});
        if cancel_first {
            rig.cancel(ids[1]);
        }
        rig.reply(a, frames[0].error(ErrorCode::NotActive));
        if !cancel_first {
            rig.cancel(ids[1]);
        }
        rig.reply(a, frames[1].granted(8));
        assert_eq!(rig.releasing(), BTreeMap::from([(8, 1)]));
    }
}

#[test]
fn c13a_garbage_while_it_ends_closes_at_once() {
    let (mut rig, a, ids, _) = ending(begins()[0].1);
    rig.read(a, b"garbage");
    assert_eq!(rig.over(a), Some(SessionEnd::Close));
    assert_eq!(rig.kind(ids[3]), "Indeterminate");
    // The timer of the second is gone with it.
    rig.advance(secs(2));
    assert_eq!(rig.over(a), Some(SessionEnd::Close));
}

#[test]
fn c13a_half_a_reply_at_the_end_of_stream_resolves_nothing() {
    for cut in 1..19 {
        let (mut rig, a, ids, frames) = ending(|_, _, _| {});
        let mut bytes = Vec::new();
        frames[0].granted(5).encode(&mut bytes);
        assert!(rig.read(a, &bytes[..cut]));
        rig.eof(a);
        assert_eq!(rig.kind(ids[0]), "Indeterminate");
        assert_eq!(rig.releasing(), BTreeMap::new());
    }
}
