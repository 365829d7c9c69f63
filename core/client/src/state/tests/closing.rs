//! The end of a broker object (C27).

use super::*;

fn close(rig: &mut Rig) {
    rig.state.close(rig.now);
}

#[test]
fn c27_new_and_unsent_acquires_get_closed_sent_ones_indeterminate() {
    let mut rig = Rig::new(1, 1);
    let a = rig.connect();
    rig.attempt();
    let sent = rig.acquire("k", 60, 90);
    rig.sent_one(a);
    let no_place = rig.acquire("l", 60, 90);
    rig.release(&["m"], 4);
    let held = rig.acquire("m", 60, 90);
    close(&mut rig);
    let new = rig.acquire("n", 60, 90);
    assert_eq!(rig.kind(sent), "Indeterminate");
    for id in [no_place, held, new] {
        assert_eq!(rig.kind(id), "Closed");
    }
    assert!(rig.is_ending(a), "C13a");
    assert_eq!(rig.sent(a), []);
    assert!(rig.shut.contains(&a));
}

#[test]
fn c27_an_acquire_in_an_outbox_is_unsent() {
    let (mut rig, a) = Rig::one();
    let id = rig.acquire("k", 60, 90);
    close(&mut rig);
    assert_eq!(rig.kind(id), "Closed");
    assert_eq!(rig.sent(a), []);
}

#[test]
fn c27_an_outcome_that_is_there_is_not_taken_away() {
    let (mut rig, a) = Rig::one();
    let ids = ["k", "l"].map(|k| rig.acquire(k, 60, 90));
    let frames = rig.sent(a);
    rig.reply(a, frames[0].granted(3));
    rig.reply(a, frames[1].busy());
    close(&mut rig);
    assert_eq!(rig.kind(ids[0]), "Ok", "the ticket stays valid");
    assert_eq!(rig.kind(ids[1]), "Busy");
}

#[test]
fn c27_without_anything_to_do_it_closes_as_soon_as_the_sockets_are_gone() {
    let (mut rig, a, b) = Rig::pair();
    close(&mut rig);
    assert!(rig.is_ending(a) && rig.is_ending(b));
    assert!(!rig.state.is_closed());
    for sid in [a, b] {
        rig.sent(sid);
        assert!(rig.shut.contains(&sid));
        rig.eof(sid);
        assert_eq!(rig.over(sid), Some(SessionEnd::Close));
        rig.forget(sid);
    }
    assert!(rig.state.is_closed() && rig.driver_knows());
    assert_eq!(rig.deadline(), None, "no timer is left");
    assert_eq!(rig.due(), None);
    rig.assert_idle();
}

#[test]
fn c27_without_any_session_it_is_closed_at_once() {
    for attempts in 0..3 {
        let mut rig = Rig::new(1, 8);
        for _ in 0..attempts {
            rig.attempt();
        }
        close(&mut rig);
        assert!(rig.state.is_closed());
        assert_eq!(rig.due(), None);
        rig.assert_idle();
    }
}

#[test]
fn c27_a_peer_that_ignores_the_half_close_delays_it_by_1_s() {
    let (mut rig, a, b) = Rig::pair();
    close(&mut rig);
    rig.advance(secs(1));
    for sid in [a, b] {
        assert_eq!(rig.over(sid), Some(SessionEnd::Reset));
        rig.forget(sid);
    }
    assert!(rig.state.is_closed());
}

#[test]
fn c27_releases_are_finished_first_also_those_called_meanwhile() {
    let (mut rig, a, b) = Rig::pair();
    let explicit = rig.release(&["k"], 3);
    let automatic = rig.release_as(&["l"], 4, Origin::Automatic);
    close(&mut rig);
    let late = rig.release(&["m"], 5);
    let sent = rig.sent_everywhere();
    assert_eq!(sent.len(), 3);
    assert!(rig.is_open(a) && rig.is_open(b));
    for (sid, frame) in sent {
        assert!(!rig.is_ending(a));
        rig.reply(sid, frame.released());
    }
    for cell in [explicit, automatic, late] {
        assert_eq!(outcome_of(&cell), "Released");
    }
    assert!(rig.is_ending(a) && rig.is_ending(b));
}

#[test]
fn c27_grants_of_given_up_acquires_are_still_given_back() {
    // With a session left that can carry the release, and without one.
    for other in [false, true] {
        let (mut rig, a) = Rig::one();
        let id = rig.acquire("k", 60, 90);
        let frame = rig.sent_one(a);
        let b = if other { Some(rig.succeed(1)) } else { None };
        close(&mut rig);
        assert!(rig.is_ending(a));
        rig.advance(ms(500));
        rig.reply(a, frame.granted(9));
        rig.eof(a);
        rig.forget(a);
        let b = b.unwrap_or_else(|| {
            // The other link is in its attempt already.
            assert_eq!(rig.due(), None);
            rig.succeed(1)
        });
        let release = rig.sent_one(b);
        assert_eq!(release.token(), 9);
        rig.reply(b, release.released());
        assert!(rig.is_ending(b));
        rig.eof(b);
        rig.forget(b);
        assert!(rig.state.is_closed());
        assert_eq!(rig.kind(id), "Indeterminate");
        rig.assert_idle();
    }
}

