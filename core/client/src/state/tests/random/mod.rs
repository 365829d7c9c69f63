//! A seeded random driver: everything that can happen, in any order, checked by a ledger.
//!
//! `TICKETING_LONG=1` makes it run for millions of steps. A failure names its seed;
//! `TICKETING_SEED` starts there and prints each step.

mod broker;
mod ledger;
mod pipes;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::*;
use broker::{Broker, Mood};
use ledger::Ledger;
use pipes::Pipe;

const STEPS: usize = 300;

#[test]
fn c7_to_c27_random_steps_keep_every_promise() {
    let var = |name| std::env::var(name).ok();
    let first = var("TICKETING_SEED").map(|s| s.parse().expect("a number"));
    let episodes = if var("TICKETING_LONG").is_some() {
        20_000
    } else {
        1000
    };
    let start = first.unwrap_or(1);
    let (mut steps, mut compensations) = (0, 0);
    for seed in start..start + episodes {
        let _name = NameOnPanic(seed);
        let mut world = World::new(seed, first == Some(seed));
        world.run();
        steps += world.steps;
        compensations += world.ledger.compensations;
    }
    println!("{steps} steps, {compensations} grants came to nobody and were given back");
    assert!(steps >= STEPS * episodes as usize && compensations >= episodes);
}

struct NameOnPanic(u64);

impl Drop for NameOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("again with TICKETING_SEED={}", self.0);
        }
    }
}

struct World {
    rng: SmallRng,
    rig: Rig,
    ledger: Ledger,
    broker: Broker,
    nodes: u8,
    pipes: BTreeMap<SessionId, Pipe>,
    connecting: Vec<LinkId>,
    tickets: Vec<Grant>,
    steps: usize,
    /// In a thousand connection attempts.
    failing: u32,
    rejecting: u32,
    trace: bool,
}

