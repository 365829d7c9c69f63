//! When connections are opened, and what a rejected token does (C21–C24).

use super::*;

/// Goes on to the next connection attempt; how long that took.
fn next_attempt(rig: &mut Rig) -> (LinkId, Duration) {
    let from = rig.now;
    loop {
        if let Some(link) = rig.due() {
            return (link, from.until(rig.now));
        }
        let at = rig.deadline().expect("it tries again");
        let by = rig.now.until(at);
        rig.advance(by);
    }
}

/// A rig whose second link stays in its attempt.
fn one_link(seed: u64) -> (Rig, LinkId) {
    let mut rig = Rig::seeded(1, 64, seed);
    rig.attempt();
    let link = rig.attempt();
    (rig, link)
}

#[test]
fn c22_back_off_doubles_from_100_ms_to_3_2_s_with_jitter() {
    let mut firsts = Vec::new();
    for seed in 0..20 {
        let (mut rig, mut link) = one_link(seed);
        for n in 0..8u32 {
            rig.fail(link);
            let (next, pause) = next_attempt(&mut rig);
            let full = ms(100 * 2u64.pow(n.min(5)));
            assert!((full / 2..=full).contains(&pause), "{n}: {pause:?}");
            if n == 0 {
                firsts.push(pause);
            }
            link = next;
        }
    }
    firsts.sort_unstable();
    assert!(
        firsts[0] < ms(60) && firsts[19] > ms(90),
        "jitter: {firsts:?}"
    );
}

#[test]
fn c22_a_session_of_1_s_resets_the_back_off_a_shorter_one_does_not() {
    for (lasted, at_most, at_least) in [(ms(1000), 100, 50), (ms(999), 3200, 1600)] {
        let (mut rig, mut link) = one_link(3);
        for _ in 0..7 {
            rig.fail(link);
            link = next_attempt(&mut rig).0;
        }
        let a = rig.succeed(link);
        rig.advance(lasted);
        rig.lose(a);
        rig.forget(a);
        let (_, pause) = next_attempt(&mut rig);
        assert!(
            (ms(at_least)..=ms(at_most)).contains(&pause),
            "{lasted:?}: {pause:?}"
        );
    }
}

#[test]
fn c22_a_broken_peer_never_meets_a_hot_loop() {
    // Accepts and then closes, talks garbage, or refuses everything: few attempts a minute.
    let faults: [fn(&mut Rig, SessionId); 4] = [
        |rig, a| rig.eof(a),
        |rig, a| {
            rig.read(a, b"garbage");
        },
        |rig, a| {
            for frame in rig.sent(a) {
                rig.reply(a, frame.error(ErrorCode::BadKey));
            }
            rig.eof(a);
        },
        |rig, a| {
            for frame in rig.sent(a) {
                rig.reply(a, frame.error(ErrorCode::NotActive));
            }
            rig.eof(a);
        },
    ];
    for (n, fault) in faults.into_iter().enumerate() {
        // Opens, ends and, every other time, fails to connect.
        for flaky in [false, true] {
            let (mut rig, mut link) = one_link(5);
            let (start, mut attempts) = (rig.now, 0);
            while start.until(rig.now) < secs(60) {
                attempts += 1;
                assert!(attempts < 400, "{n} {flaky}");
                if flaky && attempts % 2 == 0 {
                    rig.fail(link);
                } else {
                    let a = rig.succeed(link);
                    rig.acquire("k", 1, 9);
                    fault(&mut rig, a);
                    rig.forget(a);
                }
                link = next_attempt(&mut rig).0;
            }
        }
    }
}

#[test]
fn c22_other_faults_after_refusals_back_off_like_any_other() {
    for connects in [false, true] {
        let (mut rig, link) = one_link(3);
        let id = rig.acquire("k", 200, 9);
        for _ in 0..3 {
            let a = rig.succeed(link);
            let frame = rig.sent_one(a);
            rig.reply(a, frame.error(ErrorCode::NotActive));
            rig.forget(a);
            next_attempt(&mut rig);
        }
        for n in 0..6 {
            if connects {
                let a = rig.succeed(link);
                rig.eof(a);
                rig.forget(a);
            } else {
                rig.fail(link);
            }
            rig.acquire("l", 200, 9); // C14 hastens refused links, not broken ones
            let (_, pause) = next_attempt(&mut rig);
            assert!(pause >= ms(50 * 2u64.pow(n)), "{n}: {pause:?}");
        }
        assert_eq!(rig.kind(id), "pending");
    }
}

#[test]
fn c22_a_retired_session_is_no_fault() {
    let (mut rig, mut link) = one_link(5);
    for _ in 0..6 {
        rig.fail(link);
        link = next_attempt(&mut rig).0;
    }
    let a = rig.succeed(link);
    let id = rig.acquire("k", 60, 90);
    rig.acquire("l", 60, 90);
    rig.sent(a);
    rig.cancel(id);
    assert_eq!(next_attempt(&mut rig), (link, Duration::ZERO));
}

#[test]
fn c23_a_single_broker_is_held_with_two_connections() {
    let (mut rig, a, b) = Rig::pair();
    assert_eq!(rig.due(), None);
    rig.acquire("k", 60, 90);
    let (sid, _) = rig.sent_anywhere();
    // One dropped socket is no outage: the other one takes the next request at once.
    rig.lose(sid);
    let id = rig.acquire("l", 60, 90);
    let rest = a + b - sid;
    let frame = rig.sent_one(rest);
    rig.reply(rest, frame.granted(3));
    assert_eq!(rig.kind(id), "Ok");
}

