//! The lock table: who holds which key, who waits for it, and when that ends (S1–S6).
//!
//! A pure state machine. Requests and the time go in; replies and what must be made durable come
//! out through a [`Sink`], in order. It does no I/O and reads no clock of its own (but for the one
//! that [`TokenSource`] is given).
//!
//! A key is in the table while it is held or wanted. Its waiters stand in one line, and each waiter
//! counts those of its keys that are held or where it isn't first; at 0 it is granted. So a free, a
//! grant or a withdrawal touches the heads of its own keys' lines alone, however long these are.

mod index;
mod key;
mod list;
mod slab;
mod state;
#[cfg(test)]
mod tests;
mod timers;

use std::time::Duration;

use hashbrown::{DefaultHashBuilder, HashMap};
use ticketing_wire::{ErrorCode, Keys, MAX_SET_KEYS, Reply, RequestId, Token};

use crate::token::TokenSource;
use index::Places;
use list::{Links, List};
use slab::{NONE, Slab};
use state::{Grant, Lock, Waiter, Want};
use timers::{Timer, Timers};

/// A connection, as its owner numbers it. Never used again for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

/// Where the table's effects go, in the order in which they happen.
pub trait Sink {
    /// An answer other than a grant.
    fn reply(&mut self, conn: ConnId, reply: Reply);

    /// A grant: to be made durable, then answered with `A` (one key) or `S` (a set). The lease, in
    /// seconds, runs from the `now` that the table was called with.
    fn granted(&mut self, conn: ConnId, id: RequestId, token: Token, keys: Keys<'_>, lease: u8);

    /// A grant is gone, whether released, expired or undone: to be made durable.
    fn ended(&mut self, token: Token);

    /// A block of tokens was begun; none above `mark` is issued before the next call of this: to be
    /// made durable no later than the grant that follows (S3).
    fn mark(&mut self, mark: u64);
}

/// How much the table takes before it answers `B` (S6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableLimits {
    /// Waiters in the line of any one key.
    pub waiters_per_key: u32,
    /// Waiters in all; a waiter for a set counts once.
    pub waiters: u32,
    /// Keys that are held, or kept idle for a waiting set, in all.
    pub grants: u32,
}

impl Default for TableLimits {
    fn default() -> Self {
        TableLimits {
            waiters_per_key: 1024,
            waiters: 65_536,
            grants: 1_000_000,
        }
    }
}

/// What is in the table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TableStats {
    /// Grants; a set counts once.
    pub grants: usize,
    /// Waiters; one for a set counts once.
    pub waiters: usize,
    /// Keys that are held, or kept idle for a waiting set: what [`TableLimits::grants`] bounds.
    pub keys: usize,
}

/// Why a stored grant can't be held again: the store contradicts itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// One of its keys is held by another grant.
    #[error(
        "the store holds key \"{key}\" for token {token} and for another one: it is \
         damaged, restore it from a backup"
    )]
    KeyHeld {
        /// The later token.
        token: Token,
        /// The key.
        key: String,
    },
    /// The token was restored before.
    #[error("the store holds token {0} twice: it is damaged, restore it from a backup")]
    TokenHeld(Token),
    /// The token is above the stored mark, so it might be issued again.
    #[error(
        "the store holds token {token}, above its own mark {mark}: it is damaged, \
         restore it from a backup"
    )]
    AboveMark {
        /// The token.
        token: Token,
        /// The stored mark.
        mark: u64,
    },
}

/// Every grant and every waiter of one broker.
///
/// `now` is time since any fixed origin, on a clock that never goes back; an earlier `now` than one
/// given before counts as that one. Each method first ends the leases and waits that are over.
pub struct LockTable {
    limits: TableLimits,
    tokens: TokenSource,
    now: u64,
    /// Held or wanted keys, found by their bytes.
    locks: Slab<Lock>,
    by_key: Places,
    /// Random, so that nobody can choose keys that collide.
    seed: DefaultHashBuilder,
    /// Found by token.
    grants: Slab<Grant>,
    by_token: Places,
    leases: Timers,
    waiters: Slab<Waiter>,
    waits: Timers,
    wants: Slab<Want>,
    /// The waiters of each connection that has any.
    conns: HashMap<ConnId, List>,
    arrivals: u64,
    /// Waiters whose count came to 0, to be granted by [`Self::settle`].
    ready: Vec<u32>,
}

impl LockTable {
    /// An empty table.
    #[must_use]
    pub fn new(limits: TableLimits, tokens: TokenSource) -> Self {
        LockTable {
            limits,
            tokens,
            now: 0,
            locks: Slab::new(),
            by_key: Places::new(),
            seed: DefaultHashBuilder::default(),
            grants: Slab::new(),
            by_token: Places::new(),
            leases: Timers::new(),
            waiters: Slab::new(),
            waits: Timers::new(),
            wants: Slab::new(),
            conns: HashMap::new(),
            arrivals: 0,
            ready: Vec::new(),
        }
    }

