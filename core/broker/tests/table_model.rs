//! The lock table against a plain model, with random requests, losses and steps of time.
//!
//! `TICKETING_LONG=1` makes it a hundred times longer.

#[path = "table/model.rs"]
mod model;
#[path = "table/recorder.rs"]
mod recorder;
#[path = "table/witness.rs"]
mod witness;

use std::time::Duration;

use model::{Model, Names};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use recorder::{Bench, Effect};
use ticketing_broker::table::{TableLimits, TableStats};
use witness::Witness;

/// Two of them too long for the table to keep them in place.
const KEYS: [&str; 6] = [
    "a",
    "b",
    "c-is-23-bytes-long-....",
    "ключ-длиннее-двадцати-двух-байт",
    "e-is-22-bytes-long-...",
    "f",
];

/// What was stored before the start.
const MARK: u64 = 100;

/// Which of [`KEYS`], one bit each.
#[derive(Debug, Clone, Copy)]
struct Mask(u8);

impl Mask {
    fn names(self) -> Names {
        let chosen = KEYS
            .iter()
            .enumerate()
            .filter(|(bit, _)| self.0 & 1 << bit != 0);
        chosen.map(|(_, &key)| key).collect()
    }
}

#[derive(Debug, Clone)]
enum Step {
    Acquire {
        conn: u64,
        wait: u8,
        lease: u8,
        keys: Mask,
    },
    /// The token of the last grant but `back`, with its own keys.
    Release {
        conn: u64,
        back: usize,
    },
    /// The same with keys that are hardly the right ones.
    ReleaseOther {
        conn: u64,
        back: usize,
        keys: Mask,
    },
    ReleaseUnknown {
        conn: u64,
        token: u64,
        keys: Mask,
    },
    Disconnect {
        conn: u64,
    },
    Refuse {
        conn: Option<u64>,
    },
    Undo {
        back: usize,
    },
    Tick,
    /// Nanoseconds pass; nobody tells the table yet.
    Pass(u64),
    /// Time goes to the next end, less some nanoseconds.
    ToNextEnd {
        less: u64,
    },
    /// The clock shows less than before.
    Back(u64),
}

fn keys() -> impl Strategy<Value = Mask> {
    let single = (0..KEYS.len()).prop_map(|bit| Mask(1 << bit));
    prop_oneof![4 => single, 3 => (1..1_u8 << KEYS.len()).prop_map(Mask)]
}

fn step() -> impl Strategy<Value = Step> {
    let conn = || 1..6_u64;
    let back = || 0..6_usize;
    let wait = prop_oneof![2 => Just(0), 5 => 1..5_u8, 2 => Just(255)];
    let lease = prop_oneof![5 => 1..5_u8, 1 => Just(250)];
    let nanos = prop_oneof![
        0..3_u64,
        0..2_000_000_000_u64,
        Just(1_000_000_000),
        Just(7_000_000_001)
    ];
    prop_oneof![
        24 => (conn(), wait, lease, keys())
            .prop_map(|(conn, wait, lease, keys)| Step::Acquire { conn, wait, lease, keys }),
        14 => (conn(), back()).prop_map(|(conn, back)| Step::Release { conn, back }),
        2 => (conn(), back(), keys())
            .prop_map(|(conn, back, keys)| Step::ReleaseOther { conn, back, keys }),
        1 => (conn(), prop_oneof![1..300_u64, Just(u64::MAX)], keys())
            .prop_map(|(conn, token, keys)| Step::ReleaseUnknown { conn, token, keys }),
        2 => conn().prop_map(|conn| Step::Disconnect { conn }),
        1 => prop_oneof![4 => conn().prop_map(Some), 1 => Just(None)]
            .prop_map(|conn| Step::Refuse { conn }),
        2 => back().prop_map(|back| Step::Undo { back }),
        2 => Just(Step::Tick),
        8 => nanos.prop_map(Step::Pass),
        3 => (0..2_u64).prop_map(|less| Step::ToNextEnd { less }),
        1 => (0..3_000_000_000_u64).prop_map(Step::Back),
    ]
}

fn limits() -> impl Strategy<Value = TableLimits> {
    let few = (1..4_u32, 1..8_u32, 1..7_u32);
    let few = few.prop_map(|(waiters_per_key, waiters, grants)| TableLimits {
        waiters_per_key,
        waiters,
        grants,
    });
    prop_oneof![3 => Just(TableLimits::default()), 1 => few]
}

/// Both, side by side.
struct Pair {
    bench: Bench,
    model: Model,
    witness: Witness,
    next_id: u64,
    /// Every token that was ever granted, with its keys.
    granted: Vec<(u64, Names)>,
}

impl Pair {
    fn new(limits: TableLimits) -> Self {
        Pair {
            bench: Bench::with_mark(limits, MARK),
            model: Model::new(limits, MARK),
            witness: Witness::default(),
            next_id: 1,
            granted: Vec::new(),
        }
    }