#[test]
fn c21_readiness_follows_the_usable_sessions() {
    let (mut rig, a) = Rig::one();
    let ready = rig.state.watch_readiness();
    assert_eq!(*ready.borrow(), Readiness::Usable);
    rig.lose(a);
    assert_eq!(*ready.borrow(), Readiness::Waiting);
    rig.succeed(1);
    assert_eq!(*ready.borrow(), Readiness::Usable);
    rig.state.close(rig.now);
    assert_eq!(*ready.borrow(), Readiness::Closed);

    let (mut rig, s) = Rig::cluster(2);
    let ready = rig.state.watch_readiness();
    rig.leader(s[0], Some(1));
    assert_eq!(*ready.borrow(), Readiness::Waiting);
    rig.leader(s[1], Some(1));
    assert_eq!(*ready.borrow(), Readiness::Usable);
    rig.leader(s[1], None);
    assert_eq!(*ready.borrow(), Readiness::Waiting);
}

#[test]
fn c24_a_rejected_token_fails_waiting_and_new_acquires_at_once() {
    for wait in [0, 60] {
        let (mut rig, link) = one_link(5);
        let waiting = rig.acquire("k", wait, 90);
        rig.fail(link);
        assert_eq!(rig.kind(waiting), "pending");
        let (link, _) = next_attempt(&mut rig);
        rig.reject(link);
        assert_eq!(rig.kind(waiting), "Auth");
        let new = rig.acquire("k", wait, 90);
        assert_eq!(rig.kind(new), "Auth");
        // Another failure is news: it may be mended.
        let (link, pause) = next_attempt(&mut rig);
        assert!(
            (ms(1600)..=ms(3200)).contains(&pause),
            "slowest back-off: {pause:?}"
        );
        rig.fail(link);
        let id = rig.acquire("k", 60, 90);
        assert_eq!(rig.kind(id), "pending");
        // And a mended configuration heals without a restart.
        let (link, _) = next_attempt(&mut rig);
        let a = rig.succeed(link);
        assert_eq!(rig.sent(a).len(), 1);
    }
}

#[test]
fn c24_it_goes_on_trying_at_the_slowest_back_off() {
    let (mut rig, mut link) = one_link(5);
    for _ in 0..10 {
        rig.reject(link);
        let (next, pause) = next_attempt(&mut rig);
        assert!((ms(1600)..=ms(3200)).contains(&pause), "{pause:?}");
        link = next;
    }
}

#[test]
fn c24_a_connection_ends_it() {
    let (mut rig, link) = one_link(5);
    rig.reject(link);
    let (link, _) = next_attempt(&mut rig);
    let a = rig.succeed(link);
    rig.lose(a);
    rig.forget(a);
    let id = rig.acquire("k", 60, 90);
    assert_eq!(rig.kind(id), "pending", "the last attempt was let in");
    let (_, pause) = next_attempt(&mut rig);
    assert!(pause <= ms(100), "{pause:?}");
}

#[test]
fn c24_not_while_a_session_is_usable() {
    let (mut rig, a) = Rig::one();
    rig.reject(1);
    let id = rig.acquire("k", 60, 90);
    let frame = rig.sent_one(a);
    rig.reply(a, frame.granted(3));
    assert_eq!(rig.kind(id), "Ok");
}

#[test]
fn c24_when_the_last_usable_session_goes_the_waiting_fail_too() {
    let (mut rig, a) = Rig::one();
    let sent = rig.acquire("k", 60, 90);
    let frame = rig.sent_one(a);
    let unsent = rig.acquire("l", 60, 90);
    rig.reject(1);
    assert_eq!(rig.kind(unsent), "pending");
    rig.reply(a, frame.error(ErrorCode::NotActive));
    assert_eq!((rig.kind(unsent), rig.kind(sent)), ("Auth", "Auth"));
}

#[test]
fn c24_in_a_cluster_every_address_has_to_reject_it() {
    let mut rig = Rig::new(3, 64);
    let links = [rig.attempt(), rig.attempt(), rig.attempt()];
    let id = rig.acquire("k", 60, 90);
    rig.reject(links[0]);
    rig.reject(links[1]);
    assert_eq!(rig.kind(id), "pending");
    rig.reject(links[2]);
    assert_eq!(rig.kind(id), "Auth");
    // Releases go on to their 5 s.
    let cell = rig.release(&["k"], 4);
    rig.advance(ms(4999));
    assert_eq!(outcome_of(&cell), "pending");
    rig.advance(ms(1));
    assert_eq!(outcome_of(&cell), "NotConnected");
}

#[test]
fn c24_a_connected_but_unusable_node_does_not_count_as_rejected() {
    let mut rig = Rig::new(2, 64);
    let links = [rig.attempt(), rig.attempt()];
    rig.reject(links[0]);
    let a = rig.succeed(links[1]);
    let id = rig.acquire("k", 60, 90);
    assert_eq!(rig.kind(id), "pending");
    rig.leader(a, Some(1));
    assert_eq!(rig.sent(a).len(), 1);
}
