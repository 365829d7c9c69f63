//! The broker object as a state machine without I/O: C7–C19 and C23–C27 live here.
//!
//! Inputs are calls, bytes read, ends of stream and the time; outputs are bytes to write, results,
//! connections to open and "close now". A driver (`driver/`) owns sockets, TLS and timers and does
//! what this says; a test can put it in any state, in any order, without a socket or a sleep.
//!
//! Rooms: `acquire` and `release` hold the requests, `session` one connection, `reply` what the
//! broker says, `link` when to connect and whom to ask, `retire` the rationing of C9, `dispatch`
//! who sends what where, `shutdown` the end.

mod acquire;
mod dispatch;
mod link;
mod release;
mod reply;
mod retire;
mod session;
mod shutdown;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use ticketing_wire::{KeySet, Token};
use tokio::sync::watch;

use crate::clock::Moment;
use crate::stats::Counters;

use acquire::Acquire;
pub(crate) use acquire::Cause;
pub(crate) use link::{Failure, LinkId};
use link::{Link, Topology};
use release::Release;
pub(crate) use release::{Origin, ReleaseCell};
use session::Session;
pub(crate) use session::{SessionEnd, Transmit};

/// An acquire that has a wire wait is given up this long after that wait (C9).
pub(crate) const ANSWER_GRACE: Duration = Duration::from_secs(3);
/// With `wait` 0, how long an acquire waits for a session (C25).
pub(crate) const IMMEDIATE_SESSION_WAIT: Duration = Duration::from_secs(5);
/// A release is repeated until this long after it was called (C19).
pub(crate) const RELEASE_TIME: Duration = Duration::from_secs(5);
/// How long `close` works on the remaining releases (C27).
pub(crate) const CLOSE_TIME: Duration = Duration::from_secs(5);
/// How long an ending session goes on reading (C13a).
pub(crate) const ENDING_TIME: Duration = Duration::from_secs(1);
/// At most so many releases are outstanding beside the acquires' places (C26).
pub(crate) const RELEASE_PLACES: usize = 128;
/// At most so many automatic releases wait to be sent (C19).
pub(crate) const AUTOMATIC_QUEUE: usize = 512;

pub(crate) type AcquireId = u64;
pub(crate) type ReleaseId = u64;
pub(crate) type SessionId = u64;

/// A grant as the state machine hands it out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) keys: Arc<KeySet>,
    pub(crate) token: Token,
    /// The end of the conservative validity (C16).
    pub(crate) valid_before: Moment,
}

/// What is due at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Acquire(AcquireId),
    Release(ReleaseId),
    Session(SessionId),
    Link(LinkId),
    Retire,
    Close,
}

/// What `wait_ready` waits for (C21).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readiness {
    Waiting,
    Usable,
    Closed,
}

/// Where the broker object stands in its life (C27).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Open,
    Closing,
    Closed,
}

pub(crate) struct State {
    max_pending: usize,
    life: Life,
    /// Numbers acquires, releases and sessions, in the order of the calls.
    next_number: u64,

    acquires: HashMap<AcquireId, Acquire>,
    /// Unsent acquires that could go now, oldest first.
    ready: BTreeSet<AcquireId>,
    /// Those of them with `wait` 0.
    ready_immediate: BTreeSet<AcquireId>,
    /// Places taken by acquires that were assigned to a session and are not finished (C26).
    places: usize,

    releases: HashMap<ReleaseId, Release>,
    /// Unfinished releases by key, so that an acquire never overtakes one (C14).
    releasing: HashMap<Box<str>, Vec<ReleaseId>>,
    /// Releases that wait for one of the release places, oldest first.
    release_queue: BTreeSet<ReleaseId>,
    /// Releases that could go now, oldest first.
    release_ready: BTreeSet<ReleaseId>,
    /// Releases that take one of the release places.
    release_places: usize,
    /// Automatic releases not yet sent.
    automatic_waiting: usize,