    fn restore(&mut self, token: u64, keys: &Names, lease: u8) {
        let free = keys
            .iter()
            .all(|key| self.granted.iter().all(|(_, k)| !k.contains(key)));
        let list: Vec<&str> = keys.iter().copied().collect();
        let restored = self.bench.restore(token, &list, lease);
        assert_eq!(restored.is_ok(), free, "{restored:?}");
        if free {
            self.model.restore(token, keys.clone(), lease);
            self.witness.restore(token, keys);
            self.granted.push((token, keys.clone()));
        }
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn nth_last(&self, back: usize) -> Option<(u64, Names)> {
        self.granted.iter().rev().nth(back).cloned()
    }

    fn release(&mut self, conn: u64, token: u64, keys: &Names) {
        let id = self.id();
        let list: Vec<&str> = keys.iter().copied().collect();
        self.witness.release(conn, id);
        self.bench.release(conn, id, token, &list);
        self.elapse();
        self.model.release(conn, id, token, keys);
    }

    /// The model does nothing by itself when time passes.
    fn elapse(&mut self) {
        self.model.elapse(nanos(self.bench.now));
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Acquire {
                conn,
                wait,
                lease,
                keys,
            } => {
                let (id, keys) = (self.id(), keys.names());
                let list: Vec<&str> = keys.iter().copied().collect();
                self.witness.acquire(conn, id, keys.clone());
                self.bench.acquire(conn, id, wait, lease, &list);
                self.elapse();
                self.model.acquire(conn, id, wait, lease, keys);
            }
            Step::Release { conn, back } => {
                let Some((token, keys)) = self.nth_last(back) else {
                    return;
                };
                self.release(conn, token, &keys);
            }
            Step::ReleaseOther { conn, back, keys } => {
                let Some((token, _)) = self.nth_last(back) else {
                    return;
                };
                self.release(conn, token, &keys.names());
            }
            Step::ReleaseUnknown { conn, token, keys } => self.release(conn, token, &keys.names()),
            Step::Disconnect { conn } => {
                self.bench.disconnect(conn);
                self.elapse();
                self.model.disconnect(conn);
            }
            Step::Refuse { conn } => {
                self.bench.refuse(conn);
                self.elapse();
                self.model.refuse(conn);
            }
            Step::Undo { back } => {
                let Some((token, _)) = self.nth_last(back) else {
                    return;
                };
                self.bench.undo(token);
                self.elapse();
                self.model.undo(token);
            }
            Step::Tick => {
                self.bench.tick();
                self.elapse();
            }
            Step::Pass(nanos) => return self.bench.now += Duration::from_nanos(nanos),
            Step::ToNextEnd { less } => {
                let Some(end) = self.model.next_end() else {
                    return;
                };
                let end = Duration::from_nanos(end - less);
                return self.bench.now = self.bench.now.max(end);
            }
            Step::Back(nanos) => {
                let back = Duration::from_nanos(nanos);
                return self.bench.now = self.bench.now.saturating_sub(back);
            }
        }
        self.compare(matches!(step, Step::Refuse { conn: None }), leaving(&step));
    }

    fn compare(&mut self, any_order: bool, leaving: Option<u64>) {
        let mut effects = self.bench.take();
        let mut expected = self.model.take();
        self.witness.see(&effects, leaving);
        for effect in &effects {
            if let Effect::Granted { token, .. } = *effect {
                let keys = KEYS.into_iter().filter(|&key| effect.names(key)).collect();
                self.granted.push((token, keys));
            }
        }
        if any_order {
            effects.sort_by_key(|effect| format!("{effect:?}"));
            expected.sort_by_key(|effect| format!("{effect:?}"));
        }
        assert_eq!(effects, expected);
        assert_eq!(self.bench.table.stats(), self.model.stats());
        let bound = self.bench.table.next_deadline().map(nanos);
        match (bound, self.model.next_end()) {
            (None, None) => {}
            (Some(bound), Some(end)) => {
                assert!(bound <= end, "a deadline at {bound} is late for {end}");
                assert!(bound > self.model.now(), "a deadline at {bound} is past");
            }
            (bound, end) => panic!("a deadline of {bound:?} for {end:?}"),
        }
    }

    /// Follows the table's own deadlines until nothing is left.
    fn finish(mut self) {
        for _ in 0..10_000 {
            let Some(deadline) = self.bench.table.next_deadline() else {
                break;
            };
            self.bench.now = deadline;
            self.apply(Step::Tick);
        }
        self.witness.end();
        assert_eq!(self.bench.table.stats(), TableStats::default());
        assert_eq!(self.bench.table.next_deadline(), None);
    }
}

fn leaving(step: &Step) -> Option<u64> {
    match *step {
        Step::Disconnect { conn } => Some(conn),
        _ => None,
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("tests are short")
}

fn config() -> ProptestConfig {
    let long = std::env::var_os("TICKETING_LONG").is_some();
    ProptestConfig {
        cases: if long { 200_000 } else { 2_000 },
        failure_persistence: Some(Box::new(FileFailurePersistence::Off)),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    /// Same replies, same grants in the same order, same durable effects, same deadlines; nobody is
    /// overtaken (so nobody starves); and nothing is left when everything has ended.
    #[test]
    fn s1_to_s6_the_table_does_what_the_model_does(
        limits in limits(),
        stored in vec((keys(), 1..6_u8), 0..3),
        steps in vec(step(), 1..300),
    ) {
        let mut pair = Pair::new(limits);
        for (token, (keys, lease)) in (1..).zip(stored) {
            pair.restore(token, &keys.names(), lease);
        }
        for step in steps {
            pair.apply(step);
        }
        pair.finish();
    }
}
