//! Answers and losses (C11, C12, C13).

use super::*;

#[test]
fn c11_lost_with_a_sent_acquire_is_indeterminate_and_never_sent_again() {
    for eof in [false, true] {
        let (mut rig, a) = Rig::one();
        let id = rig.acquire("k", 60, 90);
        rig.sent_one(a);
        if eof {
            rig.eof(a)
        } else {
            rig.lose(a)
        }
        assert_eq!(rig.kind(id), "Indeterminate");
        assert_eq!(rig.over(a), Some(SessionEnd::Close));
        rig.forget(a);
        let b = rig.succeed(1);
        rig.advance(secs(70));
        assert_eq!(rig.sent(b), []);
        rig.assert_idle();
    }
}

#[test]
fn c11_an_unsent_one_goes_to_the_next_session_within_its_remaining_wait() {
    let mut rig = Rig::new(1, 1024);
    let a = rig.connect();
    rig.attempt();
    let sent = rig.acquire("k", 60, 90);
    rig.hand_over(a).unwrap();
    rig.state.transmitted(rig.now, a);
    let unsent = rig.acquire("l", 10, 90); // in the outbox
    rig.lose(a);
    rig.advance(ms(3500));
    assert_eq!(
        (rig.kind(sent), rig.kind(unsent)),
        ("Indeterminate", "pending")
    );
    let b = rig.succeed(1);
    let frame = rig.sent_one(b);
    assert_eq!((frame.keys[0].as_str(), frame.wait()), ("l", 7));
}

#[test]
fn c12_t_b_and_i_are_told_at_once_and_nothing_is_asked_again() {
    let cases: [(Answer, &str); 3] = [
        (Frame::timed_out, "Timeout"),
        (Frame::busy, "Busy"),
        (Frame::indeterminate, "Indeterminate"),
    ];
    for (reply, kind) in cases {
        for names in [&["k"][..], &["k", "l"]] {
            let (mut rig, a) = Rig::one();
            let id = rig.ask(names, 60, 90, secs(0));
            let frame = rig.sent_one(a);
            rig.reply(a, reply(&frame));
            assert_eq!(rig.kind(id), kind);
            assert!(rig.is_open(a));
            rig.advance(secs(100));
            assert_eq!(rig.sent(a), []);
            rig.assert_idle();
        }
    }
}

#[test]
fn c12_a_new_acquire_is_a_new_request_id() {
    let (mut rig, a) = Rig::one();
    rig.acquire("k", 60, 90);
    let first = rig.sent_one(a);
    rig.reply(a, first.busy());
    rig.acquire("k", 60, 90);
    assert_ne!(rig.sent_one(a).id, first.id);
}

/// The replies that say "not accepted".
fn refusals(frame: &Frame) -> [Reply; 3] {
    [
        frame.moved(None),
        frame.error(ErrorCode::NotActive),
        frame.error(ErrorCode::NoLeader),
    ]
}

#[test]
fn c13_m_e3_and_e4_end_the_session_and_the_acquire_is_made_anew() {
    for n in 0..3 {
        for (wait, left) in [(10, 8), (2, 1), (0, 0)] {
            let (mut rig, a) = Rig::one();
            let id = rig.acquire("k", wait, 90);
            let first = rig.sent_one(a);
            rig.advance(ms(1900));
            rig.reply(a, refusals(&first)[n]);
            assert!(rig.is_ending(a));
            assert_eq!(rig.kind(id), "pending");
            rig.advance(ms(100));
            let (b, again) = match wait {
                // Its wait ended meanwhile.
                2 => {
                    assert_eq!(rig.kind(id), "NotConnected");
                    continue;
                }
                _ => {
                    let b = rig.connect();
                    (b, rig.sent_one(b))
                }
            };
            assert_eq!(
                (again.wait(), again.keys.as_slice()),
                (left, first.keys.as_slice())
            );
            rig.reply(b, again.granted(5));
            assert_eq!(rig.kind(id), "Ok");
        }
    }
}

#[test]
fn c13_the_remaining_wait_is_rounded_up_and_at_least_1() {
    let (mut rig, a) = Rig::one();
    rig.acquire("k", 1, 90);
    let first = rig.sent_one(a);
    rig.advance(ms(999));
    rig.reply(a, first.error(ErrorCode::NotActive));
    let b = rig.succeed(1);
    assert_eq!(rig.sent_one(b).wait(), 1);
}

