//! Timers of whole seconds. The clock never goes back, so timers of one length end in the order in
//! which they began: one list per length is exact, with insertion and removal in O(1).

use super::list::{Links, List};
use super::slab::Slab;

/// An end that never comes.
const NEVER: u64 = u64::MAX;

const NANOS_PER_SEC: u64 = 1_000_000_000;

/// What a timed value keeps. Times are nanoseconds on the table's clock.
#[derive(Clone, Copy)]
pub(super) struct Timer {
    links: Links,
    pub(super) end: u64,
    pub(super) secs: u8,
}

impl Timer {
    /// A timer that begins now, not yet in any [`Timers`].
    pub(super) fn new(now: u64, secs: u8) -> Self {
        let end = now.saturating_add(u64::from(secs) * NANOS_PER_SEC);
        Timer {
            links: Links::NEW,
            end,
            secs,
        }
    }
}

pub(super) trait Timed {
    fn timer(&mut self) -> &mut Timer;
}

pub(super) struct Timers {
    lists: [List; 256],
    /// The end of each list's first timer.
    ends: [u64; 256],
    /// No timer ends before this, so that most ticks are one comparison. It is exact while
    /// `ends[soonest]` is equal to it.
    bound: u64,
    soonest: u8,
}

impl Timers {
    pub(super) fn new() -> Self {
        Timers {
            lists: [List::EMPTY; 256],
            ends: [NEVER; 256],
            bound: NEVER,
            soonest: 0,
        }
    }

    pub(super) fn bound(&self) -> u64 {
        self.bound
    }

    pub(super) fn insert<T: Timed>(&mut self, slab: &mut Slab<T>, at: u32) {
        let Timer { end, secs, .. } = *slab[at].timer();
        let list = &mut self.lists[usize::from(secs)];
        if list.is_empty() {
            self.ends[usize::from(secs)] = end;
            if (end, secs) < (self.bound, self.soonest) {
                (self.bound, self.soonest) = (end, secs);
            }
        }
        list.push_back(slab, at, |value| &mut value.timer().links);
    }

    pub(super) fn remove<T: Timed>(&mut self, slab: &mut Slab<T>, at: u32) {
        let secs = usize::from(slab[at].timer().secs);
        let list = &mut self.lists[secs];
        let first = list.head() == at;
        list.remove(slab, at, |value| &mut value.timer().links);
        if first {
            let next = list.head();
            self.ends[secs] = if list.is_empty() {
                NEVER
            } else {
                slab[next].timer().end
            };
        }
    }

    /// The timer that ends first, and when; of those that end together the shortest, then the
    /// oldest. Makes the bound exact.
    pub(super) fn first(&mut self) -> Option<(u64, u32)> {
        if self.ends[usize::from(self.soonest)] != self.bound {
            let ends = self.ends.iter().copied().zip(0..=u8::MAX);
            (self.bound, self.soonest) = ends.min().expect("256 lists");
        }
        let list = self.lists[usize::from(self.soonest)];
        (!list.is_empty()).then_some((self.bound, list.head()))
    }
}
