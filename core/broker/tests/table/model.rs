//! What the lock table should do, written as plainly as can be: a list of grants, a list of waiters
//! in arrival order, and a look at all of them after every event.

use std::collections::BTreeSet;

use ticketing_broker::table::{TableLimits, TableStats};
use ticketing_wire::ErrorCode::{GroupMismatch, NotActive};

use super::recorder::Effect;

pub(crate) type Names = BTreeSet<&'static str>;

pub(crate) struct Model {
    limits: TableLimits,
    /// Nanoseconds.
    now: u64,
    last_token: u64,
    grants: Vec<Grant>,
    waiters: Vec<Waiter>,
    effects: Vec<Effect>,
}

struct Grant {
    token: u64,
    keys: Names,
    lease: u8,
    end: u64,
}

struct Waiter {
    conn: u64,
    id: u64,
    keys: Names,
    wait: u8,
    lease: u8,
    end: u64,
}

const SECOND: u64 = 1_000_000_000;

impl Model {
    pub(crate) fn new(limits: TableLimits, mark: u64) -> Self {
        Model {
            limits,
            now: 0,
            last_token: mark,
            grants: Vec::new(),
            waiters: Vec::new(),
            effects: Vec::new(),
        }
    }

    pub(crate) fn take(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    pub(crate) fn stats(&self) -> TableStats {
        TableStats {
            grants: self.grants.len(),
            waiters: self.waiters.len(),
            keys: self.held_or_wanted().len(),
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// When the first lease or wait ends.
    pub(crate) fn next_end(&self) -> Option<u64> {
        let leases = self.grants.iter().map(|grant| grant.end);
        leases
            .chain(self.waiters.iter().map(|waiter| waiter.end))
            .min()
    }

    /// The keys of a grant, if the token is current.
    pub(crate) fn keys_of(&self, token: u64) -> Option<&Names> {
        let grant = self.grants.iter().find(|grant| grant.token == token)?;
        Some(&grant.keys)
    }

    fn held_or_wanted(&self) -> Names {
        let held = self.grants.iter().flat_map(|grant| &grant.keys);
        held.chain(self.waiters.iter().flat_map(|waiter| &waiter.keys))
            .copied()
            .collect()
    }

    fn grant(&mut self, conn: u64, id: u64, lease: u8, keys: Names) {
        self.last_token += 1;
        let token = self.last_token;
        let names: Vec<&str> = keys.iter().copied().collect();
        self.effects
            .push(Effect::granted(conn, id, token, &names, lease));
        let end = self.now + u64::from(lease) * SECOND;
        self.grants.push(Grant {
            token,
            keys,
            lease,
            end,
        });
    }

    /// Grants every waiter whose keys are all free and wanted by no earlier waiter.
    fn serve(&mut self) {
        let mut taken: Names = self
            .grants
            .iter()
            .flat_map(|grant| &grant.keys)
            .copied()
            .collect();
        for waiter in std::mem::take(&mut self.waiters) {
            let free = waiter.keys.is_disjoint(&taken);
            taken.extend(&waiter.keys);
            if free {
                self.grant(waiter.conn, waiter.id, waiter.lease, waiter.keys);
            } else {
                self.waiters.push(waiter);
            }
        }
    }

    /// Lets time pass: what ended first goes first, of a lease and a wait the lease, of two of a
    /// kind the shorter one, then the older one.
    pub(crate) fn elapse(&mut self, now: u64) {
        self.now = self.now.max(now);
        loop {
            let leases = self.grants.iter().enumerate();
            let lease = leases.map(|(at, g)| (g.end, 0, g.lease, g.token, at)).min();
            let waits = self.waiters.iter().enumerate();
            let wait = waits.map(|(at, w)| (w.end, 1, w.wait, 0, at)).min();
            let Some(first) = lease.into_iter().chain(wait).min() else {
                break;
            };
            match first {
                (end, ..) if end > self.now => break,
                (_, 0, .., at) => {
                    let grant = self.grants.remove(at);
                    self.effects.push(Effect::Ended(grant.token));
                }
                (.., at) => {
                    let waiter = self.waiters.remove(at);
                    self.effects.push(Effect::timed_out(waiter.conn, waiter.id));
                }
            }
            self.serve();
        }
    }

    pub(crate) fn acquire(&mut self, conn: u64, id: u64, wait: u8, lease: u8, keys: Names) {
        let mut all = self.held_or_wanted();
        let blocked = !all.is_disjoint(&keys);
        let full_line = keys.iter().any(|key| {
            let line = self
                .waiters
                .iter()
                .filter(|waiter| waiter.keys.contains(key));
            line.count() >= self.limits.waiters_per_key as usize
        });
        all.extend(&keys);
        if blocked && wait == 0 {
            self.effects.push(Effect::timed_out(conn, id));
        } else if all.len() > self.limits.grants as usize {
            self.effects.push(Effect::busy(conn, id));
        } else if !blocked {
            self.grant(conn, id, lease, keys);
        } else if full_line || self.waiters.len() >= self.limits.waiters as usize {
            self.effects.push(Effect::busy(conn, id));
        } else {
            let end = self.now + u64::from(wait) * SECOND;
            self.waiters.push(Waiter {
                conn,
                id,
                keys,
                wait,
                lease,
                end,
            });
        }
    }

    pub(crate) fn release(&mut self, conn: u64, id: u64, token: u64, keys: &Names) {
        match self.keys_of(token) {
            None => self.effects.push(Effect::not_current(conn, id)),
            Some(held) if held != keys => {
                self.effects.push(Effect::error(conn, id, GroupMismatch));
            }
            Some(_) => {
                self.grants.retain(|grant| grant.token != token);
                self.effects.push(Effect::Ended(token));
                self.effects.push(if keys.len() == 1 {
                    Effect::released(conn, id)
                } else {
                    Effect::set_released(conn, id)
                });
                self.serve();
            }
        }
    }

    pub(crate) fn disconnect(&mut self, conn: u64) {
        self.waiters.retain(|waiter| waiter.conn != conn);
        self.serve();
    }

    pub(crate) fn refuse(&mut self, conn: Option<u64>) {
        let leaves = |waiter: &Waiter| conn.is_none_or(|conn| waiter.conn == conn);
        for waiter in self.waiters.iter().filter(|waiter| leaves(waiter)) {
            self.effects
                .push(Effect::error(waiter.conn, waiter.id, NotActive));
        }
        self.waiters.retain(|waiter| !leaves(waiter));
        self.serve();
    }

    pub(crate) fn undo(&mut self, token: u64) {
        if self.keys_of(token).is_some() {
            self.grants.retain(|grant| grant.token != token);
            self.effects.push(Effect::Ended(token));
            self.serve();
        }
    }

    pub(crate) fn restore(&mut self, token: u64, keys: Names, lease: u8) {
        let end = self.now + u64::from(lease) * SECOND;
        self.grants.push(Grant {
            token,
            keys,
            lease,
            end,
        });
    }
}
