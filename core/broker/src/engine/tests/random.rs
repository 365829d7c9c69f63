//! S7 and S5 under any interleaving: what the clients were told against what is on disk.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// What a store holds after each commit that has ended.
#[derive(Default)]
struct Disk {
    held: BTreeMap<Token, KeySet>,
    ever: BTreeSet<Token>,
    fails: bool,
}

impl Disk {
    fn apply(&mut self, batch: &Batch) {
        for record in batch.records() {
            match record {
                Record::Grant { token, keys, .. } => {
                    for key in keys {
                        let holder = self
                            .held
                            .iter()
                            .find(|(_, held)| held.as_keys().iter().any(|other| other == key));
                        assert_eq!(holder, None, "{key} is granted to {token} as well");
                    }
                    self.held.insert(token, keys.into());
                    assert!(Some(&token) > self.ever.last(), "tokens rise");
                    self.ever.insert(token);
                }
                Record::End { token } => {
                    assert!(self.held.remove(&token).is_some(), "{token} ends twice");
                }
                Record::Mark { .. } => {}
            }
        }
    }
}

struct DiskStore {
    disk: Arc<Mutex<Disk>>,
    gate: Arc<Semaphore>,
}

impl Store for DiskStore {
    fn commit(&mut self, mut batch: Batch) -> BoxFuture<'_, Result<Batch, CommitError>> {
        Box::pin(async move {
            self.gate.acquire().await.unwrap().forget();
            let mut disk = self.disk.lock().unwrap();
            if disk.fails {
                return Err(CommitError::Failed(io::Error::other("the disk is gone")));
            }
            disk.apply(&batch);
            batch.clear();
            Ok(batch)
        })
    }

    fn is_durable(&self) -> bool {
        true
    }
}

#[derive(Debug, Clone)]
enum Op {
    Acquire {
        peer: usize,
        keys: u8,
        wait: u8,
        lease: u8,
    },
    Release {
        peer: usize,
        pick: prop::sample::Index,
    },
    Fetch {
        peer: usize,
    },
    HalfClose {
        peer: usize,
    },
    Disconnect {
        peer: usize,
    },
    Sync,
    Pass {
        millis: u64,
    },
}

const PEERS: usize = 4;

fn op() -> impl Strategy<Value = Op> {
    let peer = 0..PEERS;
    prop_oneof![
        6 => (peer.clone(), 1_u8..8, prop::sample::select(vec![0, 2, 60]), prop::sample::select(vec![1, 3, 60]))
            .prop_map(|(peer, keys, wait, lease)| Op::Acquire { peer, keys, wait, lease }),
        5 => (peer.clone(), any::<prop::sample::Index>())
            .prop_map(|(peer, pick)| Op::Release { peer, pick }),
        3 => peer.clone().prop_map(|peer| Op::Fetch { peer }),
        1 => peer.clone().prop_map(|peer| Op::HalfClose { peer }),
        1 => peer.prop_map(|peer| Op::Disconnect { peer }),
        4 => Just(Op::Sync),
        2 => (0_u64..1500).prop_map(|millis| Op::Pass { millis }),
    ]
}

/// What a client asked for and has no answer to.
enum Asked {
    Acquire,
    Release(Token),
}

struct Client {
    peer: Peer,
    next: u64,
    asked: BTreeMap<RequestId, Asked>,
}

struct World {
    engine: Arc<Engine>,
    disk: Arc<Mutex<Disk>>,
    clients: Vec<Client>,
    /// Every grant that a client was told of, with its keys' bits.
    told: Vec<(Token, u8)>,
    keys: BTreeMap<(ConnId, RequestId), u8>,
}

impl World {
    fn client(engine: &Arc<Engine>) -> Client {
        Client {
            peer: Peer::new(engine),
            next: 1,
            asked: BTreeMap::new(),
        }
    }

    fn send(&mut self, at: usize, asked: Asked, frame: impl FnOnce(u64) -> Vec<u8>) {
        let client = &mut self.clients[at];
        let n = client.next;
        client.next += 1;
        client.asked.insert(id(n), asked);
        let replies = client.peer.send(&frame(n));
        self.check(at, replies);
    }

    fn check(&mut self, at: usize, replies: Vec<Reply>) {
        let disk = self.disk.lock().unwrap();
        let client = &mut self.clients[at];
        for reply in replies {
            let answered = reply.id().unwrap();
            let asked = client
                .asked
                .remove(&answered)
                .expect("one answer to each request");
            match (reply, asked) {
                (
                    Reply::Acquired { token, .. } | Reply::SetAcquired { token, .. },
                    Asked::Acquire,
                ) => {
                    assert!(
                        disk.ever.contains(&token),
                        "told of {token} before it was on disk"
                    );
                    self.told
                        .push((token, self.keys[&(client.peer.id, answered)]));
                }
                (Reply::Released { .. } | Reply::SetReleased { .. }, Asked::Release(token)) => {
                    assert!(disk.ever.contains(&token) && !disk.held.contains_key(&token));
                }
                (Reply::NotCurrent { .. }, Asked::Release(token)) => {
                    assert!(
                        !disk.held.contains_key(&token),
                        "a crash would bring {token} back"
                    );
                }
                (Reply::TimedOut { .. } | Reply::Error { .. }, Asked::Acquire) => {}
                (Reply::Indeterminate { .. }, _) => assert!(disk.fails),
                (reply, _) => panic!("{reply:?} answers another kind of request"),
            }
        }
    }

