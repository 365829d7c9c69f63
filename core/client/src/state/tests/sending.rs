//! What is sent when, and what happens to what is not (C1, C7, C8, C15, C25, C26).

use super::*;

#[test]
fn c1_wait_0_is_one_attempt_that_never_queues() {
    let (mut rig, a) = Rig::one();
    let id = rig.acquire("k", 0, 10);
    let frame = rig.sent_one(a);
    assert_eq!(frame.wait(), 0);
    rig.reply(a, frame.timed_out());
    assert_eq!(rig.kind(id), "Timeout");
    rig.advance(secs(20));
    assert_eq!(rig.sent(a), []);
    rig.assert_idle();
}

#[test]
fn c1_wait_0_without_a_place_fails_at_once() {
    let mut rig = Rig::new(1, 1);
    let a = rig.connect();
    let first = rig.acquire("k", 9, 10);
    assert_eq!(rig.sent(a).len(), 1);
    let second = rig.acquire("l", 0, 10);
    assert_eq!(rig.kind(second), "ClientCapacity");
    assert_eq!(rig.kind(first), "pending");
}

#[test]
fn c7_handing_over_is_the_line_between_unsent_and_sent() {
    // However far the bytes get: the cancellation comes before, while and after they leave.
    for cancel_at in 0..4 {
        let (mut rig, a) = Rig::one();
        let id = rig.acquire("k", 5, 10);
        let mut kinds = Vec::new();
        let mut step = |rig: &mut Rig, n: usize| {
            if n == cancel_at {
                kinds.push(rig.cancel(id).unwrap());
            }
        };
        step(&mut rig, 0);
        let handed = rig.hand_over(a).unwrap_or_default().len();
        step(&mut rig, 1); // not one byte has left
        rig.stop(ms(1));
        step(&mut rig, 2);
        rig.state.transmitted(rig.now, a);
        step(&mut rig, 3);
        let expected = if cancel_at == 0 {
            "Cancelled"
        } else {
            "Indeterminate"
        };
        assert_eq!(
            (kinds, handed),
            (vec![expected], usize::from(cancel_at > 0))
        );
        rig.lose(a);
        rig.forget(a);
        rig.assert_idle();
    }
}

#[test]
fn c7_what_is_handed_over_counts_as_sent_even_if_the_write_fails() {
    let (mut rig, a) = Rig::one();
    let id = rig.acquire("k", 5, 10);
    assert_eq!(rig.hand_over(a).unwrap().len(), 1);
    rig.lose(a); // the write came back with an error: 0 bytes or all of them, nobody knows
    assert_eq!(rig.kind(id), "Indeterminate");
    rig.forget(a);
    rig.assert_idle();
}

#[test]
fn c7_nothing_is_assigned_to_a_session_that_still_writes() {
    // It would count as waiting in a socket buffer that may never drain.
    let (mut rig, a) = Rig::one();
    rig.acquire("k", 5, 10);
    rig.hand_over(a).unwrap();
    let second = rig.acquire("l", 5, 10);
    let b = rig.succeed(1);
    assert_eq!(rig.sent_one(b).keys, ["l"]);
    let third = rig.acquire("m", 5, 10);
    assert_eq!(rig.sent_one(b).keys, ["m"]);
    assert_eq!((rig.kind(second), rig.kind(third)), ("pending", "pending"));
}

#[test]
fn c8_unsent_and_cancelled_never_reaches_the_transport() {
    // Unsent for want of a session, for want of a place, in an outbox, and behind a release.
    for case in ["no session", "no place", "outbox", "held"] {
        for deadline in [false, true] {
            let mut rig = Rig::new(1, 1);
            let mut sent = 0;
            if case != "no session" {
                let a = rig.connect();
                if case == "no place" {
                    rig.acquire("k", 9, 10);
                    sent = rig.sent(a).len();
                }
                if case == "held" {
                    rig.release(&["k"], 7);
                    sent = rig.sent(a).len();
                    let frame_session_is_retired = a;
                    rig.state.retire(rig.now, frame_session_is_retired);
                }
            }
            let id = rig.acquire("k", 9, 10);
            let kind = if deadline {
                rig.pass_deadline(id)
            } else {
                rig.cancel(id)
            };
            let expected = if deadline { "Timeout" } else { "Cancelled" };
            assert_eq!(kind, Some(expected), "{case}");
            let all = rig.sent_everywhere();
            assert_eq!(all, [], "{case}, after {sent} before");
            assert_eq!(rig.state.counters.given_up, 0);
        }
    }
}

