//! Whom a cluster's client asks (C14, C13's redirects).

use super::*;

#[test]
fn c14_no_session_is_used_before_its_first_l() {
    let (mut rig, s) = Rig::cluster(3);
    rig.acquire("k", 60, 90);
    assert_eq!(rig.sent_everywhere(), []);
    // Another node's word names the leader, which has not said anything itself yet.
    rig.leader(s[0], Some(1));
    assert_eq!(rig.sent_everywhere(), []);
    rig.leader(s[1], Some(1));
    assert_eq!(rig.sent_one(s[1]).keys, ["k"]);
}

#[test]
fn c14_requests_go_to_the_node_that_names_itself_leader() {
    let (mut rig, s) = Rig::cluster(3);
    rig.leader(s[0], Some(2));
    rig.leader(s[2], Some(2));
    // The word of others does not change that.
    rig.leader(s[1], Some(1)); // a claim does
    rig.leader(s[0], Some(2));
    rig.acquire("k", 60, 90);
    assert_eq!(rig.sent_one(s[1]).keys, ["k"]);
    // When it names another itself, the one named last is asked.
    rig.leader(s[1], Some(0));
    rig.acquire("l", 60, 90);
    assert_eq!(rig.sent_one(s[0]).keys, ["l"]);
}

#[test]
fn c14_else_to_the_one_named_last_and_with_neither_they_stay_unsent() {
    let (mut rig, s) = Rig::cluster(3);
    for sid in &s {
        rig.leader(*sid, None);
    }
    let first = rig.acquire("k", 60, 90);
    assert_eq!(rig.sent_everywhere(), []);
    assert_eq!(rig.kind(first), "pending");
    rig.leader(s[0], Some(2));
    assert_eq!(rig.sent_one(s[2]).keys, ["k"]);
    rig.leader(s[1], Some(0));
    rig.acquire("l", 60, 90);
    assert_eq!(rig.sent_one(s[0]).keys, ["l"]);
    // The node that is asked says that there is none.
    rig.leader(s[0], None);
    rig.acquire("m", 60, 90);
    assert_eq!(rig.sent_everywhere(), []);
}

#[test]
fn c14_a_lost_node_names_itself_no_more() {
    let (mut rig, s) = Rig::cluster(3);
    rig.leader(s[0], Some(0));
    rig.leader(s[1], Some(0));
    rig.leader(s[2], Some(0));
    rig.lose(s[0]);
    rig.forget(s[0]);
    rig.acquire("k", 60, 90);
    assert_eq!(rig.sent_everywhere(), []);
    // Another node's word is enough, as long as that one does not deny it.
    rig.leader(s[1], Some(2));
    assert_eq!(rig.sent_one(s[2]).keys, ["k"]);
}

#[test]
fn c14_a_retired_session_leaves_its_node_the_leader() {
    let (mut rig, s) = Rig::cluster(3);
    rig.leader(s[2], Some(2));
    rig.leader(s[0], Some(0));
    rig.leader(s[1], Some(2)); // what others say counts only where nobody leads
    let given_up = rig.acquire("k", 60, 90);
    rig.sent_one(s[0]);
    rig.leader(s[2], Some(0));
    rig.leader(s[1], Some(2));
    rig.cancel(given_up);
    rig.acquire("l", 60, 90);
    assert_eq!(rig.sent_everywhere(), []);
    let again = rig.connect();
    rig.leader(again, Some(0));
    assert_eq!(rig.sent_one(again).keys, ["l"]);
}

#[test]
fn c14_an_m_steers_the_next_requests_and_its_own_again() {
    let (mut rig, s) = Rig::cluster(3);
    for sid in &s {
        rig.leader(*sid, Some(0));
    }
    let id = rig.acquire("k", 60, 90);
    let frame = rig.sent_one(s[0]);
    rig.reply(s[0], frame.moved(Some(2)));
    assert!(rig.is_ending(s[0]));
    let again = rig.sent_one(s[2]);
    rig.reply(s[2], again.granted(4));
    assert_eq!(rig.kind(id), "Ok");
}

#[test]
fn c14_an_m_that_knows_no_leader_takes_back_its_own_word_alone() {
    for retired in [false, true] {
        let (mut rig, s) = Rig::cluster(3);
        rig.leader(s[0], Some(0));
        rig.leader(s[1], None);
        rig.acquire("k", 60, 90);
        rig.acquire("l", 60, 90);
        let frames = rig.sent(s[0]);
        rig.leader(s[2], Some(1)); // named last, while node 0 leads
        if retired {
            rig.state.retire(rig.now, s[0]);
        }
        rig.reply(s[0], frames[0].moved(None));
        assert_eq!(rig.sent_one(s[1]).keys, ["k"]);
    }
}

#[test]
fn c14_an_m_that_knows_no_leader_leaves_them_unsent() {
    let (mut rig, s) = Rig::cluster(3);
    rig.leader(s[0], Some(0));
    rig.leader(s[1], None);
    rig.leader(s[2], None);
    rig.acquire("k", 60, 90);
    let frame = rig.sent_one(s[0]);
    rig.reply(s[0], frame.moved(None));
    assert_eq!(rig.sent_everywhere(), []);
    rig.leader(s[1], Some(1));
    assert_eq!(rig.sent_one(s[1]).keys, ["k"]);
}

