//! Giving up on a sent acquire: outcomes, retirement, compensation (C9, C10).

use super::*;

/// Who gives up.
#[derive(Debug, Clone, Copy, PartialEq)]
enum GiveUp {
    Cancel,
    Deadline,
    Unanswered,
}

/// How the session ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Eof,
    Loss,
    Garbage,
    Reset,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Event {
    GiveUp,
    Grant,
    End,
    Take,
}

fn permutations(events: &[Event]) -> Vec<Vec<Event>> {
    if events.is_empty() {
        return vec![vec![]];
    }
    let mut all = Vec::new();
    for (i, first) in events.iter().enumerate() {
        let mut rest = events.to_vec();
        rest.remove(i);
        for mut tail in permutations(&rest) {
            tail.insert(0, *first);
            all.push(tail);
        }
    }
    all
}

#[test]
fn c10_giving_up_the_grant_the_end_and_the_taking_in_every_order() {
    let mut seen = 0;
    for give_up in [GiveUp::Cancel, GiveUp::Deadline, GiveUp::Unanswered] {
        for end in [End::Eof, End::Loss, End::Garbage, End::Reset] {
            for set in [false, true] {
                // Another request on the session, answered last of all, keeps it from ending.
                for shared in [false, true] {
                    for order in
                        permutations(&[Event::GiveUp, Event::Grant, Event::End, Event::Take])
                    {
                        one_order(give_up, end, set, shared, &order);
                        seen += 1;
                    }
                }
            }
        }
    }
    assert_eq!(seen, 3 * 4 * 2 * 2 * 24);
}

/// What the clauses say of one order of events.
#[derive(Debug, Default)]
struct Expected {
    over: bool,
    given_up: bool,
    /// `Ok` or `Indeterminate`, once it is decided; then whether the caller has it.
    outcome: Option<&'static str>,
    told: bool,
    compensated: bool,
}

impl Expected {
    fn give_up(&mut self, by: GiveUp) {
        match (self.outcome, by) {
            (None, _) => {
                self.given_up = true;
                self.outcome = Some("Indeterminate");
            }
            // A grant that crossed the cancellation.
            (Some("Ok"), GiveUp::Cancel | GiveUp::Deadline) if !self.told => {
                self.compensated = true;
                self.outcome = Some("Indeterminate");
            }
            _ => {}
        }
        self.told |= by != GiveUp::Unanswered;
    }

    fn grant(&mut self) {
        match self.outcome {
            _ if self.over => {}
            None => self.outcome = Some("Ok"),
            Some(_) => self.compensated |= self.given_up,
        }
    }

    fn end(&mut self) {
        self.over = true;
        self.outcome.get_or_insert("Indeterminate");
    }
}

fn one_order(give_up: GiveUp, end: End, set: bool, shared: bool, order: &[Event]) {
    let context = format!("{give_up:?} {end:?} set={set} shared={shared} {order:?}");
    let (mut rig, a) = Rig::one();
    let names: &[&str] = if set { &["k", "l"] } else { &["k"] };
    let id = rig.ask(names, 2, 60, secs(1));
    let frame = rig.sent_one(a);
    let other = shared.then(|| rig.acquire("other", 200, 250));
    rig.sent(a);

    let mut expected = Expected::default();
    for event in order {
        match event {
            Event::GiveUp => {
                let got = match give_up {
                    GiveUp::Cancel => rig.cancel(id),
                    GiveUp::Deadline => rig.pass_deadline(id),
                    GiveUp::Unanswered => {
                        rig.advance(secs(5));
                        None
                    }
                };
                let told = expected.told;
                expected.give_up(give_up);
                if give_up != GiveUp::Unanswered && !told {
                    assert_eq!(got, expected.outcome, "{context}");
                } else {
                    assert_eq!(got, None, "{context}");
                }
            }
            Event::Grant => {
                rig.reply(a, frame.granted(7));
                expected.grant();
            }
            Event::End => {
                match end {
                    End::Eof => rig.eof(a),
                    End::Loss => rig.lose(a),
                    End::Garbage => {
                        rig.read(a, b"garbage");
                    }
                    End::Reset => {
                        rig.state.begin_ending(rig.now, a);
                        rig.advance(secs(1));
                    }
                }
                expected.end();
            }
            Event::Take if expected.told => {}
            Event::Take => {
                let kind = rig.kind(id);
                assert_eq!(kind, expected.outcome.unwrap_or("pending"), "{context}");
                expected.told = kind != "pending";
            }
        }
    }
    if !expected.told {
        assert_eq!(Some(rig.kind(id)), expected.outcome, "{context}");
    }
    assert_eq!(rig.cancel(id), None, "a second outcome: {context}");

    // A grant that came to nobody is given back: exactly that token, once.
    let given_back = BTreeMap::from_iter(expected.compensated.then_some((7, 1)));
    assert_eq!(rig.releasing(), given_back, "{context}");
    let compensated = u64::from(expected.compensated);
    assert_eq!(rig.state.counters.compensated, compensated, "{context}");

    // And all of it comes to an end.
    if let Some(other) = other {
        assert_eq!(rig.kind(other), "Indeterminate", "{context}");
    }
    rig.forget(a);
    rig.advance(secs(6));
    rig.assert_idle();
}