#[test]
fn c8_wait_ends_unsent_for_want_of_a_session() {
    let mut rig = Rig::new(1, 8);
    let link = rig.attempt();
    rig.attempt();
    let id = rig.acquire("k", 2, 10);
    rig.fail(link);
    rig.advance(ms(1999));
    assert_eq!(rig.kind(id), "pending");
    rig.advance(ms(1));
    let detail = rig.detail(id);
    assert!(
        detail.contains("not connected") && detail.contains("refused"),
        "{detail}"
    );
    // A session that comes too late sends nothing of it.
    let b = rig.succeed(1);
    assert_eq!(rig.sent(b), []);
    rig.assert_idle();
}

#[test]
fn c8_wait_ends_unsent_for_want_of_a_place() {
    let mut rig = Rig::new(1, 1);
    let a = rig.connect();
    rig.attempt();
    let first = rig.acquire("k", 9, 10);
    let frame = rig.sent_one(a);
    let second = rig.acquire("l", 2, 10);
    rig.advance(ms(1999));
    assert_eq!(rig.kind(second), "pending");
    rig.advance(ms(1));
    assert_eq!(rig.kind(second), "ClientCapacity");
    rig.reply(a, frame.timed_out());
    assert_eq!((rig.kind(first), rig.sent(a)), ("Timeout", vec![]));
    rig.assert_idle();
}

#[test]
fn c8_without_a_session_the_want_of_a_place_is_not_the_reason() {
    for wait in [0, 1] {
        let mut rig = Rig::new(1, 1);
        let a = rig.connect();
        rig.attempt();
        rig.acquire("k", 60, 90);
        rig.sent_one(a);
        rig.state.retire(rig.now, a);
        let id = rig.acquire("l", wait, 90);
        assert_eq!(rig.kind(id), "pending");
        rig.advance(secs(if wait == 0 { 5 } else { wait }));
        assert_eq!(rig.kind(id), "NotConnected");
    }
}

#[test]
fn c8_a_wait_that_ended_while_the_process_was_stopped_is_not_sent() {
    let mut rig = Rig::new(1, 1);
    let a = rig.connect();
    rig.attempt();
    let first = rig.acquire("k", 2, 10);
    let second = rig.acquire("l", 60, 90);
    rig.stop(secs(2)); // in the outbox meanwhile; the writer runs before the timers
    // The place goes to the next one in the same go.
    assert_eq!(rig.sent_one(a).keys, ["l"]);
    rig.tick();
    assert_eq!(rig.kind(first), "NotConnected");
    assert_eq!(rig.kind(second), "pending");
}

#[test]
fn c8_the_wait_on_the_wire_is_what_is_left_rounded_up() {
    let mut rig = Rig::new(1, 8);
    let link = rig.attempt();
    rig.acquire("k", 5, 10);
    rig.acquire("l", 3, 10);
    rig.advance(ms(2001));
    let a = rig.succeed(link);
    let waits: Vec<u8> = rig.sent(a).iter().map(Frame::wait).collect();
    assert_eq!(waits, [3, 1]);
}

#[test]
fn c15_replies_are_matched_by_id_in_any_order() {
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let (mut rig, a) = Rig::one();
        let ids = ["k", "l", "m"].map(|k| rig.acquire(k, 5, 10));
        let frames = rig.sent(a);
        for i in order {
            rig.reply(a, frames[i].granted(i as u64 + 1));
        }
        for (i, id) in ids.into_iter().enumerate() {
            let grant = rig.outcome(id).unwrap().unwrap();
            assert_eq!(grant.token.get(), i as u64 + 1);
            assert_eq!(
                grant.keys.as_keys().iter().next().unwrap().as_str(),
                ["k", "l", "m"][i]
            );
        }
        rig.assert_idle();
    }
}