impl World {
    fn new(seed: u64, trace: bool) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let nodes = *[1, 1, 2, 3].choose(&mut rng).unwrap();
        let max_pending = *[1, 2, 3, 5, 8, 1000].choose(&mut rng).unwrap();
        // From a broker without fault to one that hardly works.
        let mut odds = |most: u32| *[0, 0, most / 8, most].choose(&mut rng).unwrap();
        let mood = Mood {
            unsure: odds(200),
            refuses: odds(200),
            busy: odds(100),
            wrong: odds(40),
            silent: odds(150),
        };
        let (failing, rejecting) = (odds(700), odds(300));
        World {
            rig: Rig::seeded(nodes.into(), max_pending, seed),
            rng,
            ledger: Ledger::default(),
            broker: Broker::new(mood, (nodes > 1).then_some(0)),
            nodes,
            pipes: BTreeMap::new(),
            connecting: Vec::new(),
            tickets: Vec::new(),
            steps: 0,
            failing,
            rejecting,
            trace,
        }
    }

    fn run(&mut self) {
        for _ in 0..STEPS {
            self.step();
        }
        // It ends with a close, or first runs dry with a broker that closes every connection.
        if self.rng.random() {
            for _ in 0..40 {
                self.progress();
                self.advance(ms(250));
            }
            for sid in self.sessions() {
                self.end(sid);
            }
            self.take_all();
            self.drop_tickets();
            self.advance(secs(5));
            self.ledger.assert_done();
            self.rig.assert_idle();
        }
        self.close();
        let end = self.ledger.closed_at.expect("just closed") + secs(5);
        while !self.rig.state.is_closed() {
            self.step();
            if self.rig.now >= end {
                self.advance(Duration::ZERO);
                assert!(self.rig.state.is_closed(), "C27");
            }
        }
        assert!(self.rig.driver_knows());
        self.check(true);
        self.take_all();
        self.drop_tickets();
        for sid in self.sessions() {
            self.forget(sid);
        }
        self.ledger.assert_done();
        self.rig.assert_idle();
        assert_eq!(self.rig.deadline(), None);
    }

    fn note(&self, what: impl FnOnce() -> String) {
        if self.trace {
            eprintln!("{:?}: {}", self.rig.now, what());
        }
    }

    fn check(&mut self, ticked: bool) {
        self.ledger.settle(&self.rig, ticked);
    }

    fn step(&mut self) {
        self.steps += 1;
        match self.rng.random_range(0..100) {
            0..16 => self.acquire(),
            16..22 => self.cancel(),
            22..30 => self.take(),
            30..40 => self.release(),
            40..50 => self.transmit(),
            50..58 => self.broker_reads(),
            58..68 => self.deliver(),
            68..78 => self.connect(),
            78..88 => {
                let by = self.rng.random_range(0..300);
                self.advance(ms(by));
            }
            88..90 => {
                let by = self.rng.random_range(300..6000);
                self.advance(ms(by));
            }
            90 => {
                // The process is stopped; whatever comes next is handled before the timers.
                let by = self.rng.random_range(1..4000);
                self.note(|| format!("stopped for {by} ms"));
                self.rig.stop(ms(by));
            }
            91..98 => self.progress(),
            _ => self.misfortune(),
        }
        self.check(false);
    }

    /// Time goes on, with a look at everything after each timer.
    fn advance(&mut self, by: Duration) {
        let end = self.rig.now + by;
        loop {
            self.rig.tick();
            self.check(true);
            let next = self.rig.deadline().filter(|at| *at <= end);
            self.rig.now = next.unwrap_or(end);
            if next.is_none() {
                break;
            }
        }
        self.rig.tick();
        self.broker.tick(self.rig.now);
        self.post();
        self.check(true);
    }

    fn sessions(&self) -> Vec<SessionId> {
        self.pipes.keys().copied().collect()
    }

    fn any_session(&mut self) -> Option<SessionId> {
        self.sessions().choose(&mut self.rng).copied()
    }

    fn acquire(&mut self) {
        if self.ledger.closed_at.is_some() && self.rng.random_range(0..4) > 0 {
            return;
        }
        let count = *[1, 1, 1, 2, 3].choose(&mut self.rng).unwrap();
        let all = ["a", "b", "c", "d"];
        let names: Vec<&str> = all.sample(&mut self.rng, count).copied().collect();
        let wait = *[0, 0, 1, 2, 4].choose(&mut self.rng).unwrap();
        let lease = *[1, 3, 10].choose(&mut self.rng).unwrap();
        let min_work = ms(self.rng.random_range(0..=lease * 1000) / 2);
        let terms = Terms::new(secs(wait), secs(lease), min_work).unwrap();
        let set = keys(&names);
        let names = set.as_keys().iter().map(|k| k.to_string()).collect();
        let id = self.rig.state.acquire(self.rig.now, set, terms);
        self.note(|| format!("acquire {id} of {names:?}, {terms:?}"));
        self.ledger.asked(self.rig.now, id, names, terms);
    }

    fn cancel(&mut self) {
        self.check(false);
        let Some(&id) = self.ledger.undecided().choose(&mut self.rng) else {
            return;
        };
        let by_deadline = self.rng.random();
        let cause = if by_deadline {
            Cause::Deadline
        } else {
            Cause::Cancelled
        };
        let error = self.rig.state.cancel(self.rig.now, id, cause);
        self.note(|| format!("cancel {id}: {error:?}"));
        self.ledger
            .cancelled(id, error.unwrap().kind(), by_deadline);
        assert_eq!(self.rig.state.cancel(self.rig.now, id, cause), None);
    }

    fn take(&mut self) {
        self.check(false);
        if let Some(&id) = self.ledger.undecided().choose(&mut self.rng) {
            self.take_one(id);
        }
    }

    fn take_one(&mut self, id: AcquireId) {
        if let Some(outcome) = self.rig.outcome(id) {
            self.note(|| format!("took {id}: {outcome:?}"));
            self.tickets
                .extend(self.ledger.took(&self.rig, id, outcome));
        }
    }

    fn take_all(&mut self) {
        self.check(false);
        for id in self.ledger.undecided() {
            self.take_one(id);
        }
        self.check(false);
    }

    fn release(&mut self) {
        if self.tickets.is_empty() {
            return;
        }
        let i = self.rng.random_range(0..self.tickets.len());
        let ticket = self.tickets.swap_remove(i);
        if self.rng.random_range(0..10) > 0 {
            let explicit = self.rng.random();
            self.give_back(
                ticket,
                if explicit {
                    Origin::Explicit
                } else {
                    Origin::Automatic
                },
            );
        }
    }

    fn give_back(&mut self, ticket: Grant, origin: Origin) {
        self.note(|| format!("release {ticket:?} {origin:?}"));
        let token = ticket.token;
        let cell = self
            .rig
            .state
            .release(self.rig.now, ticket.keys, token, origin);
        self.ledger.released(token.get(), cell);
    }

    fn drop_tickets(&mut self) {
        for ticket in std::mem::take(&mut self.tickets) {
            self.give_back(ticket, Origin::Automatic);
        }
        self.check(false);
    }

    fn connect(&mut self) {
        self.connecting.extend(self.rig.due());
        self.check(true);
        if self.connecting.is_empty() {
            return;
        }
        let i = self.rng.random_range(0..self.connecting.len());
        let link = self.connecting.swap_remove(i);
        let dice = self.rng.random_range(0..1000);
        if dice < self.rejecting {
            self.note(|| format!("link {link} is rejected"));
            self.ledger.rejections += 1;
            self.rig.reject(link);
        } else if dice < self.rejecting + self.failing {
            self.note(|| format!("link {link} fails"));
            self.rig.fail(link);
        } else if let Some(sid) = self.rig.state.connected(self.rig.now, link) {
            self.note(|| format!("link {link} is session {sid}"));
            let node = u8::try_from(self.rig.state.node_of(link)).unwrap();
            let mut pipe = Pipe::default();
            if self.nodes > 1 {
                pipe.node = Some(node);
                let slot = self.broker.leader.and_then(Slot::new);
                pipe.to_client.push_back(Reply::Leader { slot });
            }
            self.pipes.insert(sid, pipe);
        } else {
            assert!(self.ledger.closed_at.is_some());
        }
    }

    /// Everything gets on for a while, as it mostly does.
    fn progress(&mut self) {
        for _ in 0..3 {
            self.connect();
            for sid in self.sessions() {
                self.write(sid);
                self.check(false);
                self.write(sid);
                for _ in 0..4 {
                    self.broker_read(sid);
                }
                self.read(sid, usize::MAX / 2);
                self.check(false);
            }
        }
    }

    fn misfortune(&mut self) {
        let Some(sid) = self.any_session() else {
            return;
        };
        match self.rng.random_range(0..6) {
            0 => self.end(sid),
            1 => {
                self.note(|| format!("{sid} is lost"));
                self.rig.lose(sid);
            }
            2 if self.pipes[&sid].read == 0 => {
                self.note(|| format!("{sid} reads garbage"));
                self.rig.read(sid, b"garbage");
            }
            3 => {
                // The broker closes once all that it said is delivered.
                self.pipes.get_mut(&sid).unwrap().closes = true;
                self.broker.disconnect(sid);
            }
            4 if self.nodes > 1 => {
                let next = self.rng.random_range(0..=self.nodes);
                self.broker.leader = Some(next).filter(|n| *n < self.nodes);
                let slot = self.broker.leader.and_then(Slot::new);
                for pipe in self.pipes.values_mut() {
                    pipe.to_client.push_back(Reply::Leader { slot });
                }
            }
            5 if self.rng.random_range(0..8) == 0 => self.close(),
            _ => {}
        }
    }

    fn close(&mut self) {
        self.note(|| "close".into());
        self.rig.state.close(self.rig.now);
        self.ledger.closed_at.get_or_insert(self.rig.now);
        self.check(false);
    }
}
