//! Releases: repeated until a final answer or 5 s (C19), bounded (C19, C26).

use super::*;

#[test]
fn c19_final_answers() {
    let cases: [(Answer, &str); 2] = [
        (Frame::released, "Released"),
        (Frame::not_current, "NotCurrent"),
    ];
    for (answer, expected) in cases {
        for names in [&["k"][..], &["k", "l"]] {
            let (mut rig, a) = Rig::one();
            let cell = rig.release(names, 7);
            let frame = rig.sent_one(a);
            assert_eq!((frame.token(), frame.keys.len()), (7, names.len()));
            rig.reply(a, answer(&frame));
            assert_eq!(outcome_of(&cell), expected);
            rig.advance(secs(9));
            assert_eq!(rig.sent(a), []);
            rig.assert_idle();
        }
    }
}

#[test]
fn c19_sent_again_when_its_session_ends() {
    let ends: [fn(&mut Rig, SessionId); 3] = [
        |rig, a| rig.lose(a),
        |rig, a| rig.eof(a),
        |rig, a| {
            rig.read(a, b"garbage");
        },
    ];
    for end in ends {
        let (mut rig, a) = Rig::one();
        let cell = rig.release(&["k"], 7);
        rig.sent_one(a);
        end(&mut rig, a);
        let b = rig.succeed(1);
        let again = rig.sent_one(b);
        assert_eq!(again.token(), 7);
        rig.reply(b, again.not_current());
        assert_eq!(outcome_of(&cell), "NotCurrent");
    }
}

#[test]
fn c19_sent_again_after_m_e3_and_e4() {
    let refusals: [Answer; 3] = [
        |f| f.moved(None),
        |f| f.error(ErrorCode::NotActive),
        |f| f.error(ErrorCode::NoLeader),
    ];
    for refusal in refusals {
        let (mut rig, a, b) = Rig::pair();
        let cell = rig.release(&["k"], 7);
        let (first, frame) = rig.sent_anywhere();
        rig.reply(first, refusal(&frame));
        assert!(rig.is_ending(first));
        let (second, again) = rig.sent_anywhere();
        assert_ne!(first, second);
        rig.reply(second, again.released());
        assert_eq!(outcome_of(&cell), "Released");
        assert_eq!(a + b, first + second);
    }
}

#[test]
fn c19_after_an_i_not_before_100_ms_doubling() {
    let (mut rig, a) = Rig::one();
    let cell = rig.release(&["k"], 7);
    let mut frame = rig.sent_one(a);
    for pause in [100, 200, 400, 800, 1600] {
        rig.reply(a, frame.indeterminate());
        assert!(rig.is_open(a));
        rig.advance(ms(pause) - Duration::from_nanos(1));
        assert_eq!(rig.sent(a), [], "{pause}");
        rig.advance(Duration::from_nanos(1));
        frame = rig.sent_one(a);
    }
    // 3.1 s have passed; the next pause of 3.2 s would end after the 5 s.
    rig.reply(a, frame.indeterminate());
    rig.advance(ms(1899));
    assert_eq!((rig.sent(a), outcome_of(&cell)), (vec![], "pending"));
    rig.advance(ms(1));
    assert_eq!((rig.sent(a), outcome_of(&cell)), (vec![], "Indeterminate"));
    rig.assert_idle();
}

#[test]
fn c19_nothing_shortens_the_pause_after_an_i() {
    // A try on each of two sessions; one says `I`, then the other one ends.
    for lose in [false, true] {
        for answer_first in [false, true] {
            let (mut rig, _, _) = Rig::pair();
            rig.release(&["k"], 7);
            let (first, one) = rig.sent_anywhere();
            rig.advance(secs(2));
            let (second, two) = rig.sent_anywhere();
            let (says, frame, other) = if answer_first {
                (first, one, second)
            } else {
                (second, two, first)
            };
            rig.reply(says, frame.indeterminate());
            if lose {
                rig.lose(other);
            }
            rig.advance(ms(99));
            assert_eq!(rig.sent(says), [], "{lose} {answer_first}");
            rig.advance(ms(1));
            assert_eq!(rig.sent_one(says).token(), 7);
        }
    }
}

#[test]
fn c19_an_i_takes_a_try_back_that_is_not_handed_over() {
    let (mut rig, a, b) = Rig::pair();
    rig.release(&["k"], 7);
    let (first, frame) = rig.sent_anywhere();
    rig.advance(secs(2)); // silence: it is in the other one's outbox
    rig.reply(first, frame.indeterminate());
    assert_eq!(rig.sent_everywhere(), []);
    rig.advance(ms(99));
    assert_eq!(rig.sent_everywhere(), []);
    rig.advance(ms(1));
    assert_eq!(rig.sent_everywhere().len(), 1);
    assert_eq!((a, b), (1, 2));
}

