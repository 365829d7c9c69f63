//! Crashes, damage and a failing disk, on a disk in memory; owners and formats, in real folders.

mod disk;
mod folder;
mod power;

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::Index;
use ticketing_wire::{KeySet, Token};

use self::disk::{Disk, Fault, Op};
use super::database::for_tests::{create_on, open_on};
use super::*;
use crate::store::Record;

/// What a store holds, plainly.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Model {
    mark: u64,
    grants: BTreeMap<Token, (u8, KeySet)>,
}

impl Model {
    fn apply(&mut self, batch: &Batch) {
        for record in batch.records() {
            match record {
                Record::Grant { token, lease, keys } => {
                    self.grants.insert(token, (lease, keys.into()));
                }
                Record::End { token } => {
                    self.grants.remove(&token);
                }
                Record::Mark { mark } => self.mark = mark,
            }
        }
    }
}

impl From<Recovered> for Model {
    fn from(recovered: Recovered) -> Self {
        let ascending = recovered.grants.is_sorted_by(|a, b| a.token < b.token);
        assert!(ascending, "{recovered:?}");
        let grants = recovered
            .grants
            .into_iter()
            .map(|g| (g.token, (g.lease, g.keys)));
        Model {
            mark: recovered.mark,
            grants: grants.collect(),
        }
    }
}

#[derive(Debug, Clone)]
enum Change {
    Grant { keys: u8, lease: u8 },
    End(Index),
    Mark,
}

fn changes() -> impl Strategy<Value = Vec<Vec<Change>>> {
    let change = prop_oneof![
        6 => (1u8..=16, 1u8..=250).prop_map(|(keys, lease)| Change::Grant { keys, lease }),
        5 => any::<Index>().prop_map(Change::End),
        1 => Just(Change::Mark),
    ];
    prop::collection::vec(prop::collection::vec(change, 1..12), 1..12)
}

/// Batches as a lock table makes them: rising tokens, ends of what is held.
fn batches(changes: &[Vec<Change>]) -> Vec<Batch> {
    let (mut last, mut held) = (0, Vec::new());
    let mut batch_of = |changes: &Vec<Change>| {
        let mut batch = Batch::new();
        for change in changes {
            match change {
                Change::Grant { keys, lease } => {
                    last += 1;
                    let token = Token::new(last).unwrap();
                    let keys = KeySet::new((0..*keys).map(|k| format!("{last}/{k}"))).unwrap();
                    batch.grant(token, *lease, keys.as_keys());
                    held.push(token);
                }
                Change::End(index) if !held.is_empty() => {
                    batch.end(held.swap_remove(index.index(held.len())));
                }
                Change::End(_) => {}
                Change::Mark => batch.mark(last + 1_000),
            }
        }
        batch
    };
    changes.iter().map(&mut batch_of).collect()
}

fn new_disk() -> Disk {
    let disk = Disk::default();
    create_on(disk.clone()).unwrap().close().unwrap();
    disk
}

fn read(image: Vec<u8>) -> Model {
    open_on(Disk::holding(image))
        .expect("a crash is no damage")
        .1
        .into()
}

/// Images of a disk whose last sync was cut short: in the order of the writes, at every place of
/// each write (every byte of short ones), and with writes that overtook each other.
fn crashes(before: &[u8], ops: &[Op], picks: &[u64]) -> Vec<Vec<u8>> {
    let mut images = Vec::new();
    let mut prefix = before.to_vec();
    for op in ops {
        let step = if op.len() <= 512 { 1 } else { 509 };
        for len in (0..op.len()).step_by(step) {
            // A place that held nothing may read as zeros; what the header held before stays.
            for zero_rest in [false, true]
                .into_iter()
                .take(if op.is_header() { 1 } else { 2 })
            {
                let mut image = prefix.clone();
                op.apply_torn(len, zero_rest, &mut image);
                images.push(image);
            }
        }
        op.apply(&mut prefix);
        images.push(prefix.clone());
    }
    // A file system may grow the file late, but what lies beyond its end is then not there.
    let grown = |image: &mut Vec<u8>| {
        for op in ops {
            if let Op::SetLen(_) = op {
                op.apply(image);
            }
        }
    };
    for pick in picks {
        let mut image = before.to_vec();
        grown(&mut image);
        for (n, op) in ops
            .iter()
            .enumerate()
            .filter(|(_, op)| matches!(op, Op::Write { .. }))
        {
            if pick >> (n % 64) & 1 == 1 {
                op.apply(&mut image);
            }
        }
        images.push(image);
    }
    images
}