#[test]
fn c14_a_second_m_of_a_wave_steers_too_and_what_was_pinned_is_placed_anew() {
    let (mut rig, s) = Rig::cluster(3);
    for sid in &s {
        rig.leader(*sid, Some(0));
    }
    rig.acquire("k", 60, 90);
    rig.acquire("l", 60, 90);
    let frames = rig.sent(s[0]);
    rig.reply(s[0], frames[0].moved(Some(1)));
    assert_eq!(rig.sent_one(s[1]).keys, ["k"]);
    // A release sent to node 1, and an acquire pinned to it there while its writer is busy.
    rig.release(&["r"], 9);
    rig.hand_over(s[1]).unwrap();
    rig.acquire("r", 60, 90);
    rig.reply(s[0], frames[1].moved(Some(2)));
    rig.state.transmitted(rig.now, s[1]);
    assert_eq!(rig.sent_one(s[2]).keys, ["l"]);
    // The release is unfinished on node 1, where nothing goes any more: the acquire waits.
    assert_eq!(rig.sent_everywhere(), []);
}

#[test]
fn c14_a_slot_outside_the_address_list_ends_the_session_at_once() {
    for moved in [false, true] {
        let (mut rig, s) = Rig::cluster(3);
        rig.leader(s[0], Some(0));
        rig.acquire("k", 60, 90);
        let frame = rig.sent_one(s[0]);
        let reply = match moved {
            true => frame.moved(Some(3)),
            false => Reply::Leader { slot: Slot::new(3) },
        };
        rig.reply(s[0], reply);
        assert_eq!(rig.over(s[0]), Some(SessionEnd::Close));
    }
}

#[test]
fn c14_one_session_to_each_node() {
    let (mut rig, s) = Rig::cluster(5);
    assert_eq!(rig.due(), None);
    let nodes: BTreeSet<usize> = s.iter().map(|sid| rig.state.sessions[sid].node).collect();
    assert_eq!(nodes, BTreeSet::from([0, 1, 2, 3, 4]));
}

#[test]
fn c14_an_acquire_waits_for_its_release_across_a_change_of_leader() {
    let (mut rig, s) = Rig::cluster(2);
    rig.leader(s[0], Some(0));
    rig.leader(s[1], Some(0));
    rig.release(&["k"], 7);
    let release = rig.sent_one(s[0]);
    rig.leader(s[1], Some(1));
    let id = rig.acquire("k", 0, 90);
    assert_eq!(rig.sent_everywhere(), []);
    // The old leader refuses the release; it goes to the new one, the acquire right behind it.
    rig.reply(s[0], release.moved(Some(1)));
    let frames = rig.sent(s[1]);
    assert_eq!(frames.len(), 2);
    assert!(!frames[0].is_acquire() && frames[1].is_acquire());
    assert_eq!(rig.kind(id), "pending");
}

/// How long until the link of a session that was just refused opens again.
fn pause(rig: &mut Rig) -> Duration {
    let from = rig.now;
    loop {
        if rig.due().is_some() {
            return from.until(rig.now);
        }
        let at = rig.deadline().expect("it opens again");
        let by = rig.now.until(at);
        rig.advance(by);
    }
}

#[test]
fn c14_the_first_reconnect_after_a_refusal_is_immediate_further_ones_are_spread() {
    let mut pauses = Vec::new();
    for seed in 0..20 {
        let mut rig = Rig::seeded(1, 64, seed);
        rig.attempt(); // the other link stays in its attempt
        let link = rig.attempt();
        let id = rig.acquire("k", 60, 90);
        let mut sid = rig.succeed(link);
        for n in 0..4 {
            let frame = rig.sent_one(sid);
            rig.reply(sid, frame.error(ErrorCode::NotActive));
            let took = pause(&mut rig);
            if n == 0 {
                assert_eq!(took, Duration::ZERO);
            } else {
                assert!((ms(100)..=ms(500)).contains(&took), "{took:?}");
                pauses.push(took);
            }
            sid = rig.succeed(link);
        }
        assert_eq!(rig.kind(id), "pending");
    }
    pauses.sort_unstable();
    assert!(
        pauses[0] < ms(150) && pauses[59] > ms(450),
        "jitter: {pauses:?}"
    );
}

#[test]
fn c14_a_session_of_1_s_makes_the_next_refusal_a_first_one() {
    let mut rig = Rig::new(1, 64);
    rig.attempt();
    let link = rig.attempt();
    rig.acquire("k", 60, 90);
    let mut sid = rig.succeed(link);
    for _ in 0..3 {
        let frame = rig.sent_one(sid);
        rig.advance(secs(1));
        rig.reply(sid, frame.error(ErrorCode::NotActive));
        assert_eq!(pause(&mut rig), Duration::ZERO);
        sid = rig.succeed(link);
    }
}

/// Opens the link for an acquire that is refused when its wait is over: then nothing waits.
fn refuse_the_last(rig: &mut Rig, link: LinkId) {
    let id = rig.acquire("k", 1, 90);
    rig.advance(ms(900));
    let sid = rig.succeed(link);
    let frame = rig.sent_one(sid);
    rig.advance(ms(200));
    rig.reply(sid, frame.error(ErrorCode::NotActive));
    assert_eq!(rig.kind(id), "NotConnected");
}

#[test]
fn c14_a_refused_link_without_requests_backs_off_until_one_comes() {
    for release in [false, true] {
        let mut rig = Rig::new(1, 64);
        rig.attempt();
        let link = rig.attempt();
        for _ in 0..9 {
            refuse_the_last(&mut rig, link);
            pause(&mut rig);
        }
        refuse_the_last(&mut rig, link);
        rig.advance(ms(501));
        assert_eq!(rig.due(), None, "slowest back-off: at least 1.6 s");
        if release {
            rig.release(&["k"], 7);
        } else {
            rig.acquire("k", 60, 90);
        }
        let took = pause(&mut rig);
        assert!((ms(100)..=ms(500)).contains(&took), "{took:?}");
    }
}
