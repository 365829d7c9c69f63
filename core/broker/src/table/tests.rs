//! The parts of the table that its own tests can't see into.

use std::collections::{BTreeMap, HashMap};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use ticketing_wire::Key;

use super::index::Places;
use super::key::KeyBuf;
use super::slab::{NONE, Slab};
use super::state::{Grant, Lock};
use super::timers::{Timed, Timer, Timers};

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: Some(Box::new(FileFailurePersistence::Off)),
        ..ProptestConfig::default()
    }
}

#[test]
fn s6_a_held_key_is_small() {
    // With the indexes' 12 bytes each and the slabs' slack: about 110 bytes.
    assert!(size_of::<Lock>() <= 48, "{}", size_of::<Lock>());
    assert!(size_of::<Grant>() <= 40, "{}", size_of::<Grant>());
}

#[test]
fn a_key_is_kept_whatever_its_length() {
    for len in 1..=128 {
        let text = "k".repeat(len);
        let kept = KeyBuf::from(Key::new(&text).unwrap());
        assert_eq!(kept.as_key().as_str(), text);
        assert_eq!(matches!(kept, KeyBuf::Inline { .. }), len <= 22);
    }
}

#[test]
fn s5_an_emptied_slab_keeps_no_memory_to_speak_of() {
    const MANY: u32 = 100_000;
    // In the order in which they came, in the opposite one, and in neither.
    let orders: [fn(u32) -> u32; 3] = [|n| n, |n| MANY - 1 - n, |n| n * 7919 % MANY];
    for order in orders {
        let mut slab = Slab::new();
        let places: Vec<u32> = (0..MANY).map(|n| slab.insert(n)).collect();
        assert!(slab.capacity() >= MANY as usize);
        for n in 0..MANY - 10 {
            slab.remove(places[order(n) as usize]);
        }
        // Each of the ten may keep a page, and one page stays for those to come.
        assert!(slab.capacity() <= 11 * 1024, "{} for ten", slab.capacity());
        for n in MANY - 10..MANY {
            slab.remove(places[order(n) as usize]);
        }
        assert_eq!(slab.capacity(), 0);
    }
}

#[test]
fn s5_values_that_come_and_go_gather_in_one_page() {
    const MANY: u32 = 10_000;
    let mut slab = Slab::new();
    let mut places: Vec<u32> = (0..MANY).map(|n| slab.insert(n)).collect();
    // Each of the last hundred in turn gives way to a new one: those in other pages die out.
    let mut live = places.split_off(places.len() - 100);
    live.extend(places.drain(..).step_by(1000));
    for at in (0..MANY)
        .filter(|at| slab.contains(*at) && !live.contains(at))
        .collect::<Vec<_>>()
    {
        slab.remove(at);
    }
    for _ in 0..2 {
        for at in &mut live {
            slab.remove(*at);
            *at = slab.insert(0);
        }
    }
    assert!(slab.capacity() <= 2 * 1024, "{}", slab.capacity());
}

#[test]
fn s5_an_emptied_index_keeps_no_memory_to_speak_of() {
    const MANY: u64 = 100_000;
    let mut slab = Slab::new();
    let mut index = Places::new();
    let hash = |n: &u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    for n in 0..MANY {
        let at = slab.insert(n);
        index.insert(&slab, at, hash);
    }
    for n in 0..MANY {
        let at = index.find(&slab, hash(&n), |&value| value == n).unwrap();
        index.remove(&slab, at, hash);
        assert_eq!(slab.remove(at), n);
        assert_eq!(index.find(&slab, hash(&n), |&value| value == n), None);
        let (len, capacity) = (index.len(), index.capacity());
        assert!(
            capacity <= 2048 || capacity <= len * 9,
            "{capacity} for {len}"
        );
    }
    assert_eq!(index.len(), 0);
}

#[derive(Debug, Clone)]
enum SlabStep {
    Insert(u16),
    Remove(u16),
}

struct Item {
    name: usize,
    timer: Timer,
}

impl Timed for Item {
    fn timer(&mut self) -> &mut Timer {
        &mut self.timer
    }
}

proptest! {
    #![proptest_config(config(200))]

    /// Many steps at once, so that pages fill and empty.
    #[test]
    fn a_slab_is_a_map(
        steps in vec(
            prop_oneof![
                (1..3000_u16).prop_map(SlabStep::Insert),
                (1..3000_u16).prop_map(SlabStep::Remove),
            ],
            1..30,
        ),
        pick in any::<usize>(),
    ) {
        let mut slab = Slab::new();
        let mut map = HashMap::new();
        let mut places = Vec::new();
        let (mut value, mut pick) = (0_u64, pick);
        for step in steps {
            match step {
                SlabStep::Insert(count) => for _ in 0..count {
                    value += 1;
                    let at = slab.insert(value);
                    prop_assert!(at != NONE);
                    prop_assert_eq!(map.insert(at, value), None);
                    places.push(at);
                },
                SlabStep::Remove(count) => for _ in 0..count {
                    if places.is_empty() {
                        break;
                    }
                    pick = pick.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let at = places.swap_remove((pick >> 33) % places.len());
                    prop_assert_eq!(Some(slab.remove(at)), map.remove(&at));
                    prop_assert!(!slab.contains(at));
                },
            }
            prop_assert_eq!(slab.len(), map.len());
            for (&at, value) in &map {
                prop_assert!(slab.contains(at));
                prop_assert_eq!(&slab[at], value);
            }
        }
    }

    /// A step: time that passes, then a timer of so many seconds, then the removal of one.
    #[test]
    fn s2_timers_end_in_order_and_never_early(
        steps in vec((0..3_000_000_000_u64, prop_oneof![1..4_u8, any::<u8>()], any::<u16>()), 1..200),
    ) {
        let mut slab: Slab<Item> = Slab::new();
        let mut timers = Timers::new();
        let mut model: BTreeMap<(u64, u8, usize), u32> = BTreeMap::new();
        let mut now = 0;
        for (name, (nanos, secs, pick)) in steps.into_iter().enumerate() {
            now += nanos;
            while let Some((end, at)) = timers.first() {
                let (&(first, _, name), _) = model.first_key_value().unwrap();
                prop_assert_eq!((first, name), (end, slab[at].name));
                if end > now {
                    break;
                }
                model.pop_first();
                timers.remove(&mut slab, at);
                slab.remove(at);
            }
            let timer = Timer::new(now, secs);
            prop_assert_eq!(timer.end, now + u64::from(secs) * 1_000_000_000);
            let at = slab.insert(Item { name, timer });
            timers.insert(&mut slab, at);
            model.insert((timer.end, secs, name), at);
            if pick % 3 == 0 {
                let key = *model.keys().nth(usize::from(pick) % model.len()).unwrap();
                let at = model.remove(&key).unwrap();
                timers.remove(&mut slab, at);
                slab.remove(at);
            }
            if let Some((&(first, ..), _)) = model.first_key_value() {
                prop_assert!(timers.bound() <= first);
            }
        }
    }
}