#[test]
fn c13_a_refusal_after_the_wait_is_not_connected() {
    for wait in [1, 0] {
        let (mut rig, a) = Rig::one();
        let id = rig.acquire("k", wait, 90);
        let frame = rig.sent_one(a);
        // C9 leaves the broker 3 s more, so with `wait` 0 this comes within C25's 5 s.
        rig.advance(ms(2900));
        rig.reply(a, frame.error(ErrorCode::NotActive));
        if wait == 1 {
            assert_eq!(rig.kind(id), "NotConnected");
            continue;
        }
        rig.advance(ms(2099));
        assert_eq!(rig.kind(id), "pending");
        rig.advance(ms(1));
        assert_eq!(rig.kind(id), "NotConnected");
    }
}

#[test]
fn c13_a_made_anew_acquire_is_timed_like_the_first() {
    let (mut rig, a) = Rig::one();
    let id = rig.acquire("k", 10, 90);
    let first = rig.sent_one(a);
    rig.advance(secs(4));
    rig.reply(a, first.moved(None));
    let b = rig.succeed(1);
    assert_eq!(rig.sent_one(b).wait(), 6);
    rig.advance(ms(8999));
    assert_eq!(rig.kind(id), "pending");
    rig.advance(ms(1));
    assert_eq!(rig.kind(id), "Indeterminate");
}

#[test]
fn c13_any_other_e_is_the_requests_error_and_ends_the_session() {
    for (code, name, set) in [
        (ErrorCode::BadKey, "BadKey", false),
        (ErrorCode::BadLease, "BadLease", false),
        (ErrorCode::BadKeySet, "BadKeySet", true),
    ] {
        let (mut rig, a) = Rig::one();
        let names: &[&str] = if set { &["k", "l"] } else { &["k"] };
        let id = rig.ask(names, 60, 90, secs(0));
        let frame = rig.sent_one(a);
        rig.reply(a, frame.error(code));
        let Some(Err(TicketError::Protocol { code, .. })) = rig.outcome(id) else {
            panic!("{name}")
        };
        assert_eq!(code, name);
        assert!(rig.is_ending(a));
    }
    for (code, set) in [
        (ErrorCode::GroupMismatch, false),
        (ErrorCode::BadToken, false),
        (ErrorCode::BadKey, true),
    ] {
        let (mut rig, a) = Rig::one();
        let names: &[&str] = if set { &["k", "l"] } else { &["k"] };
        let cell = rig.release(names, 4);
        let frame = rig.sent_one(a);
        rig.reply(a, frame.error(code));
        assert_eq!(outcome_of(&cell), "Protocol");
        assert!(rig.is_ending(a));
        rig.advance(secs(6));
        rig.assert_idle();
    }
}

