//! A random consumer: submits, cancels, torn and late drains, replies held back, every kind of
//! end; judged by the ledger. Each tag ends once, each grant goes to one place.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use proptest::prelude::*;
use ticketing_ffi::*;

use crate::common::{SOON, Server, encoded, options};
use crate::relay::Relay;

const KEYS: [&str; 3] = ["a", "b", "c"];

#[derive(Debug, Clone)]
enum Op {
    Acquire {
        keys: Vec<usize>,
        wait_ms: i64,
    },
    Cancel(usize),
    /// What is acted on of what was taken, in quarters.
    Drain {
        max: u32,
        timeout_ms: i64,
        acted: usize,
    },
    Release(usize),
    Drop(usize),
    Hold(bool),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Ending {
    Drained,
    QueueClosed,
    BrokerClosed,
    BrokerDropped,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let keys = prop::collection::vec(0..KEYS.len(), 1..3);
    let op = prop_oneof![
        6 => (keys, prop_oneof![Just(0), Just(1_000)]).prop_map(|(keys, wait_ms)| Op::Acquire { keys, wait_ms }),
        3 => (0..100_usize).prop_map(Op::Cancel),
        6 => (1..5_u32, 0..4_i64, 0..5_usize).prop_map(|(max, timeout_ms, acted)| Op::Drain { max, timeout_ms, acted }),
        2 => (0..100_usize).prop_map(Op::Release),
        2 => (0..100_usize).prop_map(Op::Drop),
        2 => any::<bool>().prop_map(Op::Hold),
    ];
    prop::collection::vec(op, 1..60)
}

#[derive(Debug)]
struct Call {
    cancelled: bool,
    /// The keys of an acquire.
    keys: Option<Vec<&'static str>>,
    ends: u32,
}

struct Rig {
    broker: i64,
    queue: i64,
    seen: i64,
    last_tag: i64,
    calls: BTreeMap<i64, Call>,
    handed: BTreeMap<i64, Completion>,
    /// Tickets that were acted on and not given up since.
    held: BTreeMap<i64, Vec<&'static str>>,
    tokens: BTreeSet<u64>,
    closing: bool,
    /// Keys of tickets that were taken while their broker object closed: a release may come too
    /// late for it, and then they stay until their lease ends (C27).
    stranded: usize,
}

impl Rig {
    fn call(&mut self, keys: Option<Vec<&'static str>>) -> i64 {
        self.last_tag += 1;
        self.calls.insert(
            self.last_tag,
            Call {
                cancelled: false,
                keys,
                ends: 0,
            },
        );
        self.last_tag
    }

    fn acquire(&mut self, keys: &[usize], wait_ms: i64) {
        let mut keys: Vec<&str> = keys.iter().map(|n| KEYS[*n]).collect();
        let bytes = encoded(&keys);
        keys.sort_unstable();
        keys.dedup();
        let tag = self.call(Some(keys));
        submit_acquire(self.broker, self.queue, tag, &bytes, wait_ms, 200_000, 0);
    }

    fn cancel(&mut self, nth: usize) {
        let count = self.calls.len().max(1);
        if let Some((tag, call)) = self.calls.iter_mut().nth(nth % count) {
            cancel(self.queue, *tag);
            call.cancelled = true;
        }
    }

    fn drain(&mut self, max: u32, timeout_ms: i64, acted: usize) {
        let taken = queue_next(self.queue, self.seen, max, timeout_ms);
        assert!(taken.len() <= max as usize);
        for (completion, seq) in taken.iter().zip(self.seen + 1..) {
            assert_eq!(completion.seq, seq, "none is left out");
            self.judge(completion);
        }
        let acted = taken.len() * acted.min(4) / 4;
        for completion in taken.into_iter().take(acted) {
            self.act(&completion);
        }
    }

    fn judge(&mut self, now: &Completion) {
        let call = &self.calls[&now.tag];
        if let Outcome::Granted { ticket, .. } = now.outcome {
            assert!(!call.cancelled, "granted after its cancel");
            assert_eq!(ticket_keys(ticket), *call.keys.as_ref().unwrap());
        }
        let Some(before) = self.handed.insert(now.seq, now.clone()) else {
            return;
        };
        assert_eq!(before.tag, now.tag);
        match (&before.outcome, &now.outcome) {
            (
                Outcome::Granted {
                    ticket: t,
                    token: n,
                    ..
                },
                Outcome::Granted { ticket, token, .. },
            ) => {
                assert_eq!((t, n), (ticket, token));
            }
            (Outcome::Granted { ticket, .. }, Outcome::Failed { .. }) => {
                assert!(call.cancelled);
                assert_eq!(ticket_remaining_ms(*ticket), 0);
            }
            (before, now) => assert_eq!(before, now),
        }
    }