#[test]
fn c9_sent_and_given_up_is_indeterminate_and_retires_the_session() {
    for deadline in [false, true] {
        let (mut rig, a) = Rig::one();
        let given_up = rig.acquire("k", 60, 90);
        let other = rig.acquire("l", 60, 90);
        let frames = rig.sent(a);
        let kind = if deadline {
            rig.pass_deadline(given_up)
        } else {
            rig.cancel(given_up)
        };
        assert_eq!(kind, Some("Indeterminate"));
        assert!(rig.is_retired(a));

        // Nothing new is sent on it; a replacement opens without back-off.
        let next = rig.acquire("m", 60, 90);
        assert_eq!(rig.sent(a), []);
        let b = rig.connect();
        assert_eq!(rig.sent_one(b).keys, ["m"]);

        // The others keep their normal outcomes; then it ends.
        assert_eq!(rig.over(a), None);
        rig.reply(a, frames[1].granted(3));
        assert_eq!(rig.kind(other), "Ok");
        assert!(rig.is_ending(a));
        assert_eq!(rig.sent(a), []);
        assert!(
            rig.shut.contains(&a),
            "half-closed, which withdraws the waiter"
        );
        assert_eq!(rig.kind(next), "pending");
    }
}

#[test]
fn c9_alone_on_its_session_it_ends_it_at_once() {
    let (mut rig, a) = Rig::one();
    let id = rig.acquire("k", 60, 90);
    rig.sent_one(a);
    rig.cancel(id);
    assert!(rig.is_ending(a));
    rig.sent(a);
    assert!(rig.shut.contains(&a));
    rig.eof(a);
    assert_eq!(rig.over(a), Some(SessionEnd::Close));
    rig.forget(a);
    rig.assert_idle();
}

#[test]
fn c9_an_answered_release_try_and_other_given_up_requests_hold_no_session_back() {
    let (mut rig, a, b) = Rig::pair();
    // A release that is tried on both sessions and answered on one.
    let cell = rig.release(&["r"], 5);
    let (first, _) = rig.sent_anywhere();
    rig.advance(secs(2));
    let (second, again) = rig.sent_anywhere();
    assert_ne!(first, second);
    let ids = [
        rig.acquire("k", 60, 90),
        rig.acquire("l", 60, 90),
        rig.acquire("m", 60, 90),
        rig.acquire("n", 60, 90),
    ];
    rig.sent_everywhere();
    for id in ids {
        let (sid, _) = rig.on_wire(id).unwrap();
        if sid == first {
            rig.cancel(id);
        }
    }
    assert!(rig.is_retired(first), "the release is still unanswered");
    rig.reply(second, again.released());
    assert_eq!(outcome_of(&cell), "Released");
    assert!(
        rig.is_ending(first),
        "its try here is of no interest any more"
    );
    assert_eq!(BTreeSet::from([a, b]), BTreeSet::from([first, second]));
}

#[test]
fn c9_unsent_requests_of_a_retired_session_go_elsewhere() {
    let (mut rig, a, b) = Rig::pair();
    let ids = ["k", "l"].map(|k| rig.acquire(k, 60, 90));
    rig.sent_everywhere();
    let (sid, _) = rig.on_wire(ids[0]).unwrap();
    let rest = if sid == a { b } else { a };
    // In the outbox of the session that is then retired.
    let unsent = ["m", "n"].map(|k| rig.acquire(k, 60, 90));
    rig.cancel(ids[0]);
    assert_eq!(rig.sent(sid), []);
    let moved: Vec<_> = rig.sent(rest).into_iter().flat_map(|f| f.keys).collect();
    assert_eq!(moved.len(), 2, "{moved:?}");
    assert!(unsent.iter().all(|id| rig.on_wire(*id).unwrap().0 == rest));
}