    fn fetch(&mut self, at: usize, input: Input) {
        let replies = self.clients[at].peer.drive(&[], input);
        self.check(at, replies);
    }

    async fn run(&mut self, op: Op, gate: &Semaphore) {
        match op {
            Op::Acquire {
                peer,
                keys,
                wait,
                lease,
            } => {
                let n = self.clients[peer].next;
                self.keys.insert((self.clients[peer].peer.id, id(n)), keys);
                self.send(peer, Asked::Acquire, |n| {
                    acquire(n, wait, lease, &names(keys))
                });
            }
            Op::Release { peer, pick } if !self.told.is_empty() => {
                let (token, keys) = *pick.get(&self.told);
                let frame = |n| release(n, small(token), &names(keys));
                self.send(peer, Asked::Release(token), frame);
            }
            Op::Release { .. } => {}
            Op::Fetch { peer } => self.fetch(peer, Input::Open),
            Op::HalfClose { peer } => {
                self.fetch(peer, Input::HalfClosed);
                while self.clients[peer].peer.step != Step::Finish {
                    gate.add_permits(1);
                    settle().await;
                    self.fetch(peer, Input::HalfClosed);
                }
                assert!(
                    self.clients[peer].asked.is_empty(),
                    "everything is answered"
                );
                self.replace(peer);
            }
            Op::Disconnect { peer } => self.replace(peer),
            Op::Sync => {
                gate.add_permits(1);
                settle().await;
            }
            Op::Pass { millis } => tokio::time::sleep(Duration::from_millis(millis)).await,
        }
    }

    fn replace(&mut self, at: usize) {
        let new = Self::client(&self.engine);
        std::mem::replace(&mut self.clients[at], new)
            .peer
            .disconnect();
    }
}

fn names(keys: u8) -> Vec<&'static str> {
    let all = ["a", "b", "c"].into_iter().enumerate();
    all.filter(|(bit, _)| keys & (1 << bit) != 0)
        .map(|(_, name)| name)
        .collect()
}

/// Long enough for a sync to be one that tokio's clock can take a quarter of.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(40)).await;
}

async fn scenario(ops: Vec<Op>, fails: bool) {
    let engine = engine(true);
    let disk = Arc::<Mutex<Disk>>::default();
    let gate = Arc::new(Semaphore::new(0));
    let store = DiskStore {
        disk: disk.clone(),
        gate: gate.clone(),
    };
    let committer = tokio::spawn(Committer::new(engine.clone(), Box::new(store)).run());
    let timer = tokio::spawn({
        let engine = engine.clone();
        async move { engine.run_timer().await }
    });
    let clients = (0..PEERS).map(|_| World::client(&engine)).collect();
    let mut world = World {
        engine: engine.clone(),
        disk: disk.clone(),
        clients,
        told: Vec::new(),
        keys: BTreeMap::new(),
    };
    for op in ops {
        world.run(op, &gate).await;
    }
    disk.lock().unwrap().fails = fails;
    if fails {
        // One more mutation, so that there is a commit to fail.
        world
            .keys
            .insert((world.clients[0].peer.id, id(world.clients[0].next)), 8);
        world.send(0, Asked::Acquire, |n| acquire(n, 0, 60, &["more"]));
    } else {
        engine.stop();
    }
    gate.add_permits(10_000);
    // A gather lasts a quarter of the last sync, which here took as long as the gate was shut.
    for _ in 0..1000 {
        settle().await;
        for at in 0..PEERS {
            world.fetch(at, Input::Open);
        }
        if world.clients.iter().all(|client| client.asked.is_empty()) {
            break;
        }
    }
    timer.abort();
    let _ = timer.await;
    for client in &world.clients {
        assert!(client.asked.is_empty(), "everything is answered");
    }
    if fails {
        assert!(committer.await.unwrap().is_err());
        return;
    }
    engine.drain();
    committer.await.unwrap().unwrap();
    let disk = disk.lock().unwrap();
    assert_eq!(
        disk.held.len(),
        engine.stats().grants,
        "the disk is what the table is"
    );
    for token in disk.held.keys() {
        assert!(
            world.told.iter().any(|(told, _)| told == token),
            "nobody knows of {token}"
        );
    }
}

/// Ten times as many with `TICKETING_LONG=1`.
fn cases() -> u32 {
    match std::env::var_os("TICKETING_LONG") {
        Some(_) => 2000,
        None => 200,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn s7_what_clients_were_told_is_on_disk(
        ops in prop::collection::vec(op(), 1..80),
        fails in prop::bool::weighted(0.3),
    ) {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap()
            .block_on(scenario(ops, fails));
    }
}