    /// A request for a grant on `keys`: it is granted, put in line for up to `wait` seconds, or
    /// answered at once with `T` (`wait` 0) or `B` (a limit, S6). `lease` is in seconds, 1–250.
    #[allow(clippy::too_many_arguments, reason = "a request's fields")]
    pub fn acquire(
        &mut self,
        now: Duration,
        conn: ConnId,
        id: RequestId,
        wait: u8,
        lease: u8,
        keys: Keys<'_>,
        sink: &mut impl Sink,
    ) {
        self.tick(now, sink);
        let mut known = [NONE; MAX_SET_KEYS];
        let mut blocked = 0;
        let mut full_line = false;
        for (known, key) in known.iter_mut().zip(keys) {
            if let Some(lock) = self.find(key) {
                *known = lock;
                blocked += 1;
                full_line |= self.locks[lock].waiting >= self.limits.waiters_per_key;
            }
        }
        let all_keys = self.by_key.len() + keys.len() - usize::from(blocked);
        let too_many_keys = all_keys > self.limits.grants as usize;
        // A key in the table is held or wanted, so one that was found is in the way (S1).
        if blocked > 0 && wait == 0 {
            sink.reply(conn, Reply::TimedOut { id });
        } else if too_many_keys {
            sink.reply(conn, Reply::Busy { id });
        } else if blocked == 0 {
            let token = self.tokens.next(|mark| sink.mark(mark));
            self.grant_new(token, lease, keys);
            sink.granted(conn, id, token, keys, lease);
        } else if full_line || self.waiters.len() >= self.limits.waiters as usize {
            sink.reply(conn, Reply::Busy { id });
        } else {
            let waiter = Waiter {
                conn,
                id,
                arrival: self.arrivals,
                wait: Timer::new(self.now, wait),
                siblings: Links::NEW,
                first_want: NONE,
                blocked,
                lease,
                set: matches!(keys, Keys::Set(_)),
            };
            self.enqueue(waiter, keys, &known);
        }
    }

    /// Gives a grant back: `R` or `G` if `token` is current for exactly `keys`, `E6` if it is
    /// current for others, else `N` (S4). The connection that it was granted to doesn't matter.
    pub fn release(
        &mut self,
        now: Duration,
        conn: ConnId,
        id: RequestId,
        token: Token,
        keys: Keys<'_>,
        sink: &mut impl Sink,
    ) {
        self.tick(now, sink);
        let Some(grant) = self.find_token(token) else {
            return sink.reply(conn, Reply::NotCurrent { id });
        };
        if !self.holds_exactly(grant, keys) {
            return sink.reply(
                conn,
                Reply::Error {
                    id,
                    code: ErrorCode::GroupMismatch,
                },
            );
        }
        self.end(grant, sink);
        let reply = match keys {
            Keys::One(_) => Reply::Released { id },
            Keys::Set(_) => Reply::SetReleased { id },
        };
        sink.reply(conn, reply);
        self.settle(sink);
    }

    /// A connection is gone: its waiters leave the line, without an answer. Its grants stay until
    /// they are released or expire (S5).
    pub fn disconnect(&mut self, now: Duration, conn: ConnId, sink: &mut impl Sink) {
        self.tick(now, sink);
        while let Some(waiter) = self.first_of(conn) {
            self.withdraw(waiter);
        }
        self.settle(sink);
    }

    /// Answers `E3` to the waiters of one half-closed connection (S5), or of all (S10).
    pub fn refuse_waiters(&mut self, now: Duration, conn: Option<ConnId>, sink: &mut impl Sink) {
        self.tick(now, sink);
        let refused = match conn {
            Some(conn) => vec![conn],
            None => self.conns.keys().copied().collect(),
        };
        for conn in refused {
            while let Some(waiter) = self.first_of(conn) {
                let id = self.waiters[waiter].id;
                self.withdraw(waiter);
                sink.reply(
                    conn,
                    Reply::Error {
                        id,
                        code: ErrorCode::NotActive,
                    },
                );
            }
        }
        self.settle(sink);
    }

    /// Takes back a grant whose reply never reached the transport (S5). Nothing happens if the
    /// token is no longer current.
    pub fn undo(&mut self, now: Duration, token: Token, sink: &mut impl Sink) {
        self.tick(now, sink);
        if let Some(grant) = self.find_token(token) {
            self.end(grant, sink);
            self.settle(sink);
        }
    }

    /// At recovery: a stored grant is held again, for its full lease from `now` (S7). Limits don't
    /// apply.
    ///
    /// # Errors
    /// [`RestoreError`]: the grant contradicts another one or the stored mark.
    pub fn restore(
        &mut self,
        now: Duration,
        token: Token,
        keys: Keys<'_>,
        lease: u8,
    ) -> Result<(), RestoreError> {
        self.advance(now);
        let mark = self.tokens.stored_mark();
        if token.get() > mark {
            return Err(RestoreError::AboveMark { token, mark });
        }
        if self.find_token(token).is_some() {
            return Err(RestoreError::TokenHeld(token));
        }
        if let Some(key) = keys.iter().find(|&key| self.find(key).is_some()) {
            return Err(RestoreError::KeyHeld {
                token,
                key: key.as_str().to_owned(),
            });
        }
        self.grant_new(token, lease, keys);
        Ok(())
    }

    /// Ends the leases and waits that are over, in the order in which they ended, and serves those
    /// who waited for it. Never early (S2).
    #[inline]
    pub fn tick(&mut self, now: Duration, sink: &mut impl Sink) {
        self.advance(now);
        while self.leases.bound().min(self.waits.bound()) <= self.now {
            self.end_first(sink);
        }
    }

    /// When [`Self::tick`] should be called next if nothing else happens; `None` while nothing is
    /// timed. It may be early (a tick then moves it on), never late.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        let lease = (self.grants.len() > 0).then(|| self.leases.bound());
        let wait = (self.waiters.len() > 0).then(|| self.waits.bound());
        lease
            .into_iter()
            .chain(wait)
            .min()
            .map(Duration::from_nanos)
    }

    /// How full the table is.
    #[must_use]
    pub fn stats(&self) -> TableStats {
        TableStats {
            grants: self.grants.len(),
            waiters: self.waiters.len(),
            keys: self.by_key.len(),
        }
    }

    fn advance(&mut self, now: Duration) {
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX - 1);
        self.now = self.now.max(now);
    }
}