#[test]
fn c9_the_broker_times_the_wait_and_3_s_later_it_is_given_up() {
    for wait in [0, 7] {
        let (mut rig, a) = Rig::one();
        let id = rig.acquire("k", wait, 90);
        let frame = rig.sent_one(a);
        rig.advance(secs(wait + 3) - ms(1));
        assert_eq!(rig.kind(id), "pending");
        rig.advance(ms(1));
        assert_eq!(rig.kind(id), "Indeterminate");
        assert!(rig.is_ending(a));
        // C10: given up the same way, so its grant is given back.
        rig.reply(a, frame.granted(4));
        assert_eq!(rig.releasing(), BTreeMap::from([(4, 1)]));
    }
}

#[test]
fn c9_the_answer_is_timed_from_the_wait_on_the_wire() {
    let mut rig = Rig::new(1, 8);
    let link = rig.attempt();
    let id = rig.acquire("k", 5, 90);
    rig.advance(ms(3500));
    let a = rig.succeed(link);
    assert_eq!(rig.sent_one(a).wait(), 2);
    rig.advance(ms(4999));
    assert_eq!(rig.kind(id), "pending");
    rig.advance(ms(1));
    assert_eq!(rig.kind(id), "Indeterminate");
}

#[test]
fn c10_a_grant_in_the_same_read_as_other_replies_is_given_back() {
    let (mut rig, a) = Rig::one();
    let ids = ["k", "l", "m"].map(|k| rig.acquire(k, 60, 90));
    let frames = rig.sent(a);
    rig.cancel(ids[1]);
    rig.replies(
        a,
        &[
            frames[0].granted(1),
            frames[1].granted(2),
            frames[2].granted(3),
        ],
    );
    assert_eq!((rig.kind(ids[0]), rig.kind(ids[2])), ("Ok", "Ok"));
    assert_eq!(rig.releasing(), BTreeMap::from([(2, 1)]));
    // It goes to another session and holds its acquire's place until it is finished.
    assert_eq!(rig.state.places, 1);
    let b = rig.connect();
    let release = rig.sent_one(b);
    assert_eq!(
        (release.token(), release.keys.as_slice()),
        (2, ["l".to_owned()].as_slice())
    );
    rig.reply(b, release.released());
    assert_eq!(rig.state.places, 0);
    rig.eof(a);
    rig.forget(a);
    rig.assert_idle();
}

#[test]
fn c10_a_grant_after_the_half_close_is_given_back() {
    let (mut rig, a) = Rig::one();
    let id = rig.acquire("k", 60, 90);
    let frame = rig.sent_one(a);
    rig.cancel(id);
    assert_eq!(rig.sent(a), []);
    assert!(rig.shut.contains(&a));
    rig.advance(ms(999));
    rig.reply(a, frame.granted(9));
    assert_eq!(rig.releasing(), BTreeMap::from([(9, 1)]));
    rig.eof(a);
    let b = rig.connect();
    assert_eq!(rig.sent_one(b).token(), 9);
}

#[test]
fn c10_the_id_of_a_given_up_request_stays_outstanding() {
    // Its late answer of any kind is no violation, and frees its place.
    for reply in [Frame::timed_out, Frame::busy, Frame::indeterminate] {
        let (mut rig, a) = Rig::one();
        let ids = ["k", "l"].map(|k| rig.acquire(k, 60, 90));
        let frames = rig.sent(a);
        rig.cancel(ids[0]);
        assert_eq!(rig.state.places, 2);
        rig.reply(a, reply(&frames[0]));
        assert_eq!((rig.state.places, rig.over(a)), (1, None));
        rig.reply(a, frames[1].timed_out());
        assert_eq!(rig.kind(ids[1]), "Timeout");
        // Once more is one: it is not outstanding any more.
        rig.reply(a, frames[0].timed_out());
        assert_eq!(rig.over(a), Some(SessionEnd::Close));
    }
}

#[test]
fn c10_a_grant_nobody_fetched_is_given_back_at_its_cancellation() {
    let (mut rig, a) = Rig::one();
    let id = rig.acquire("k", 60, 90);
    let frame = rig.sent_one(a);
    rig.reply(a, frame.granted(6));
    assert_eq!(rig.cancel(id), Some("Indeterminate"));
    let release = rig.sent_one(a);
    assert_eq!(release.token(), 6);
    assert!(rig.is_open(a), "an answered request retires nothing");
    // C19: it keeps a place until it is finished.
    assert_eq!(rig.state.places, 1);
    rig.reply(a, release.released());
    assert_eq!(rig.cancel(id), None, "one outcome");
    rig.assert_idle();
}