#[test]
fn c15_replies_arrive_in_pieces_of_any_size() {
    let (mut rig, a) = Rig::one();
    let ids: Vec<_> = (0..40)
        .map(|i| rig.acquire(&format!("k{i}"), 5, 10))
        .collect();
    let frames = rig.sent(a);
    let mut bytes = Vec::new();
    for (i, frame) in frames.iter().enumerate() {
        match i % 3 {
            0 => frame.granted(i as u64 + 1).encode(&mut bytes),
            1 => frame.timed_out().encode(&mut bytes),
            _ => frame.busy().encode(&mut bytes),
        }
    }
    let ends: BTreeSet<usize> = (0..40)
        .scan(0, |end, i| {
            *end += if i % 3 == 0 { 19 } else { 11 };
            Some(*end)
        })
        .collect();
    let (mut at, mut size) = (0, 1);
    while at < bytes.len() {
        let to = (at + size).min(bytes.len());
        let half_read = rig.read(a, &bytes[at..to]);
        assert_eq!(half_read, !ends.contains(&to), "at {to}");
        (at, size) = (to, size % 50 + 1);
    }
    for (i, id) in ids.into_iter().enumerate() {
        assert_eq!(rig.kind(id), ["Ok", "Timeout", "Busy"][i % 3]);
    }
    assert!(rig.is_open(a));
}

#[test]
fn c25_with_wait_0_it_waits_5_s_for_a_session() {
    for (late, kind) in [(ms(4999), "pending"), (ms(5000), "NotConnected")] {
        let mut rig = Rig::new(1, 8);
        let link = rig.attempt();
        rig.attempt();
        let id = rig.acquire("k", 0, 10);
        rig.advance(late);
        assert_eq!(rig.kind(id), kind);
        let a = rig.succeed(link);
        let waits: Vec<u8> = rig.sent(a).iter().map(Frame::wait).collect();
        assert_eq!(waits, if kind == "pending" { vec![0] } else { vec![] });
    }
}

#[test]
fn c25_the_last_connection_error_is_in_the_message() {
    let (mut rig, a) = Rig::one();
    rig.lose(a);
    rig.forget(a);
    let id = rig.acquire("k", 1, 10);
    rig.advance(secs(1));
    let detail = rig.detail(id);
    assert!(detail.contains("reset by the peer"), "{detail}");
}

#[test]
fn c26_at_most_max_pending_acquires_are_outstanding() {
    let mut rig = Rig::new(1, 3);
    let (a, b) = (rig.connect(), rig.connect());
    let ids: Vec<_> = (0..5)
        .map(|i| rig.acquire(&format!("k{i}"), 9, 20))
        .collect();
    let sent = rig.sent_everywhere();
    assert_eq!(sent.len(), 3);
    assert_eq!(rig.state.places, 3);
    // Whatever frees a place lets the oldest one go: an answer, a cancellation does not.
    rig.reply(sent[0].0, sent[0].1.timed_out());
    assert_eq!(rig.sent_anywhere().1.keys, ["k3"]);
    rig.cancel(ids[2]);
    assert_eq!(
        rig.sent_everywhere(),
        [],
        "a given-up request keeps its place"
    );
    assert_eq!((a, b), (1, 2));
}

#[test]
fn c26_a_waiting_acquire_that_leaves_lets_the_next_one_go() {
    let mut rig = Rig::new(1, 1);
    let a = rig.connect();
    let first = rig.acquire("k", 9, 20);
    let second = rig.acquire("l", 9, 20);
    let third = rig.acquire("m", 9, 20);
    assert_eq!(rig.cancel(second), Some("Cancelled"));
    let frame = rig.sent_one(a);
    rig.reply(a, frame.busy());
    assert_eq!((rig.kind(first), rig.kind(third)), ("Busy", "pending"));
    assert_eq!(rig.sent_one(a).keys, ["m"]);
}

#[test]
fn c26_releases_have_128_places_of_their_own() {
    let mut rig = Rig::new(1, 1);
    let a = rig.connect();
    rig.acquire("k", 9, 20);
    let cells: Vec<_> = (0..130)
        .map(|i| rig.release(&[&format!("r{i}")], i + 1))
        .collect();
    let frames = rig.sent(a);
    assert_eq!(frames.len(), 1 + 128);
    assert_eq!(rig.sent(a), []);
    let last = frames.last().unwrap();
    rig.reply(a, last.released());
    assert_eq!(rig.sent_one(a).token(), 129);
    assert_eq!(outcome_of(&cells[127]), "Released");
    assert_eq!(outcome_of(&cells[129]), "pending");
}
