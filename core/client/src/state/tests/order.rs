//! No acquire overtakes a release of its keys; sessions take turns (C14, single broker).

use super::*;

#[test]
fn c14_usable_sessions_take_turns() {
    let (mut rig, a, b) = Rig::pair();
    for i in 0..6 {
        rig.acquire(&format!("k{i}"), 60, 90);
    }
    rig.release(&["r"], 1);
    rig.release(&["s"], 2);
    let sent = rig.sent_everywhere();
    assert_eq!(sent.iter().filter(|(sid, _)| *sid == a).count(), 4);
    assert_eq!(sent.iter().filter(|(sid, _)| *sid == b).count(), 4);
}

#[test]
fn c14_an_acquire_follows_its_release_on_the_same_session() {
    for wait in [0, 60] {
        for flushed in [false, true] {
            for turn in 0..2 {
                let (mut rig, _, _) = Rig::pair();
                for i in 0..turn {
                    rig.acquire(&format!("other{i}"), 60, 90);
                }
                rig.release(&["k"], 7);
                let mut sent = if flushed {
                    rig.sent_everywhere()
                } else {
                    vec![]
                };
                rig.acquire("k", wait, 90);
                sent.extend(rig.sent_everywhere());
                let of_k: Vec<_> = sent.iter().filter(|(_, f)| f.keys == ["k"]).collect();
                let [(first, release), (second, acquire)] = of_k[..] else {
                    panic!("{of_k:?}")
                };
                assert_eq!(first, second);
                assert!(!release.is_acquire() && acquire.is_acquire());
                assert_eq!(u64::from(acquire.wait()), wait);
            }
        }
    }
}

#[test]
fn c14_both_leave_in_the_same_write() {
    let (mut rig, a) = Rig::one();
    rig.release(&["k"], 7);
    rig.acquire("k", 0, 90);
    assert_eq!(rig.hand_over(a).unwrap().len(), 2);
}

#[test]
fn c14_an_acquire_of_other_keys_waits_for_nothing() {
    let mut rig = Rig::new(1, 1024);
    let a = rig.connect();
    rig.attempt();
    rig.release(&["k"], 7);
    rig.sent_one(a);
    rig.state.retire(rig.now, a); // the release stays unanswered there
    let b = rig.connect();
    rig.acquire("k", 0, 90);
    rig.acquire("l", 0, 90);
    assert_eq!(rig.sent_one(b).keys, ["l"]);
}

#[test]
fn c14_one_that_has_to_follow_its_release_holds_up_no_other() {
    let (mut rig, a, b) = Rig::pair();
    rig.release(&["k"], 7);
    let (sid, _) = rig.sent_anywhere();
    let other = a + b - sid;
    rig.acquire("x", 60, 90);
    rig.acquire("y", 60, 90);
    assert_eq!(rig.sent(other).len(), 1);
    rig.hand_over(sid).unwrap(); // a write under way, where the release was sent
    rig.acquire("k", 60, 90);
    rig.acquire("l", 60, 90);
    assert_eq!(rig.sent_one(other).keys, ["l"]);
    rig.state.transmitted(rig.now, sid);
    assert_eq!(rig.sent_one(sid).keys, ["k"]);
}

#[test]
fn c14_behind_a_release_on_another_session_it_waits_unsent_until_that_is_finished() {
    let answers: [Answer; 3] = [Frame::released, Frame::not_current, |f| {
        f.error(ErrorCode::GroupMismatch)
    }];
    for answer in answers {
        for wait in [0, 60] {
            let (mut rig, a) = Rig::one();
            rig.release(&["k"], 7);
            let release = rig.sent_one(a);
            rig.state.retire(rig.now, a);
            let b = rig.connect();
            let id = rig.acquire("k", wait, 90);
            assert_eq!(rig.sent(b), []);
            rig.advance(secs(1));
            rig.reply(a, answer(&release));
            let acquire = rig.sent_one(b);
            assert_eq!(u64::from(acquire.wait()), wait.saturating_sub(1));
            rig.reply(b, acquire.granted(8));
            assert_eq!(rig.kind(id), "Ok");
        }
    }
}

#[test]
fn c14_after_2_s_of_silence_it_follows_the_release_to_the_other_session() {
    let (mut rig, a) = Rig::one();
    rig.release(&["k"], 7);
    rig.sent_one(a);
    rig.state.retire(rig.now, a);
    let b = rig.connect();
    rig.acquire("k", 0, 90);
    rig.advance(ms(1999));
    assert_eq!(rig.sent(b), []);
    rig.advance(ms(1));
    let frames = rig.sent(b);
    assert_eq!(frames.len(), 2);
    assert!(!frames[0].is_acquire() && frames[1].is_acquire());
}

#[test]
fn c14_a_release_that_never_ends_lets_the_acquire_go_after_its_5_s() {
    let (mut rig, a) = Rig::one();
    rig.release(&["k"], 7);
    rig.sent_one(a);
    rig.state.retire(rig.now, a);
    rig.advance(ms(1));
    let id = rig.acquire("k", 60, 90);
    rig.advance(ms(4999));
    let b = rig.connect();
    assert_eq!(rig.sent_one(b).keys, ["k"]);
    assert_eq!(rig.kind(id), "pending");
}

#[test]
fn c14_held_until_the_end_of_its_wait_it_ends_unsent() {
    // A usable session, but the release is not answered: not the session's fault.
    let (mut rig, a) = Rig::one();
    rig.release(&["k"], 7);
    rig.sent_one(a);
    rig.state.retire(rig.now, a);
    let b = rig.connect();
    let id = rig.acquire("k", 1, 90);
    rig.advance(secs(1));
    assert_eq!(rig.kind(id), "Timeout");
    assert_eq!(rig.sent(b), []);
}

