//! What the table keeps, and the steps that its operations are made of.

use std::hash::{BuildHasher, Hasher};

use hashbrown::DefaultHashBuilder;
use ticketing_wire::{Key, KeySet, Keys, MAX_SET_KEYS, Reply, RequestId, Token};

use super::key::KeyBuf;
use super::list::{Links, List};
use super::slab::NONE;
use super::timers::{Timed, Timer};
use super::{ConnId, LockTable, Sink};

/// A key that is held or wanted.
pub(super) struct Lock {
    pub(super) key: KeyBuf,
    /// The grant that holds it.
    pub(super) holder: u32,
    /// The holder's next key.
    pub(super) next_held: u32,
    /// Its line, of `wants`.
    pub(super) line: List,
    pub(super) waiting: u32,
}

pub(super) struct Grant {
    pub(super) token: Token,
    pub(super) lease: Timer,
    /// Its first key; the others follow in `Lock::next_held`, ascending.
    pub(super) first_held: u32,
}

pub(super) struct Waiter {
    pub(super) conn: ConnId,
    pub(super) id: RequestId,
    pub(super) arrival: u64,
    pub(super) wait: Timer,
    /// Its connection's other waiters.
    pub(super) siblings: Links,
    /// Its first key; the others follow in `Want::next_key`, ascending.
    pub(super) first_want: u32,
    /// How many of its keys are held or have someone else first in line.
    pub(super) blocked: u8,
    pub(super) lease: u8,
    pub(super) set: bool,
}

/// A waiter's place in one key's line.
pub(super) struct Want {
    pub(super) waiter: u32,
    pub(super) lock: u32,
    pub(super) line: Links,
    pub(super) next_key: u32,
}

impl Timed for Grant {
    fn timer(&mut self) -> &mut Timer {
        &mut self.lease
    }
}

impl Timed for Waiter {
    fn timer(&mut self) -> &mut Timer {
        &mut self.wait
    }
}

fn hash_key(seed: &DefaultHashBuilder, key: &[u8]) -> u64 {
    let mut hasher = seed.build_hasher();
    hasher.write(key);
    hasher.finish()
}