#[test]
fn c27_while_releases_remain_one_session_is_opened_at_once() {
    let mut rig = Rig::new(1, 8);
    for _ in 0..2 {
        let link = rig.attempt();
        rig.fail(link); // both back off
    }
    let cell = rig.release(&["k"], 3);
    close(&mut rig);
    let link = rig.attempt();
    assert_eq!(rig.due(), None, "one, for the releases alone");
    let a = rig.succeed(link);
    let frame = rig.sent_one(a);
    rig.reply(a, frame.released());
    assert_eq!(outcome_of(&cell), "Released");
    assert!(rig.is_ending(a));
}

#[test]
fn c27_while_a_session_is_usable_none_is_opened() {
    let (mut rig, a, b) = Rig::pair();
    rig.release(&["k"], 3);
    let (sid, _) = rig.sent_anywhere();
    close(&mut rig);
    let other = a + b - sid;
    rig.lose(other);
    rig.forget(other);
    rig.advance(secs(1));
    assert_eq!(rig.due(), None);
}

#[test]
fn c27_once_the_releases_are_finished_nothing_more_is_opened() {
    let (mut rig, a) = Rig::one();
    let cell = rig.release(&["k"], 3);
    rig.sent_one(a);
    close(&mut rig);
    rig.lose(a); // its link backs off
    rig.forget(a);
    let b = rig.succeed(1);
    let again = rig.sent_one(b);
    rig.reply(b, again.released());
    assert_eq!(outcome_of(&cell), "Released");
    rig.advance(ms(500));
    assert_eq!(rig.due(), None);
}

#[test]
fn c27_the_sessions_that_it_ends_itself_are_no_faults() {
    let (mut rig, a, b) = Rig::pair();
    let ids = ["k", "l"].map(|k| rig.acquire(k, 60, 90));
    let cell = rig.release(&["r"], 3);
    rig.sent_everywhere();
    close(&mut rig);
    assert!(
        rig.is_ending(a) && rig.is_ending(b),
        "both have a given-up acquire"
    );
    assert!(rig.due().is_some(), "at once, for the release");
    assert_eq!(outcome_of(&cell), "pending");
    assert_eq!(ids.map(|id| rig.kind(id)), ["Indeterminate"; 2]);
}

#[test]
fn c27_in_a_cluster_the_one_that_can_take_the_releases_is_opened() {
    // Node 0 is connected and does not lead; node 1 led and is down.
    let (mut rig, s) = Rig::cluster(2);
    rig.leader(s[0], Some(1));
    rig.leader(s[1], Some(1));
    let cell = rig.release(&["k"], 3);
    rig.sent_one(s[1]);
    close(&mut rig);
    rig.lose(s[1]);
    rig.forget(s[1]);
    rig.advance(ms(100));
    let link = rig.attempt();
    assert_eq!(rig.state.node_of(link), 1);
    let b = rig.succeed(link);
    rig.leader(b, Some(1));
    let frame = rig.sent_one(b);
    rig.reply(b, frame.released());
    assert_eq!(outcome_of(&cell), "Released");
    assert!(rig.is_ending(s[0]) && rig.is_ending(b));
}

#[test]
fn c27_in_a_cluster_without_a_session_every_node_may_tell_who_leads() {
    let mut rig = Rig::new(3, 8);
    for _ in 0..3 {
        let link = rig.attempt();
        rig.fail(link);
    }
    let cell = rig.release(&["k"], 3);
    close(&mut rig);
    let mut led = None;
    for _ in 0..3 {
        let link = rig.attempt();
        if rig.state.node_of(link) == 2 {
            let sid = rig.succeed(link);
            rig.leader(sid, Some(2));
            led = Some(sid);
        } else {
            rig.fail(link);
        }
    }
    let sid = led.expect("node 2 was tried");
    let frame = rig.sent_one(sid);
    rig.reply(sid, frame.released());
    assert_eq!(outcome_of(&cell), "Released");
}

#[test]
fn c27_a_broken_peer_meets_no_hot_loop_at_the_end_either() {
    let mut rig = Rig::new(1, 8);
    let cell = rig.release(&["k"], 3);
    close(&mut rig);
    let mut attempts = 0;
    while !rig.state.is_closed() {
        while let Some(link) = rig.due() {
            attempts += 1;
            assert!(attempts < 60);
            let a = rig.succeed(link);
            rig.eof(a); // accepts and closes
            rig.forget(a);
        }
        if let Some(at) = rig.deadline() {
            let by = rig.now.until(at);
            rig.advance(by);
        }
    }
    assert!(attempts > 3, "and it goes on trying: {attempts}");
    assert_eq!(outcome_of(&cell), "NotConnected");
}