    sessions: BTreeMap<SessionId, Session>,
    /// Whose turn it was last (C14).
    last_turn: SessionId,
    links: Vec<Link>,
    topology: Topology,
    last_error: Option<String>,

    /// When the last session was retired, for the ration of C9.
    last_retired: Option<Moment>,
    /// Given-up acquires that are still unanswered.
    given_up: usize,

    timers: BTreeSet<(Moment, Timer)>,
    rng: SmallRng,
    counters: Counters,

    readiness: watch::Sender<Readiness>,
    gone: watch::Sender<bool>,
    /// The driver's task, to be told of new connections to open and earlier deadlines.
    driver: Option<Waker>,
    /// The deadline that the driver knows.
    armed: Option<Moment>,
    /// To be woken once the lock is dropped.
    wakers: Vec<Waker>,
}

impl State {
    /// One address makes a single broker, more make a cluster. `seed` feeds the jitter.
    pub(crate) fn new(now: Moment, addresses: usize, max_pending: usize, seed: u64) -> Self {
        let mut state = State {
            max_pending,
            life: Life::Open,
            next_number: 0,
            acquires: HashMap::new(),
            ready: BTreeSet::new(),
            ready_immediate: BTreeSet::new(),
            places: 0,
            releases: HashMap::new(),
            releasing: HashMap::new(),
            release_queue: BTreeSet::new(),
            release_ready: BTreeSet::new(),
            release_places: 0,
            automatic_waiting: 0,
            sessions: BTreeMap::new(),
            last_turn: 0,
            links: link::for_addresses(addresses),
            topology: Topology::new(addresses),
            last_error: None,
            last_retired: None,
            given_up: 0,
            timers: BTreeSet::new(),
            rng: SmallRng::seed_from_u64(seed),
            counters: Counters::default(),
            readiness: watch::Sender::new(Readiness::Waiting),
            gone: watch::Sender::new(false),
            driver: None,
            armed: None,
            wakers: Vec::new(),
        };
        for link in 0..state.links.len() {
            state.schedule_link(link, now);
        }
        state
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// The tasks to wake now that the lock is dropped.
    pub(crate) fn take_wakers(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.wakers)
    }

    /// Whether any session can take a request now.
    pub(crate) fn watch_readiness(&self) -> watch::Receiver<Readiness> {
        self.readiness.subscribe()
    }

    /// Turns true when everything has ended after `close`, sockets and tasks included.
    pub(crate) fn watch_gone(&self) -> watch::Receiver<bool> {
        self.gone.subscribe()
    }

    /// Moves one thing's timer from one moment to another.
    fn set_timer(&mut self, timer: Timer, old: Option<Moment>, new: Option<Moment>) {
        if let Some(old) = old {
            self.timers.remove(&(old, timer));
        }
        if let Some(new) = new {
            self.timers.insert((new, timer));
            if self.armed.is_none_or(|armed| new < armed) {
                self.wake_driver();
            }
        }
    }

    fn wake_driver(&mut self) {
        if let Some(driver) = self.driver.take() {
            self.wakers.push(driver);
        }
    }

    /// Whether the driver was woken since it asked for its deadline.
    pub(crate) fn driver_is_woken(&self) -> bool {
        self.driver.is_none()
    }

    /// The driver's next deadline. Remembers `driver` to be woken when that comes earlier or a
    /// connection is to be opened.
    pub(crate) fn next_deadline(&mut self, driver: &Waker) -> Option<Moment> {
        self.driver = Some(driver.clone());
        self.armed = self.timers.first().map(|(at, _)| *at);
        self.armed
    }

    /// Does everything that is due.
    pub(crate) fn tick(&mut self, now: Moment) {
        while let Some(&(at, timer)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            match timer {
                Timer::Acquire(id) => self.acquire_due(now, id),
                Timer::Release(id) => self.release_due(now, id),
                Timer::Session(id) => self.session_due(now, id),
                Timer::Link(link) => self.link_due(link),
                Timer::Retire => self.ration_retirements(now),
                Timer::Close => self.close_due(now),
            }
        }
        self.dispatch(now);
    }
}
