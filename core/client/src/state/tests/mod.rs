//! Tests of the state machine, a room for each topic; `random` puts them all together.

mod closing;
mod ending;
mod frames;
mod giving_up;
mod links;
mod losing;
mod order;
mod random;
mod rationing;
mod releasing;
mod rig;
mod sending;
mod tickets;
mod topology;
mod validity;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Duration;

use ticketing_wire::{ErrorCode, KeySet, Reply, Request, RequestId, Slot, Token};

use super::*;
use crate::args::Terms;
use crate::error::TicketError;
use crate::ticket::ReleaseOutcome;

use frames::*;
use rig::*;

impl State {
    /// Nothing is held, counted, timed or outstanding any more.
    fn assert_idle(&self) {
        assert!(self.acquires.is_empty(), "{} acquires", self.acquires.len());
        assert!(self.ready.is_empty() && self.ready_immediate.is_empty());
        assert_eq!(self.places, 0, "places");
        assert_eq!(self.given_up, 0, "given up");
        assert!(self.releases.is_empty(), "{} releases", self.releases.len());
        assert!(self.releasing.is_empty(), "{:?}", self.releasing);
        assert!(self.release_queue.is_empty() && self.release_ready.is_empty());
        assert_eq!(self.release_places, 0, "release places");
        assert_eq!(self.automatic_waiting, 0, "automatic releases");
        assert_eq!((self.counters.waiting, self.counters.sent), (0, 0));
        for (id, session) in &self.sessions {
            session.assert_idle(*id);
        }
        let stray = |t: &&(Moment, Timer)| !matches!(t.1, Timer::Link(_) | Timer::Retire);
        assert_eq!(self.timers.iter().find(stray), None, "a timer is left");
    }
}