#[test]
fn c19_after_2_s_of_silence_on_another_usable_session() {
    let (mut rig, a, b) = Rig::pair();
    let cell = rig.release(&["k"], 7);
    let (first, one) = rig.sent_anywhere();
    rig.advance(ms(1999));
    assert_eq!(rig.sent_everywhere(), []);
    rig.advance(ms(1));
    let (second, two) = rig.sent_anywhere();
    assert_ne!(first, second);
    // Both silent: there is no third session to try.
    rig.advance(secs(2));
    assert_eq!(rig.sent_everywhere(), []);
    // The first final answer of any try is told; the other try's answer is no violation.
    rig.reply(first, one.released());
    assert_eq!(outcome_of(&cell), "Released");
    rig.reply(second, two.not_current());
    assert_eq!(outcome_of(&cell), "Released");
    assert!(rig.is_open(a) && rig.is_open(b));
    rig.assert_idle();
}

#[test]
fn c19_a_silent_session_alone_gets_it_once() {
    let (mut rig, a) = Rig::one();
    let cell = rig.release(&["k"], 7);
    rig.sent_one(a);
    rig.advance(secs(4));
    assert_eq!(rig.sent(a), []);
    // Another session that comes up is tried at once.
    let b = rig.succeed(1);
    let again = rig.sent_one(b);
    rig.reply(b, again.released());
    assert_eq!(outcome_of(&cell), "Released");
}

#[test]
fn c19_the_answers_of_the_other_tries_may_be_of_any_fitting_kind() {
    let answers: [Answer; 4] = [
        Frame::released,
        Frame::not_current,
        Frame::indeterminate,
        |f| f.error(ErrorCode::NotActive),
    ];
    for answer in answers {
        let (mut rig, _, _) = Rig::pair();
        let cell = rig.release(&["k", "l"], 7);
        let (first, one) = rig.sent_anywhere();
        rig.advance(secs(2));
        let (second, two) = rig.sent_anywhere();
        rig.reply(second, two.not_current());
        rig.reply(first, answer(&one));
        assert_eq!(outcome_of(&cell), "NotCurrent");
        assert_eq!(rig.over(first), None, "no violation");
        assert_eq!(rig.releasing(), BTreeMap::new());
    }
}

#[test]
fn c19_at_5_s_indeterminate_if_it_was_ever_sent_else_not_connected() {
    for sent in [false, true] {
        for origin in [Origin::Explicit, Origin::Automatic] {
            let mut rig = Rig::new(1, 8);
            let link = rig.attempt();
            rig.attempt();
            let cell = rig.release_as(&["k"], 7, origin);
            rig.advance(secs(1));
            if sent {
                let a = rig.succeed(link);
                rig.sent_one(a);
                rig.lose(a);
                rig.forget(a);
            } else {
                rig.fail(link);
            }
            rig.advance(ms(3999));
            assert_eq!(outcome_of(&cell), "pending");
            rig.advance(ms(1));
            let expected = if sent {
                "Indeterminate"
            } else {
                "NotConnected"
            };
            assert_eq!(outcome_of(&cell), expected);
            rig.assert_idle();
            let b = rig.succeed(1);
            assert_eq!(rig.sent(b), []);
        }
    }
}

#[test]
fn c19_nothing_extends_the_5_s() {
    // Not a try, not a silence, not an `I`, not a lost session, not the wait for a place.
    for case in 0..5 {
        let mut rig = Rig::new(1, 8);
        let (a, b) = (rig.connect(), rig.connect());
        let mut fill = 0;
        if case == 4 {
            for i in 0..128 {
                rig.release(&[&format!("r{i}")], i + 100);
                fill += 1;
            }
            rig.advance(secs(1));
        }
        let start = rig.now;
        let cell = rig.release(&["k"], 7);
        rig.advance(ms(1500));
        if let Some((sid, frame)) = rig
            .sent_everywhere()
            .into_iter()
            .find(|(_, f)| f.keys == ["k"])
        {
            match case {
                1 => rig.reply(sid, frame.indeterminate()),
                2 => rig.lose(sid),
                3 => rig.reply(sid, frame.error(ErrorCode::NotActive)),
                _ => {}
            }
        }
        let left = rig.now.until(start + ms(4999));
        rig.advance(left / 2);
        rig.sent_everywhere();
        let left = rig.now.until(start + ms(4999));
        rig.advance(left);
        rig.sent_everywhere();
        assert_eq!(outcome_of(&cell), "pending", "{case}");
        rig.advance(ms(1));
        assert_ne!(outcome_of(&cell), "pending", "{case} {fill}");
        assert_eq!((a, b), (1, 2));
    }
}

#[test]
fn c19_one_that_is_not_handed_over_by_its_5_s_is_not_sent() {
    let (mut rig, a) = Rig::one();
    let cell = rig.release(&["k"], 7); // in the outbox
    rig.advance(secs(5));
    assert_eq!(rig.sent(a), []);
    assert_eq!(outcome_of(&cell), "NotConnected");
}

#[test]
fn c19_a_stopped_process_does_not_send_what_is_past_its_5_s() {
    let (mut rig, a) = Rig::one();
    let cell = rig.release(&["k"], 7); // in the outbox
    rig.stop(secs(6)); // and the writer runs before the timers
    assert_eq!(rig.sent(a), []);
    rig.tick();
    assert_eq!(outcome_of(&cell), "NotConnected");
}

