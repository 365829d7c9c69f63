//! Measures the broker beside other lock services (`scripts/bench`).
//!
//! Every figure is acquire+release pairs per second, on loopback, and means something only as a
//! ratio to another figure of the same run. [`lean`] drives each server by the least client that
//! can: one thread, no library, pipelined. [`users`] drives it as an application does, through its
//! client library. [`memory`] weighs what a broker keeps.

#![forbid(unsafe_code)]

pub mod keys;
pub mod lean;
pub mod memory;
pub mod null;
pub mod protocol;
pub mod servers;
pub mod table;
pub mod users;

use std::time::{Duration, Instant};

/// When a measurement ends.
#[derive(Debug, Clone, Copy)]
pub enum Stop {
    /// After this many pairs: for tests, which must not depend on time.
    Pairs(u64),
    /// After measuring for this long, a quarter of it again to warm up not counted.
    After(Duration),
}

/// Counts pairs from the end of the warm-up on.
#[derive(Debug)]
pub(crate) struct Meter {
    stop: Stop,
    warm_until: Option<Instant>,
    since: Instant,
    from: u64,
}

impl Meter {
    pub(crate) fn start(stop: Stop) -> Self {
        let since = Instant::now();
        let warm_until = match stop {
            Stop::Pairs(_) => None,
            Stop::After(time) => Some(since + time / 4),
        };
        Meter {
            stop,
            warm_until,
            since,
            from: 0,
        }
    }

    /// The pairs per second, once `pairs` or the time is reached.
    pub(crate) fn done(&mut self, pairs: u64) -> Option<f64> {
        let now = Instant::now();
        if self.warm_until.is_some_and(|warm| now >= warm) {
            (self.warm_until, self.since, self.from) = (None, now, pairs);
        }
        let spent = now - self.since;
        let done = match self.stop {
            Stop::Pairs(wanted) => pairs >= wanted,
            Stop::After(time) => self.warm_until.is_none() && spent >= time,
        };
        #[allow(clippy::cast_precision_loss, reason = "far below 2^52 pairs")]
        let counted = (pairs - self.from) as f64;
        done.then(|| counted / spent.as_secs_f64())
    }
}
