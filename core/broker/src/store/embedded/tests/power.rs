//! The whole pipeline — lock table, engine, committer, database — on a disk that fails: what
//! clients were told against what is there after each restart.
//!
//! `TICKETING_LONG=1` makes it thousands of restarts; `TICKETING_SEED=n` replays a run.

use std::task::Waker;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use ticketing_wire::{Reply, Request, RequestId};
use tokio::time::Instant;

use super::*;
use crate::engine::{Committer, Engine, Input, Outbox};
use crate::table::{ConnId, LockTable, TableLimits};
use crate::token::TokenSource;

const KEYS: usize = 24;
const LEASE: u8 = 250;

enum Asked {
    Acquire(KeySet),
    Release(Token),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grant {
    Held,
    /// A release was sent.
    Releasing,
    Gone,
}

/// What all clients together were told, over all restarts.
#[derive(Default)]
struct Told {
    grants: BTreeMap<Token, (KeySet, Grant)>,
    asked: BTreeMap<RequestId, Asked>,
    /// No token up to this may be granted any more.
    highest: u64,
    last_id: u64,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    grants: usize,
    releases: usize,
    unknown: usize,
    held_over_a_restart: usize,
    faults: BTreeMap<String, usize>,
}

impl Told {
    fn request(&mut self, random: &mut StdRng) -> Vec<u8> {
        self.last_id += 1;
        let id = RequestId::new(self.last_id).unwrap();
        let held: Vec<Token> = self
            .grants
            .iter()
            .filter(|(_, (_, grant))| *grant == Grant::Held)
            .map(|(token, _)| *token)
            .collect();
        let mut frame = Vec::new();
        if let (true, Some(&token)) = (random.random_bool(0.5), held.choose(random)) {
            let (keys, grant) = self.grants.get_mut(&token).unwrap();
            *grant = Grant::Releasing;
            Request::Release {
                id,
                token,
                keys: keys.as_keys(),
            }
            .encode(&mut frame);
            self.asked.insert(id, Asked::Release(token));
        } else {
            let count = random.random_range(1..=3);
            let keys =
                KeySet::new((0..count).map(|_| random.random_range(0..KEYS).to_string())).unwrap();
            let wait = if random.random_bool(0.5) { 0 } else { 200 };
            Request::Acquire {
                id,
                wait,
                lease: LEASE,
                keys: keys.as_keys(),
            }
            .encode(&mut frame);
            self.asked.insert(id, Asked::Acquire(keys));
        }
        frame
    }

    fn replied(&mut self, reply: Reply) {
        let asked = self
            .asked
            .remove(&reply.id().unwrap())
            .expect("one answer to each");
        match (reply, asked) {
            (
                Reply::Acquired { token, .. } | Reply::SetAcquired { token, .. },
                Asked::Acquire(keys),
            ) => {
                assert!(
                    token.get() > self.highest,
                    "S3: {token} after {}",
                    self.highest
                );
                self.counts.grants += 1;
                assert_eq!(self.grants.insert(token, (keys, Grant::Held)), None, "S3");
            }
            (
                Reply::Released { .. } | Reply::SetReleased { .. } | Reply::NotCurrent { .. },
                Asked::Release(token),
            ) => {
                self.counts.releases += 1;
                self.grants.get_mut(&token).unwrap().1 = Grant::Gone;
            }
            (Reply::TimedOut { .. } | Reply::Error { .. }, Asked::Acquire(_)) => {}
            // It may have taken effect: as if it had got no answer.
            (Reply::Indeterminate { id }, asked) => {
                self.asked.insert(id, asked);
            }
            (reply, _) => panic!("{reply:?} answers another kind of request"),
        }
    }