    fn act(&mut self, completion: &Completion) {
        self.seen = completion.seq;
        let call = self.calls.get_mut(&completion.tag).unwrap();
        call.ends += 1;
        assert_eq!(call.ends, 1, "tag {} ended twice", completion.tag);
        if let Outcome::Granted { ticket, token, .. } = completion.outcome {
            let keys = call.keys.clone().unwrap();
            for other in self.held.values().flatten() {
                assert!(!keys.contains(other), "{other} is held twice");
            }
            assert!(self.tokens.insert(token), "token {token} came twice");
            if self.closing {
                self.stranded += keys.len();
            }
            assert_eq!(self.held.insert(ticket, keys), None);
        }
    }

    fn nth_held(&mut self, nth: usize) -> Option<i64> {
        let count = self.held.len().max(1);
        let ticket = *self.held.keys().nth(nth % count)?;
        self.held.remove(&ticket);
        Some(ticket)
    }

    fn run(&mut self, op: &Op, relay: &Relay) {
        match op {
            Op::Acquire { keys, wait_ms } => self.acquire(keys, *wait_ms),
            Op::Cancel(nth) => self.cancel(*nth),
            Op::Drain {
                max,
                timeout_ms,
                acted,
            } => self.drain(*max, *timeout_ms, *acted),
            Op::Release(nth) => {
                if let Some(ticket) = self.nth_held(*nth) {
                    let tag = self.call(None);
                    submit_release(self.queue, tag, ticket);
                    ticket_drop(ticket);
                }
            }
            Op::Drop(nth) => {
                if let Some(ticket) = self.nth_held(*nth) {
                    ticket_drop(ticket);
                }
            }
            Op::Hold(held) => relay.hold(*held),
        }
    }

    fn drop_all(&mut self) {
        while let Some(ticket) = self.nth_held(0) {
            ticket_drop(ticket);
        }
    }

    /// Takes what is still to come.
    fn finish(&mut self) {
        let end = Instant::now() + SOON;
        while self.calls.values().any(|call| call.ends == 0) {
            assert!(Instant::now() < end, "without an end: {:?}", self.calls);
            self.drain(64, 50, 4);
            self.drop_all();
        }
        assert!(queue_next(self.queue, self.seen, 64, 0).is_empty());
    }

    fn end(&mut self, ending: Ending) {
        match ending {
            Ending::Drained => {
                self.drop_all();
                self.finish();
            }
            Ending::QueueClosed => {
                queue_close(self.queue);
                // What was handed out and not acted on is the layer's.
                for completion in self.handed.values().filter(|c| c.seq > self.seen) {
                    if let Outcome::Granted { ticket, .. } = completion.outcome {
                        assert!(ticket_remaining_ms(ticket) > 0);
                        ticket_drop(ticket);
                    }
                }
                for ticket in self.held.keys() {
                    assert!(ticket_remaining_ms(*ticket) > 0);
                }
                self.drop_all();
            }
            Ending::BrokerClosed => {
                // What was granted already is taken first: a ticket outlives its broker object.
                self.drain(64, 0, 4);
                self.drop_all();
                self.closing = true;
                let tag = self.call(None);
                submit_close(self.broker, self.queue, tag);
                self.finish();
            }
            Ending::BrokerDropped => {
                broker_drop(self.broker);
                self.drop_all();
                self.finish();
            }
        }
        queue_close(self.queue);
    }
}

fn cases() -> u32 {
    match std::env::var_os("TICKETING_LONG") {
        Some(_) => 2_000,
        None => 60,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn c9_c10_c16_every_tag_ends_once_and_every_grant_goes_to_one_place(
        ops in ops(),
        ending in prop::sample::select(vec![
            Ending::Drained, Ending::QueueClosed, Ending::BrokerClosed, Ending::BrokerDropped,
        ]),
    ) {
        let server = Server::start();
        let relay = Relay::to(server.addr());
        let mut rig = Rig {
            broker: broker_open(options(relay.addr())).unwrap(),
            queue: queue_open(),
            seen: 0,
            last_tag: 0,
            calls: BTreeMap::new(),
            handed: BTreeMap::new(),
            held: BTreeMap::new(),
            tokens: BTreeSet::new(),
            closing: false,
            stranded: 0,
        };
        for op in &ops {
            rig.run(op, &relay);
        }
        relay.hold(false);
        rig.end(ending);
        server.holds_soon(rig.stranded);
        broker_drop(rig.broker);
    }
}