#[test]
fn c27_a_session_lost_meanwhile_is_replaced_for_the_releases() {
    let (mut rig, a, b) = Rig::pair();
    let cell = rig.release(&["k"], 3);
    close(&mut rig);
    rig.sent_everywhere();
    for sid in [a, b] {
        rig.lose(sid);
        rig.forget(sid);
    }
    rig.advance(ms(100));
    let link = rig.attempt();
    let c = rig.succeed(link);
    let again = rig.sent_one(c);
    rig.reply(c, again.not_current());
    assert_eq!(outcome_of(&cell), "NotCurrent");
}

#[test]
fn c27_at_5_s_what_is_unfinished_ends_as_in_c19_and_all_is_gone() {
    let (mut rig, a) = Rig::one();
    let sent = rig.release(&["k"], 3);
    rig.sent_one(a);
    rig.state.retire(rig.now, a); // so that the next ones can't be sent
    rig.attempt();
    let unsent = rig.release(&["l"], 4);
    rig.advance(secs(1));
    close(&mut rig);
    rig.advance(secs(2));
    let late = rig.release(&["m"], 5);
    rig.advance(secs(2) - ms(1));
    assert_eq!(outcome_of(&sent), "pending");
    rig.advance(ms(1)); // their own 5 s
    assert_eq!(outcome_of(&sent), "Indeterminate");
    assert_eq!(outcome_of(&unsent), "NotConnected");
    rig.advance(ms(999));
    assert_eq!(
        (outcome_of(&late), rig.state.is_closed()),
        ("pending", false)
    );
    rig.advance(ms(1));
    assert_eq!(outcome_of(&late), "NotConnected");
    assert!(rig.state.is_closed());
    assert!(rig.over(a).is_some());
    assert_eq!(rig.deadline(), None);
    rig.forget(a);
    rig.assert_idle();
}

#[test]
fn c27_then_a_release_says_closed() {
    let (mut rig, a) = Rig::one();
    rig.lose(a);
    rig.forget(a);
    close(&mut rig);
    assert!(rig.state.is_closed());
    for origin in [Origin::Explicit, Origin::Automatic] {
        let cell = rig.release_as(&["k"], 3, origin);
        assert_eq!(outcome_of(&cell), "Closed");
    }
    rig.assert_idle();
}

#[test]
fn c27_a_grant_taken_too_late_after_the_end_leaves_nothing() {
    for cancel in [false, true] {
        let (mut rig, a) = Rig::one();
        let id = rig.acquire("k", 60, 90);
        let frame = rig.sent_one(a);
        rig.reply(a, frame.granted(3));
        close(&mut rig);
        rig.eof(a);
        rig.forget(a);
        assert!(rig.state.is_closed());
        if cancel {
            assert_eq!(rig.cancel(id), Some("Indeterminate"));
        } else {
            rig.stop(secs(90));
            assert_eq!(rig.kind(id), "InsufficientLease");
        }
        rig.assert_idle();
    }
}

#[test]
fn c27_closing_twice_is_fine_and_extends_nothing() {
    let (mut rig, a) = Rig::one();
    let cell = rig.release(&["k"], 3);
    rig.sent_one(a);
    close(&mut rig);
    rig.advance(secs(4));
    close(&mut rig);
    rig.advance(secs(1));
    assert!(rig.state.is_closed());
    close(&mut rig);
    assert_eq!(outcome_of(&cell), "Indeterminate");
}

#[test]
fn c27_a_connection_that_comes_too_late_is_not_wanted() {
    let (mut rig, a) = Rig::one();
    close(&mut rig);
    assert!(rig.state.connected(rig.now, 1).is_none());
    rig.eof(a);
    rig.forget(a);
    assert!(rig.state.is_closed());
    assert!(rig.state.connected(rig.now, 0).is_none());
    rig.assert_idle();
}

#[test]
fn c27_a_failed_connection_meanwhile_opens_nothing_more() {
    let (mut rig, a) = Rig::one();
    close(&mut rig);
    rig.fail(1);
    rig.advance(ms(900));
    assert_eq!(rig.due(), None);
    assert!(rig.is_ending(a));
}

#[test]
fn c27_when_the_driver_goes_by_itself_nothing_waits_for_ever() {
    let (mut rig, a) = Rig::one();
    let ids = ["k", "l"].map(|k| rig.acquire(k, 60, 90));
    rig.hand_over(a).unwrap();
    let cell = rig.release(&["r"], 3);
    let gone = rig.state.watch_gone();
    rig.state.driver_gone(rig.now);
    assert!(*gone.borrow());
    assert_eq!(
        (rig.kind(ids[0]), rig.kind(ids[1])),
        ("Indeterminate", "Indeterminate")
    );
    assert_eq!(outcome_of(&cell), "NotConnected");
    rig.forget(a);
    rig.assert_idle();
}