    fn restarted(&mut self, recovered: &Recovered) {
        let asked = std::mem::take(&mut self.asked);
        let there: BTreeMap<Token, &KeySet> = recovered
            .grants
            .iter()
            .map(|grant| (grant.token, &grant.keys))
            .collect();
        for (token, (keys, grant)) in &mut self.grants {
            match (*grant, there.get(token)) {
                (Grant::Held, None) => panic!("S7: {token} was granted and is lost"),
                (Grant::Gone, Some(_)) => panic!("S7: {token} was released and is held again"),
                (_, Some(found)) => {
                    assert_eq!(*found, keys);
                    *grant = Grant::Held;
                    self.counts.held_over_a_restart += 1;
                }
                (_, None) => *grant = Grant::Gone,
            }
        }
        for (token, keys) in there {
            if !self.grants.contains_key(&token) {
                assert!(token.get() > self.highest, "S7: {token} is back");
                let wanted =
                    |asked: &Asked| matches!(asked, Asked::Acquire(wanted) if wanted == keys);
                assert!(asked.values().any(wanted), "nobody asked for {token}");
                self.grants.insert(token, (keys.clone(), Grant::Held));
                self.counts.unknown += 1;
            }
        }
        if let Some((token, _)) = self.grants.last_key_value() {
            self.highest = token.get();
            assert!(
                recovered.mark >= self.highest,
                "S3: the mark is on disk before its tokens are told"
            );
        }
        self.grants.retain(|_, (_, grant)| *grant == Grant::Held);
    }
}

struct Conn {
    engine: Arc<Engine>,
    id: ConnId,
}

impl Conn {
    fn drive(&self, bytes: &[u8], told: &mut Told) {
        let mut out = Outbox::default();
        self.engine.drive(
            self.id,
            bytes,
            Input::Open,
            Waker::noop(),
            &mut out,
            &mut Vec::new(),
        );
        let mut rest = out.bytes();
        while let Some((reply, used)) = Reply::decode(rest).unwrap() {
            told.replied(reply);
            rest = &rest[used..];
        }
    }
}

/// One life of a broker, until `fault` strikes or the work is done.
async fn life(disk: &Disk, told: &mut Told, random: &mut StdRng, fault: Fault) -> bool {
    let (grants, recovered) = match open_on(disk.clone()) {
        Ok(opened) => opened,
        Err(error) => {
            assert!(
                disk.attempts_after_fault() > 0,
                "a crash is no damage: {error:?}"
            );
            return true;
        }
    };
    told.restarted(&recovered);
    // The clock stands still, so that the mark alone keeps S3.
    let tokens = TokenSource::new(recovered.mark, 0, Box::new(|| 1)).unwrap();
    let mut table = LockTable::new(TableLimits::default(), tokens);
    for grant in &recovered.grants {
        table
            .restore(
                Duration::ZERO,
                grant.token,
                grant.keys.as_keys(),
                grant.lease,
            )
            .unwrap();
    }
    let engine = Arc::new(Engine::new(table, Instant::now(), true));
    let store = EmbeddedStore {
        grants,
        file: DATABASE_FILE.into(),
        _lock: tempfile::tempfile().unwrap(),
    };
    let committer = tokio::spawn(Committer::new(engine.clone(), Box::new(store)).run());
    let conns: Vec<_> = (0..4)
        .map(|_| Conn {
            id: engine.connect(),
            engine: engine.clone(),
        })
        .collect();
    for _ in 0..random.random_range(0..60) {
        let conn = conns.choose(random).unwrap();
        let mut frames = Vec::new();
        for _ in 0..random.random_range(1..6) {
            frames.extend(told.request(random));
        }
        conn.drive(&frames, told);
        if random.random_bool(0.7) {
            tokio::time::sleep(Duration::from_millis(1)).await;
            conns.iter().for_each(|conn| conn.drive(&[], told));
        }
    }
    let struck = disk.attempts_after_fault() > 0;
    if struck || fault == Fault::None {
        engine.stop();
        engine.drain();
        assert_eq!(committer.await.unwrap().is_err(), struck, "{fault:?}");
        conns.iter().for_each(|conn| conn.drive(&[], told));
        if matches!(fault, Fault::Full | Fault::Sync) {
            assert_eq!(
                disk.attempts_after_fault(),
                struck.into(),
                "{fault:?}: nothing after the failure"
            );
        }
    } else {
        // Now, while it has nothing to do.
        disk.fail_at(Fault::Power, 0);
        committer.abort();
        let _ = committer.await;
    }
    struck
}

fn run(seed: u64, lives: usize) -> Counts {
    let mut random = StdRng::seed_from_u64(seed);
    let mut told = Told::default();
    let mut disk = new_disk();
    for _ in 0..lives {
        let fault = *[
            Fault::Power,
            Fault::Power,
            Fault::Kill,
            Fault::Full,
            Fault::Sync,
            Fault::None,
        ]
        .choose(&mut random)
        .unwrap();
        disk.fail_at(
            fault,
            random.random_range(0..if fault == Fault::Sync { 12 } else { 150 }),
        );
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        let struck = runtime.block_on(life(&disk, &mut told, &mut random, fault));
        drop(runtime);
        *told
            .counts
            .faults
            .entry(format!("{fault:?} {struck}"))
            .or_default() += 1;
        disk = if fault == Fault::Kill {
            // What the process wrote is still to be synced, by whoever comes next.
            disk.after_a_kill()
        } else {
            Disk::holding(disk.after_power_loss(&mut random))
        };
    }
    told.counts
}

#[test]
fn s7_s3_a_failing_disk_takes_back_nothing_that_clients_were_told() {
    let lives = if cases() > 4 { 25_000 } else { 100 };
    let seed = match std::env::var("TICKETING_SEED") {
        Ok(seed) => seed.parse().expect("TICKETING_SEED is a number"),
        Err(_) => rand::random(),
    };
    println!("TICKETING_SEED={seed}");
    let counts = run(seed, lives);
    println!("{counts:?}");
    assert!(
        counts.grants > lives && counts.releases > lives && counts.held_over_a_restart > lives,
        "{counts:?}"
    );
}