#[test]
fn c19_automatic_releases_wait_in_a_queue_of_512() {
    let mut rig = Rig::new(1, 8);
    let link = rig.attempt();
    rig.attempt();
    let cells: Vec<_> = (1..=514)
        .map(|i| rig.release_as(&[&format!("k{i}")], i, Origin::Automatic))
        .collect();
    assert_eq!(outcome_of(&cells[511]), "pending");
    assert_eq!(outcome_of(&cells[512]), "NotConnected");
    assert_eq!(rig.state.stats().automatic_dropped, 2);
    // Explicit ones are not dropped.
    let explicit = rig.release(&["x"], 9999);
    assert_eq!(outcome_of(&explicit), "pending");
    // What is sent waits no more.
    let a = rig.succeed(link);
    let frames = rig.sent(a);
    assert_eq!(frames.len(), 128);
    for i in 0..128 {
        rig.release_as(&[&format!("l{i}")], 1000 + i, Origin::Automatic);
    }
    assert_eq!(rig.state.stats().automatic_dropped, 2);
    rig.release_as(&["y"], 5000, Origin::Automatic);
    assert_eq!(rig.state.stats().automatic_dropped, 3);
    // All of them get through or end by themselves.
    for frame in frames {
        rig.reply(a, frame.released());
    }
    assert_eq!(rig.sent(a).len(), 128);
    rig.advance(secs(5));
    rig.lose(a);
    rig.forget(a);
    rig.assert_idle();
}

#[test]
fn c19_compensating_releases_are_never_dropped_and_keep_their_acquires_place() {
    let mut rig = Rig::new(1, 600);
    let a = rig.connect();
    rig.attempt();
    let ids: Vec<_> = (0..600)
        .map(|i| rig.acquire(&format!("k{i}"), 60, 90))
        .collect();
    let frames = rig.sent(a);
    // The queue of automatic releases is full, and so are the 128 places.
    rig.state.retire(rig.now, a);
    let link = rig.attempt();
    for i in 0..512 {
        rig.release_as(&[&format!("r{i}")], 5000 + i, Origin::Automatic);
    }
    for (i, id) in ids.iter().enumerate() {
        rig.cancel(*id);
        rig.reply(a, frames[i].granted(i as u64 + 1));
    }
    assert_eq!(rig.state.stats().automatic_dropped, 0);
    assert_eq!((rig.state.places, rig.state.given_up), (600, 0));
    let b = rig.succeed(link);
    let tokens: BTreeSet<u64> = rig.sent(b).iter().map(Frame::token).collect();
    assert!((1..=600).all(|t| tokens.contains(&t)));
    assert_eq!(tokens.len(), 600 + 128);
    rig.acquire("late", 60, 90);
    assert_eq!(rig.sent(b), [], "no place");
    // Unanswered they end at their 5 s, and with them the places.
    rig.advance(secs(5));
    assert!(rig.is_ending(b), "it owes all those answers");
    let c = rig.connect();
    assert_eq!(rig.sent(c).len(), 1);
    assert_eq!(rig.state.places, 1);
}

#[test]
fn c19_an_acquire_finds_its_place_taken_by_the_release_until_that_is_finished() {
    for answer in [Frame::released, Frame::not_current] {
        let mut rig = Rig::new(1, 1);
        let a = rig.connect();
        rig.attempt();
        let id = rig.ask(&["k"], 60, 90, secs(90)); // can't succeed
        let frame = rig.sent_one(a);
        rig.stop(ms(1));
        rig.reply(a, frame.granted(3));
        assert_eq!(rig.kind(id), "InsufficientLease");
        rig.acquire("l", 60, 90);
        let release = rig.sent_one(a);
        assert_eq!(release.token(), 3);
        rig.reply(a, answer(&release));
        assert_eq!(rig.sent_one(a).keys, ["l"]);
    }
}

#[test]
fn c19_two_tickets_on_a_key_release_their_own_tokens() {
    let (mut rig, a) = Rig::one();
    let cells = [rig.release(&["k"], 7), rig.release(&["k"], 8)];
    let frames = rig.sent(a);
    assert_eq!((frames[0].token(), frames[1].token()), (7, 8));
    rig.reply(a, frames[1].released());
    rig.reply(a, frames[0].not_current());
    assert_eq!(
        (outcome_of(&cells[0]), outcome_of(&cells[1])),
        ("NotCurrent", "Released")
    );
    rig.assert_idle();
}

#[test]
fn c19_whoever_waits_for_the_outcome_is_woken() {
    let (mut rig, a) = Rig::one();
    let cell = rig.release(&["k"], 7);
    let flags: [Arc<Flag>; 2] = Default::default();
    for flag in &flags {
        let waker = Waker::from(Arc::clone(flag));
        assert!(cell.poll(&mut Context::from_waker(&waker)).is_pending());
    }
    let frame = rig.sent_one(a);
    rig.reply(a, frame.released());
    rig.deadline(); // the lock is dropped in between
    assert!(flags.iter().all(|f| f.is_woken()));
}