#[test]
fn c14_held_for_want_of_a_session_it_is_not_connected() {
    let mut rig = Rig::new(1, 8);
    let link = rig.attempt();
    rig.attempt();
    rig.release(&["k"], 7);
    let id = rig.acquire("k", 1, 90);
    rig.fail(link);
    rig.advance(secs(1));
    let detail = rig.detail(id);
    assert!(
        detail.contains("not connected") && detail.contains("refused"),
        "{detail}"
    );
}

#[test]
fn c14_a_release_called_later_holds_nothing_back() {
    let (mut rig, a, b) = Rig::pair();
    // All places of the first session's turn: the acquire is unsent when the release comes.
    rig.hand_over(a);
    let id = rig.acquire("k", 60, 90);
    rig.release(&["k"], 7);
    let sent = rig.sent_everywhere();
    assert_eq!(sent.len(), 2);
    assert_eq!((rig.kind(id), sent[0].0 != sent[1].0), ("pending", true));
    assert_eq!((a, b), (1, 2));
}

#[test]
fn c14_a_set_follows_releases_of_any_of_its_keys() {
    for names in [&["a", "k"][..], &["k", "z"], &["a", "k", "z"], &["k"]] {
        for released in [&["k"][..], &["k", "x"], &["b", "k"]] {
            let (mut rig, _, _) = Rig::pair();
            rig.acquire("odd", 60, 90);
            rig.sent_everywhere();
            rig.release(released, 7);
            rig.ask(names, 0, 90, secs(0));
            let sent = rig.sent_everywhere();
            assert_eq!(sent.len(), 2, "{names:?} {released:?}");
            assert_eq!(sent[0].0, sent[1].0);
            assert!(!sent[0].1.is_acquire());
        }
    }
}

#[test]
fn c14_a_set_behind_releases_on_two_sessions_waits_for_one_of_them() {
    for first in [0, 1] {
        let (mut rig, _, _) = Rig::pair();
        rig.release(&["k"], 7);
        rig.release(&["l"], 8);
        let sent = rig.sent_everywhere();
        assert_ne!(sent[0].0, sent[1].0);
        rig.ask(&["k", "l"], 0, 90, secs(0));
        assert_eq!(rig.sent_everywhere(), []);
        let (sid, frame) = &sent[first];
        rig.reply(*sid, frame.released());
        // It may follow the other one now, on that one's session alone.
        let (went, acquire) = rig.sent_anywhere();
        assert_eq!(went, sent[1 - first].0);
        assert_eq!(acquire.keys, ["k", "l"]);
    }
}

#[test]
fn c14_it_follows_the_release_when_its_session_is_lost() {
    // Lost before or after the release was sent; the acquire is in the outbox behind it or not.
    for flushed in [false, true] {
        for acquire_first in [false, true] {
            let (mut rig, a) = Rig::one();
            rig.release(&["k"], 7);
            if flushed {
                rig.sent_one(a);
            }
            if acquire_first {
                rig.acquire("k", 0, 90);
            }
            rig.lose(a);
            rig.forget(a);
            if !acquire_first {
                rig.acquire("k", 0, 90);
            }
            let b = rig.succeed(1);
            let frames = rig.sent(b);
            assert_eq!(frames.len(), 2, "{flushed} {acquire_first}");
            assert!(!frames[0].is_acquire() && frames[1].is_acquire());
        }
    }
}

#[test]
fn c14_an_i_for_the_release_holds_back_also_what_is_in_the_outbox_behind_it() {
    let (mut rig, a) = Rig::one();
    rig.release(&["k"], 7);
    let release = rig.sent_one(a);
    let id = rig.acquire("k", 0, 90); // in the outbox, behind a release that was sent
    rig.reply(a, release.indeterminate());
    assert_eq!(rig.sent(a), [], "the release may not have taken effect");
    rig.advance(ms(100));
    let frames = rig.sent(a);
    assert_eq!(frames.len(), 2);
    assert!(!frames[0].is_acquire() && frames[1].is_acquire());
    assert_eq!((rig.kind(id), rig.state.places), ("pending", 1));
}

#[test]
fn c14_automatic_and_compensating_releases_are_followed_too() {
    for compensating in [false, true] {
        let (mut rig, a, b) = Rig::pair();
        if compensating {
            let id = rig.acquire("k", 60, 90);
            let (sid, frame) = rig.sent_anywhere();
            rig.reply(sid, frame.granted(7));
            rig.cancel(id);
        } else {
            rig.release_as(&["k"], 7, Origin::Automatic);
        }
        rig.acquire("k", 0, 90);
        let sent = rig.sent_everywhere();
        assert_eq!((sent.len(), sent[0].0), (2, sent[1].0));
        assert_eq!(sent[0].1.token(), 7);
        assert!(BTreeSet::from([a, b]).contains(&sent[0].0));
    }
}

#[test]
fn c14_releases_that_wait_for_a_place_are_followed_too() {
    let (mut rig, a) = Rig::one();
    let first: Vec<_> = (0..128)
        .map(|i| rig.release(&[&format!("r{i}")], i + 1))
        .collect();
    let frames = rig.sent(a);
    rig.release(&["k"], 200);
    let id = rig.acquire("k", 0, 90);
    assert_eq!(rig.sent(a), []);
    rig.reply(a, frames[0].released());
    let frames = rig.sent(a);
    assert_eq!(frames.len(), 2);
    assert!(!frames[0].is_acquire() && frames[1].is_acquire());
    assert_eq!((first.len(), rig.kind(id)), (128, "pending"));
}