/// Bytes that end a session at once, given what is outstanding on it: a single acquire, a set and
/// a release.
fn violations(frames: &[Frame]) -> Vec<(&'static str, Vec<u8>)> {
    let encode = |reply: Reply| {
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        bytes
    };
    let (single, set, release) = (&frames[0], &frames[1], &frames[2]);
    let unknown = Frame {
        id: RequestId::new(99).unwrap(),
        ..single.clone()
    };
    let other_kind = |f: &Frame| Frame {
        keys: vec!["x".into(); 3 - f.keys.len()],
        ..f.clone()
    };
    let mut zero_id = encode(single.timed_out());
    zero_id[3..].fill(0);
    let mut zero_token = encode(single.granted(1));
    zero_token[11..].fill(0);
    let mut bad_code = encode(single.error(ErrorCode::BadKey));
    bad_code[11] = 8;
    let mut bad_slot = encode(single.moved(None));
    bad_slot[11] = 5;
    vec![
        ("unknown opcode", b"X\0\x08".to_vec()),
        ("oversized", b"A\0\x11".to_vec()),
        ("too short", b"T\0\x07".to_vec()),
        ("id 0", zero_id),
        ("token 0", zero_token),
        ("unknown code", bad_code),
        ("slot outside any list", bad_slot),
        (
            "M names a slot in single mode",
            encode(single.moved(Some(0))),
        ),
        (
            "L names a slot in single mode",
            encode(Reply::Leader { slot: Slot::new(0) }),
        ),
        ("uncorrelated", encode(unknown.timed_out())),
        (
            "a set's grant for a single",
            encode(other_kind(single).granted(3)),
        ),
        (
            "a single's grant for a set",
            encode(other_kind(set).granted(3)),
        ),
        (
            "a release's answer for an acquire",
            encode(single.released()),
        ),
        ("not current for an acquire", encode(single.not_current())),
        ("a grant for a release", encode(release.granted(3))),
        (
            "a set's answer for a single release",
            encode(other_kind(release).released()),
        ),
        ("a timeout for a release", encode(release.timed_out())),
        ("busy for a release", encode(release.busy())),
        (
            "BadLease for a release",
            encode(release.error(ErrorCode::BadLease)),
        ),
        (
            "GroupMismatch for an acquire",
            encode(single.error(ErrorCode::GroupMismatch)),
        ),
        (
            "BadToken for an acquire",
            encode(set.error(ErrorCode::BadToken)),
        ),
        (
            "BadKeySet for a single",
            encode(single.error(ErrorCode::BadKeySet)),
        ),
        (
            "BadKeySet for a single release",
            encode(release.error(ErrorCode::BadKeySet)),
        ),
    ]
}

#[test]
fn c13_malformed_or_uncorrelated_frames_end_the_session_and_nothing_more_is_read() {
    let setup = || {
        let (mut rig, a) = Rig::one();
        let ids = [
            rig.ask(&["k"], 60, 90, secs(0)),
            rig.ask(&["k", "l"], 60, 90, secs(0)),
        ];
        let cell = rig.release(&["r"], 4);
        rig.advance(ms(1));
        let mut frames = rig.sent(a);
        frames.sort_by_key(|f| (!f.is_acquire(), f.keys.len()));
        (rig, a, ids, cell, frames)
    };
    let count = violations(&setup().4).len();
    for n in 0..count {
        // The bytes at once, then one by one; with what would be good replies behind them.
        for piecemeal in [false, true] {
            let (mut rig, a, ids, cell, frames) = setup();
            let (name, mut bytes) = violations(&frames).swap_remove(n);
            frames[0].granted(8).encode(&mut bytes);
            frames[1].granted(9).encode(&mut bytes);
            if piecemeal {
                for byte in bytes {
                    rig.read(a, &[byte]);
                }
            } else {
                rig.read(a, &bytes);
            }
            assert_eq!(rig.over(a), Some(SessionEnd::Close), "{name}");
            for id in ids {
                assert_eq!(rig.kind(id), "Indeterminate", "{name}");
            }
            assert_eq!(rig.sent(a), [], "{name}");
            assert!(!rig.shut.contains(&a), "closed, not half-closed: {name}");
            // The release goes on, elsewhere.
            rig.forget(a);
            let b = rig.succeed(1);
            let again = rig.sent_one(b);
            assert_eq!(again.token(), 4);
            rig.reply(b, again.released());
            assert_eq!(outcome_of(&cell), "Released");
            rig.assert_idle();
        }
    }
}

#[test]
fn c13_m_without_a_slot_is_no_violation_in_single_mode() {
    let (mut rig, a) = Rig::one();
    rig.acquire("k", 60, 90);
    let frame = rig.sent_one(a);
    rig.reply(a, frame.moved(None));
    assert!(rig.is_ending(a));
}

#[test]
fn c13_a_refused_acquire_that_was_given_up_is_not_made_anew() {
    for n in 0..3 {
        let (mut rig, a) = Rig::one();
        let id = rig.acquire("k", 60, 90);
        let other = rig.acquire("l", 60, 90);
        let frames = rig.sent(a);
        rig.cancel(id);
        rig.reply(a, refusals(&frames[0])[n]);
        assert_eq!(rig.state.given_up, 0);
        rig.eof(a);
        rig.forget(a);
        let b = rig.succeed(1);
        assert_eq!(rig.sent(b), []);
        assert_eq!(rig.kind(other), "Indeterminate");
        rig.assert_idle();
    }
}