/// Clients can't choose tokens, so one multiplication spreads them well enough.
fn hash_token(token: Token) -> u64 {
    token.get().wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl LockTable {
    /// Ends what ended first, unless the bounds were low and nothing has. Of a lease and a wait
    /// that end together the lease goes first, so that the waiter is served.
    pub(super) fn end_first(&mut self, sink: &mut impl Sink) {
        let over = |first: Option<(u64, u32)>| first.filter(|&(end, _)| end <= self.now);
        let lease = over(self.leases.first());
        let wait = over(self.waits.first());
        match (lease, wait) {
            (Some((lease_end, grant)), wait) if wait.is_none_or(|(end, _)| lease_end <= end) => {
                self.end(grant, sink);
            }
            (_, Some((_, waiter))) => {
                let Waiter { conn, id, .. } = self.waiters[waiter];
                self.withdraw(waiter);
                sink.reply(conn, Reply::TimedOut { id });
            }
            (_, None) => {}
        }
        self.settle(sink);
    }

    pub(super) fn find(&self, key: Key<'_>) -> Option<u32> {
        let key = key.as_bytes();
        let hash = hash_key(&self.seed, key);
        self.by_key
            .find(&self.locks, hash, |lock| lock.key.as_bytes() == key)
    }

    pub(super) fn find_token(&self, token: Token) -> Option<u32> {
        self.by_token
            .find(&self.grants, hash_token(token), |grant| {
                grant.token == token
            })
    }

    pub(super) fn first_of(&self, conn: ConnId) -> Option<u32> {
        self.conns.get(&conn).map(|waiters| waiters.head())
    }

    pub(super) fn holds_exactly(&self, grant: u32, keys: Keys<'_>) -> bool {
        let mut held = self.grants[grant].first_held;
        for key in keys {
            if held == NONE || self.locks[held].key.as_bytes() != key.as_bytes() {
                return false;
            }
            held = self.locks[held].next_held;
        }
        held == NONE
    }

    fn add_lock(&mut self, key: Key<'_>) -> u32 {
        let lock = self.locks.insert(Lock {
            key: key.into(),
            holder: NONE,
            next_held: NONE,
            line: List::EMPTY,
            waiting: 0,
        });
        self.by_key.insert(&self.locks, lock, |lock| {
            hash_key(&self.seed, lock.key.as_bytes())
        });
        lock
    }

    fn add_grant(&mut self, token: Token, lease: u8) -> u32 {
        let lease = Timer::new(self.now, lease);
        let grant = self.grants.insert(Grant {
            token,
            lease,
            first_held: NONE,
        });
        self.by_token
            .insert(&self.grants, grant, |grant| hash_token(grant.token));
        self.leases.insert(&mut self.grants, grant);
        grant
    }

    /// `last` is the grant's key before this one.
    fn hold(&mut self, grant: u32, lock: u32, last: u32) {
        self.locks[lock].holder = grant;
        match last {
            NONE => self.grants[grant].first_held = lock,
            last => self.locks[last].next_held = lock,
        }
    }

    /// Grants keys none of which is in the table.
    pub(super) fn grant_new(&mut self, token: Token, lease: u8, keys: Keys<'_>) {
        let grant = self.add_grant(token, lease);
        let mut last = NONE;
        for key in keys {
            let lock = self.add_lock(key);
            self.hold(grant, lock, last);
            last = lock;
        }
    }

    /// Ends a grant; whoever may be served now is served by [`Self::settle`].
    pub(super) fn end(&mut self, grant: u32, sink: &mut impl Sink) {
        self.by_token
            .remove(&self.grants, grant, |grant| hash_token(grant.token));
        self.leases.remove(&mut self.grants, grant);
        let Grant {
            token, first_held, ..
        } = self.grants.remove(grant);
        let mut held = first_held;
        while held != NONE {
            let lock = &mut self.locks[held];
            let next = std::mem::replace(&mut lock.next_held, NONE);
            lock.holder = NONE;
            self.pass_on(held);
            held = next;
        }
        sink.ended(token);
    }

    /// A key is free and its line has a new head, or none: then it leaves the table.
    fn pass_on(&mut self, lock: u32) {
        let line = self.locks[lock].line;
        if line.is_empty() {
            self.by_key.remove(&self.locks, lock, |lock| {
                hash_key(&self.seed, lock.key.as_bytes())
            });
            self.locks.remove(lock);
            return;
        }
        let head = self.wants[line.head()].waiter;
        let waiter = &mut self.waiters[head];
        waiter.blocked -= 1;
        if waiter.blocked == 0 {
            self.ready.push(head);
        }
    }

    /// `known` has the keys that are in the table, `NONE` for the others.
    pub(super) fn enqueue(&mut self, waiter: Waiter, keys: Keys<'_>, known: &[u32; MAX_SET_KEYS]) {
        let conn = waiter.conn;
        self.arrivals += 1;
        let waiter = self.waiters.insert(waiter);
        self.waits.insert(&mut self.waiters, waiter);
        let siblings = self.conns.entry(conn).or_insert(List::EMPTY);
        siblings.push_back(&mut self.waiters, waiter, |waiter| &mut waiter.siblings);
        let mut last = NONE;
        for (&known, key) in known.iter().zip(keys) {
            let lock = if known == NONE {
                self.add_lock(key)
            } else {
                known
            };
            let want = self.wants.insert(Want {
                waiter,
                lock,
                line: Links::NEW,
                next_key: NONE,
            });
            let lock = &mut self.locks[lock];
            lock.line
                .push_back(&mut self.wants, want, |want| &mut want.line);
            lock.waiting += 1;
            match last {
                NONE => self.waiters[waiter].first_want = want,
                last => self.wants[last].next_key = want,
            }
            last = want;
        }
    }

    /// Takes a waiter away but for its wants.
    fn remove_waiter(&mut self, waiter: u32) -> Waiter {
        self.waits.remove(&mut self.waiters, waiter);
        let conn = self.waiters[waiter].conn;
        let siblings = self.conns.get_mut(&conn).expect("it has a waiter");
        siblings.remove(&mut self.waiters, waiter, |waiter| &mut waiter.siblings);
        if siblings.is_empty() {
            self.conns.remove(&conn);
        }
        self.waiters.remove(waiter)
    }

    /// Takes a want out of its line; says its lock, whether it was first, and the waiter's next.
    fn remove_want(&mut self, want: u32) -> (u32, bool, u32) {
        let lock_at = self.wants[want].lock;
        let lock = &mut self.locks[lock_at];
        let first = lock.line.head() == want;
        lock.line
            .remove(&mut self.wants, want, |want| &mut want.line);
        lock.waiting -= 1;
        (lock_at, first, self.wants.remove(want).next_key)
    }

    /// Takes a waiter out of every line; whoever may be served now is served by [`Self::settle`].
    pub(super) fn withdraw(&mut self, waiter: u32) {
        let mut want = self.remove_waiter(waiter).first_want;
        while want != NONE {
            let (lock, first, next) = self.remove_want(want);
            if first && self.locks[lock].holder == NONE {
                self.pass_on(lock);
            }
            want = next;
        }
    }

    /// Grants those who are no longer blocked, in arrival order.
    #[inline]
    pub(super) fn settle(&mut self, sink: &mut impl Sink) {
        if !self.ready.is_empty() {
            self.grant_ready(sink);
        }
    }

    fn grant_ready(&mut self, sink: &mut impl Sink) {
        let mut ready = std::mem::take(&mut self.ready);
        // One that came to 0 may have been withdrawn itself, with its whole connection.
        ready.retain(|&waiter| self.waiters.contains(waiter));
        ready.sort_unstable_by_key(|&waiter| self.waiters[waiter].arrival);
        for waiter in ready.drain(..) {
            self.grant_waiter(waiter, sink);
        }
        self.ready = ready;
    }

    fn grant_waiter(&mut self, waiter: u32, sink: &mut impl Sink) {
        let Waiter {
            conn,
            id,
            lease,
            set,
            first_want,
            ..
        } = self.remove_waiter(waiter);
        let token = self.tokens.next(|mark| sink.mark(mark));
        let grant = self.add_grant(token, lease);
        let (mut want, mut last) = (first_want, NONE);
        while want != NONE {
            let (lock, _, next) = self.remove_want(want);
            self.hold(grant, lock, last);
            (want, last) = (next, lock);
        }
        if set {
            let keys = self.held_set(grant);
            sink.granted(conn, id, token, keys.as_keys(), lease);
        } else {
            let key = self.locks[self.grants[grant].first_held].key.as_key();
            sink.granted(conn, id, token, Keys::One(key), lease);
        }
    }

    fn held_set(&self, grant: u32) -> KeySet {
        let mut held = self.grants[grant].first_held;
        let keys = std::iter::from_fn(|| {
            let lock = (held != NONE).then(|| &self.locks[held])?;
            held = lock.next_held;
            Some(lock.key.as_key().as_str())
        });
        KeySet::new(keys).expect("it was a set when it was asked for")
    }
}
