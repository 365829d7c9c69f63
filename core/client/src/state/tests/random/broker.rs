//! A simple broker: grants, one line, and the ways in which it can be wrong or unlucky.

use super::*;

/// How often, in a thousand requests, the broker answers in one of these ways.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mood {
    /// `I`, with or without effect.
    pub(super) unsure: u32,
    /// `M`, `E3` or `E4`.
    pub(super) refuses: u32,
    /// `B` for an acquire.
    pub(super) busy: u32,
    /// `E1`.
    pub(super) wrong: u32,
    /// Not at all.
    pub(super) silent: u32,
}

struct Waiter {
    sid: SessionId,
    frame: Frame,
    until: Moment,
}

struct Held {
    keys: Vec<String>,
    until: Moment,
}

/// Replies are put out in order, with the session that each goes to.
pub(super) struct Broker {
    pub(super) mood: Mood,
    grants: BTreeMap<u64, Held>,
    line: Vec<Waiter>,
    last_token: u64,
    /// In a cluster, the node that leads.
    pub(super) leader: Option<u8>,
    pub(super) out: Vec<(SessionId, Reply)>,
}

impl Broker {
    pub(super) fn new(mood: Mood, leader: Option<u8>) -> Self {
        Broker {
            mood,
            grants: BTreeMap::new(),
            line: Vec::new(),
            last_token: 0,
            leader,
            out: Vec::new(),
        }
    }

    /// One request from a session to `node`, a node of a cluster or none.
    pub(super) fn read(
        &mut self,
        now: Moment,
        rng: &mut SmallRng,
        sid: SessionId,
        node: Option<u8>,
        frame: Frame,
    ) {
        self.tick(now);
        if node.is_some() && node != self.leader {
            self.out.push((sid, frame.moved(self.leader)));
            return;
        }
        let m = self.mood;
        let mut dice = rng.random_range(0..1000u32);
        let mut hit = |odds: u32| {
            let hit = dice < odds;
            dice = dice.wrapping_sub(odds);
            hit
        };
        if hit(m.silent) {
            if rng.random() {
                self.apply(now, sid, frame);
                self.out.pop();
            }
        } else if hit(m.unsure) {
            let reply = frame.indeterminate();
            if rng.random() {
                let before = self.out.len();
                self.apply(now, sid, frame.clone());
                self.line.retain(|w| (w.sid, w.frame.id) != (sid, frame.id));
                self.out.drain(before..).find(|(s, _)| *s == sid);
            }
            self.out.push((sid, reply));
        } else if hit(m.refuses) {
            let reply = match rng.random_range(0..3) {
                0 => frame.moved(self.leader.filter(|_| node.is_some())),
                1 => frame.error(ErrorCode::NotActive),
                _ => frame.error(ErrorCode::NoLeader),
            };
            self.out.push((sid, reply));
        } else if hit(m.wrong) {
            self.out.push((sid, frame.error(ErrorCode::BadKey)));
        } else if hit(m.busy) && frame.is_acquire() {
            self.out.push((sid, frame.busy()));
        } else {
            self.apply(now, sid, frame);
        }
    }

    fn apply(&mut self, now: Moment, sid: SessionId, frame: Frame) {
        match frame.what {
            What::Release { token } => {
                let held = self.grants.get(&token);
                let current = held.is_some_and(|h| h.keys == frame.keys);
                if current {
                    self.grants.remove(&token);
                }
                let reply = if current {
                    frame.released()
                } else {
                    frame.not_current()
                };
                self.out.push((sid, reply));
                self.serve(now);
            }
            What::Acquire { wait, .. } => {
                self.line.push(Waiter {
                    sid,
                    frame,
                    until: now + secs(wait.into()),
                });
                self.serve(now);
                self.time_out(now);
            }
        }
    }

    /// Grants whatever is first in line for all of its keys.
    fn serve(&mut self, now: Moment) {
        let mut wanted: BTreeSet<String> = BTreeSet::new();
        let mut i = 0;
        while i < self.line.len() {
            let keys = &self.line[i].frame.keys;
            let held = |k: &String| self.grants.values().any(|h| h.keys.contains(k));
            if keys.iter().any(|k| held(k) || wanted.contains(k)) {
                wanted.extend(keys.iter().cloned());
                i += 1;
                continue;
            }
            let Waiter { sid, frame, .. } = self.line.remove(i);
            let What::Acquire { lease, .. } = frame.what else {
                unreachable!()
            };
            self.last_token += 1;
            self.out.push((sid, frame.granted(self.last_token)));
            let until = now + secs(lease.into());
            let keys = frame.keys;
            self.grants.insert(self.last_token, Held { keys, until });
        }
    }

    fn time_out(&mut self, now: Moment) {
        let out = &mut self.out;
        self.line.retain(|w| {
            let stays = w.until > now;
            if !stays {
                out.push((w.sid, w.frame.timed_out()));
            }
            stays
        });
    }

    /// Leases and waits that have ended.
    pub(super) fn tick(&mut self, now: Moment) {
        self.grants.retain(|_, held| held.until > now);
        self.serve(now);
        self.time_out(now);
    }

    /// A connection is gone, and its waiters with it.
    pub(super) fn disconnect(&mut self, sid: SessionId) {
        self.line.retain(|w| w.sid != sid);
    }

    /// The client half-closed: its waiters are answered `E3`.
    pub(super) fn half_close(&mut self, sid: SessionId) {
        for waiter in &self.line {
            if waiter.sid == sid {
                self.out
                    .push((sid, waiter.frame.error(ErrorCode::NotActive)));
            }
        }
        self.disconnect(sid);
    }
}
