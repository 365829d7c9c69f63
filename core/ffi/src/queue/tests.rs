//! The queue under shuttle: threads that submit, grant, cancel, drain and close, in thousands of
//! orders. A lost wake-up is a deadlock there, since its waits never time out.

#![allow(clippy::unwrap_used, reason = "tests")]

mod fake;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Mutex;
use shuttle::thread;

use self::fake::{FakeCall, Kind, World};
use super::signal::View;
use super::{Completion, Queue, lock};

const FOREVER: Duration = Duration::MAX;

type Ends = Vec<Completion<fake::FakeEnd>>;

impl Queue<FakeCall> {
    /// Between two drains.
    fn view(&self) -> View {
        let _between = lock(&self.calls);
        self.signal.view()
    }
}

fn explore(scenario: impl Fn() + Send + Sync + Copy + 'static) {
    let long = std::env::var_os("TICKETING_LONG").is_some();
    let schedules = if long { 200_000 } else { 10_000 };
    shuttle::check_random(scenario, schedules);
    shuttle::check_pct(scenario, schedules, 3);
}

fn one_in(n: u32) -> bool {
    thread_rng().gen_range(0..n) == 0
}

/// What is known of a call outside of its queue.
#[derive(Default, Clone, Copy)]
struct Told {
    submitted: bool,
    cancelling: bool,
    /// `cancel` has returned.
    cancelled: bool,
    stale: bool,
}

/// A queue, its calls, and what has been done to them.
#[derive(Clone)]
struct Rig {
    queue: Arc<Queue<FakeCall>>,
    world: World,
    told: Arc<Mutex<Vec<Told>>>,
}

impl Rig {
    fn new(calls: usize) -> Self {
        Rig {
            queue: Arc::new(Queue::new()),
            world: World::new(calls),
            told: Arc::new(Mutex::new(vec![Told::default(); calls])),
        }
    }

    fn calls(&self) -> usize {
        self.told().len()
    }

    fn told(&self) -> Vec<Told> {
        self.told.lock().unwrap().clone()
    }

    fn tell(&self, id: usize, change: impl FnOnce(&mut Told)) {
        change(&mut self.told.lock().unwrap()[id]);
    }

    /// Runs `action` for each call, on a thread.
    fn each(&self, action: impl Fn(&Rig, usize) + Send + 'static) -> thread::JoinHandle<()> {
        let rig = self.clone();
        thread::spawn(move || (0..rig.calls()).for_each(|id| action(&rig, id)))
    }

    fn submit(&self, id: usize) {
        self.queue.submit(tag(id), self.world.call(id));
        self.tell(id, |told| told.submitted = true);
    }

    fn grant(&self, id: usize) {
        if one_in(3) {
            self.world.wake_for_nothing(id);
        }
        self.world.grant(id);
    }

    fn maybe_cancel(&self, id: usize) {
        if one_in(2) && self.told()[id].submitted {
            self.tell(id, |told| told.cancelling = true);
            self.queue.cancel(tag(id));
            self.tell(id, |told| told.cancelled = true);
        }
    }

    fn maybe_grow_stale(&self, id: usize) {
        if one_in(4) {
            self.world.with(id, |slot| slot.stale = true);
            self.tell(id, |told| told.stale = true);
        }
    }

    /// The descriptor says what is to be taken; each call stands in line once.
    fn look(&self) {
        if one_in(4) {
            assert_ne!(self.queue.descriptor(), 0);
        }
        let view = self.queue.view();
        if let Some(readable) = view.readable {
            assert_eq!(readable, view.to_be_taken);
        }
        assert!(view.standing <= self.calls());
    }
}

fn tag(id: usize) -> i64 {
    i64::try_from(id).unwrap() + 100
}

/// How a consumer learns that something is to be taken.
#[derive(Clone, Copy)]
enum Waits {
    InNext,
    BeforeNext,
    ForTheDescriptor,
}

/// The one consumer, whose drains are torn now and then.
struct Consumer {
    rig: Rig,
    waits: Waits,
    seen: i64,
    /// The last that was handed out for each `seq`: the tag, the call, how it ended.
    handed: BTreeMap<i64, (i64, Option<usize>, Kind)>,
    torn: bool,
}

impl Consumer {
    fn new(rig: &Rig) -> Self {
        Consumer {
            rig: rig.clone(),
            waits: [Waits::InNext, Waits::BeforeNext, Waits::ForTheDescriptor]
                [thread_rng().gen_range(0..3)],
            seen: 0,
            handed: BTreeMap::new(),
            torn: false,
        }
    }