/// redb's pages.
const PAGE: usize = 4096;

/// Few for every day, many with `TICKETING_LONG=1`.
fn cases() -> u32 {
    if std::env::var_os("TICKETING_LONG").is_some() {
        100
    } else {
        4
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    /// After a crash: what was acknowledged, or that and the whole batch that was under way.
    #[test]
    fn s7_a_crash_anywhere_in_a_commit_leaves_all_of_it_or_nothing(
        changes in changes(),
        picks in prop::collection::vec(any::<u64>(), 40),
    ) {
        let disk = new_disk();
        let (mut grants, _) = open_on(disk.clone()).unwrap();
        let mut acknowledged = Model::default();
        let batches = batches(&changes);
        let (last, earlier) = batches.split_last().unwrap();
        for batch in earlier {
            grants.apply(batch).unwrap();
            acknowledged.apply(batch);
            prop_assert_eq!(&read(disk.bytes()), &acknowledged);
        }
        let with_last = {
            let mut model = acknowledged.clone();
            model.apply(last);
            model
        };
        grants.apply(last).unwrap();
        let (before, ops) = disk.last_sync();
        for (n, image) in crashes(&before, &ops, &picks).into_iter().enumerate() {
            let found = read(image.clone());
            prop_assert!(found == acknowledged || found == with_last, "{:?}", found);
            if n % 101 != 0 {
                continue;
            }
            // The restart is cut short too.
            let disk = Disk::holding(image);
            drop(open_on(disk.clone()).unwrap());
            let (before, ops) = disk.last_sync();
            for image in crashes(&before, &ops, &picks[..2]).iter().step_by(97) {
                prop_assert_eq!(&read(image.clone()), &found);
            }
        }
        prop_assert_eq!(read(disk.bytes()), with_last, "an acknowledged batch stays");
    }

    /// A byte that rotted in a file at rest is noticed, or does not matter.
    #[test]
    fn s8_damage_is_refused_or_harmless(changes in changes(), flips in prop::collection::vec(any::<(Index, u8)>(), 60)) {
        let disk = new_disk();
        let mut model = Model::default();
        let (mut grants, _) = open_on(disk.clone()).unwrap();
        for batch in batches(&changes) {
            grants.apply(&batch).unwrap();
            model.apply(&batch);
        }
        drop(grants);
        let image = disk.bytes();
        let header = (0..512).map(|at| (at, 0x40));
        // One in every page, and more of them anywhere.
        let page = |n: usize, at: &Index| (n * PAGE + at.index(PAGE)).min(image.len() - 1);
        let paged = (0..image.len() / PAGE).map(|n| (n, &flips[n % flips.len()]));
        let paged = paged.map(|(n, (at, flip))| (page(n, at), flip | 1));
        let anywhere = flips.iter().map(|(at, flip)| (at.index(image.len()), flip | 1));
        for (at, flip) in header.chain(paged).chain(anywhere) {
            let mut damaged = image.clone();
            damaged[at] ^= flip;
            if let Ok((_, recovered)) = open_on(Disk::holding(damaged)) {
                prop_assert_eq!(Model::from(recovered), model.clone(), "byte {}", at);
            }
        }
    }
}

/// A failed write or sync breaks the store for good, and nothing is tried again.
#[tokio::test]
async fn s7_a_failed_write_or_sync_is_final() {
    for (fault, message) in [
        (Fault::Full, "no storage space"),
        (Fault::Sync, "does not answer"),
    ] {
        let disk = new_disk();
        let (grants, _) = open_on(disk.clone()).unwrap();
        let mut store = EmbeddedStore {
            grants,
            file: "data/grants.redb".into(),
            _lock: tempfile::tempfile().unwrap(),
        };
        let key = KeySet::new(["k"]).unwrap();
        let mut batch = Batch::new();
        batch.grant(Token::MIN, 9, key.as_keys());
        let mut batch = store.commit(batch).await.unwrap();
        assert!(batch.is_empty(), "the buffer comes back for reuse");

        disk.fail_next(fault);
        batch.end(Token::MIN);
        match store.commit(batch.clone()).await {
            Err(CommitError::Failed(error)) => {
                let text = CommitError::Failed(error).to_string();
                for part in [message, "data/grants.redb: ", "start the broker again"] {
                    assert!(text.contains(part), "{text:?} lacks {part:?}");
                }
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(
            store.commit(batch).await,
            Err(CommitError::Failed(_))
        ));
        drop(store);
        assert_eq!(
            disk.attempts_after_fault(),
            1,
            "{fault:?}: nothing after the failure"
        );
    }
}