    /// Until so many completions have been acted on, or the queue is closed.
    fn run(mut self, completions: usize) -> Self {
        while usize::try_from(self.seen).unwrap() < completions && self.drain() {}
        self
    }

    /// False when the queue is closed.
    fn drain(&mut self) -> bool {
        let queue = Arc::clone(&self.rig.queue);
        // Whoever leaves a drain torn has another one coming.
        let mut timeout = Duration::ZERO;
        if !std::mem::take(&mut self.torn) {
            match self.waits {
                Waits::InNext => timeout = FOREVER,
                Waits::BeforeNext => {
                    if !queue.wait(FOREVER) {
                        return false;
                    }
                }
                Waits::ForTheDescriptor => {
                    if queue.descriptor() == -1 {
                        return false;
                    }
                    if queue.view().readable == Some(false) {
                        thread::yield_now();
                        return true;
                    }
                }
            }
        }
        let max = thread_rng().gen_range(1..4);
        let told = self.rig.told();
        let taken = queue.next(self.seen, max, timeout);
        if taken.is_empty() && timeout == FOREVER {
            return false;
        }
        assert!(taken.len() <= max);
        self.judge(&taken, &told);
        self.act(&taken);
        true
    }

    /// Against what was known before the drain.
    fn judge(&mut self, taken: &Ends, told: &[Told]) {
        for (completion, seq) in taken.iter().zip(self.seen + 1..) {
            assert_eq!(completion.seq, seq, "none is left out");
            let (kind, id) = (completion.end.kind, completion.end.id());
            if let (Some(id), Kind::Granted) = (id, kind) {
                assert!(!told[id].cancelled, "granted after its cancel");
                assert!(!told[id].stale, "granted when it was stale");
            }
            let now = (completion.tag, id, kind);
            if let Some(before) = self.handed.insert(seq, now)
                && before != now
            {
                assert_eq!((before.0, before.1), (now.0, now.1), "the same again");
                let told = self.rig.told()[id.unwrap()];
                match (before.2, kind) {
                    (Kind::Granted, Kind::GivenBack) => assert!(told.cancelling),
                    (Kind::Granted, Kind::Stale) => {}
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    fn act(&mut self, taken: &Ends) {
        let acted = match one_in(3) {
            true => thread_rng().gen_range(0..=taken.len()),
            false => taken.len(),
        };
        self.torn = acted < taken.len();
        self.seen += i64::try_from(acted).unwrap();
    }

    /// Each call's end came once, and each grant went to one place.
    fn settle(&self) {
        for id in 0..self.rig.calls() {
            let of_id = self.handed.values().filter(|handed| handed.1 == Some(id));
            let ends: Vec<Kind> = of_id.map(|handed| handed.2).collect();
            assert!(ends.len() <= 1, "call {id} ended {ends:?}");
            let back = self
                .rig
                .world
                .with(id, |slot| (slot.given_up, slot.released));
            match ends.first() {
                Some(Kind::Granted) => assert_eq!(back, (0, 0)),
                Some(Kind::GivenUp) => assert_eq!(back, (1, 0)),
                Some(Kind::GivenBack) => assert_eq!(back, (0, 1)),
                Some(Kind::Stale) | None => assert_eq!(back.0 + back.1, 1),
                Some(Kind::TagInUse) => unreachable!("it has no call"),
            }
        }
    }
}

fn calls() -> usize {
    thread_rng().gen_range(1..4)
}

#[test]
fn every_tag_completes_once_whatever_is_cancelled_and_torn() {
    explore(|| {
        let rig = Rig::new(calls());
        let others = [
            rig.each(Rig::submit),
            rig.each(Rig::grant),
            rig.each(Rig::maybe_cancel),
            rig.each(Rig::maybe_grow_stale),
            rig.each(|rig, _| rig.look()),
        ];
        let consumer = Consumer::new(&rig).run(rig.calls());
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(consumer.handed.len(), rig.calls());
        for id in 0..rig.calls() {
            assert!(
                consumer
                    .handed
                    .values()
                    .any(|h| (h.0, h.1) == (tag(id), Some(id)))
            );
        }
        // A wake that came late stands for nothing.
        assert!(rig.queue.next(consumer.seen, 8, Duration::ZERO).is_empty());
        rig.look();
        assert!(!rig.queue.view().to_be_taken);
        rig.queue.close();
        consumer.settle();
    });
}

#[test]
fn a_close_gives_back_what_was_never_handed_out_and_nothing_else() {
    explore(|| {
        let rig = Rig::new(calls());
        let others = [
            rig.each(Rig::submit),
            rig.each(Rig::grant),
            rig.each(Rig::maybe_cancel),
            rig.each(|rig, _| rig.look()),
        ];
        let queue = Arc::clone(&rig.queue);
        let closing = thread::spawn(move || queue.close());
        // It is let go, also while it waits.
        let consumer = Consumer::new(&rig).run(usize::MAX);
        closing.join().unwrap();
        others.into_iter().for_each(|other| other.join().unwrap());
        assert!(rig.queue.next(0, 8, FOREVER).is_empty());
        assert!(!rig.queue.wait(FOREVER));
        assert_eq!(rig.queue.descriptor(), -1);
        assert_eq!(rig.queue.view().standing, 0);
        consumer.settle();
        rig.queue.close();
    });
}

#[test]
fn a_queue_that_is_dropped_is_closed() {
    explore(|| {
        let Rig { queue, world, .. } = Rig::new(2);
        queue.submit(1, world.call(0));
        world.grant(1);
        queue.submit(2, world.call(1));
        let granting = {
            let world = world.clone();
            thread::spawn(move || world.grant(0))
        };
        drop(queue);
        granting.join().unwrap();
        assert_eq!(world.with(0, |slot| (slot.given_up, slot.released)), (1, 0));
        assert_eq!(world.with(1, |slot| (slot.given_up, slot.released)), (0, 1));
    });
}

#[test]
fn a_tag_in_use_fails_the_later_call_alone() {
    explore(|| {
        let world = World::new(3);
        let queue = Queue::new();
        queue.submit(7, world.call(0));
        queue.submit(7, world.call(1));
        let cancels = one_in(2);
        if cancels {
            queue.cancel(7);
        }
        let granting = {
            let world = world.clone();
            thread::spawn(move || world.grant(0))
        };
        let mut ends = Vec::new();
        let mut seen = 0;
        while ends.len() < 2 {
            for completion in queue.next(seen, 1, FOREVER) {
                assert_eq!(completion.tag, 7);
                seen = completion.seq;
                ends.push((completion.end.id(), completion.end.kind));
            }
        }
        granting.join().unwrap();
        let first = if cancels {
            Kind::GivenUp
        } else {
            Kind::Granted
        };
        ends.sort_by_key(|end| end.0);
        assert_eq!(ends, [(None, Kind::TagInUse), (Some(0), first)]);
        // The later call never began; the tag is free again.
        assert_eq!(world.with(1, |slot| slot.given_up), 1);
        queue.submit(7, world.call(2));
        queue.cancel(7);
        let again = queue.next(seen, 8, FOREVER);
        assert_eq!(again.len(), 1);
        assert_eq!(again[0].end.kind, Kind::GivenUp);
    });
}

#[test]
fn a_cancel_reaches_the_call_that_has_the_tag_now() {
    let in_order = || {
        let world = World::new(4);
        let queue = Queue::new();
        world.grant(0);
        queue.submit(7, world.call(0));
        assert_eq!(queue.next(0, 8, FOREVER)[0].end.kind, Kind::Granted);
        // Handed out, not acted on yet: its layer may use the tag again.
        queue.submit(7, world.call(1));
        queue.cancel(7);
        let kinds = |ends: Ends| ends.iter().map(|c| c.end.kind).collect::<Vec<_>>();
        let taken = queue.next(0, 8, FOREVER);
        assert_eq!(kinds(taken), [Kind::Granted, Kind::GivenUp]);
        queue.cancel(7);
        queue.cancel(8);
        let taken = queue.next(0, 8, FOREVER);
        assert_eq!(kinds(taken), [Kind::Granted, Kind::GivenUp]);
        assert!(!queue.view().to_be_taken, "all of it was handed out again");
        assert!(queue.next(2, 8, Duration::ZERO).is_empty());
        // A call that was refused for its tag leaves the tag to the one that has it.
        queue.submit(9, world.call(2));
        queue.submit(9, world.call(3));
        assert_eq!(kinds(queue.next(2, 8, FOREVER)), [Kind::TagInUse]);
        queue.cancel(9);
        assert_eq!(kinds(queue.next(3, 8, FOREVER)), [Kind::GivenUp]);
    };
    shuttle::check_random(in_order, 1);
}
