//! Who sends what where: places (C26), order (C14) and turns.

use super::session::Item;
use super::*;

impl State {
    /// Hands everything that may go to sessions that can take it. Called after every input.
    pub(super) fn dispatch(&mut self, now: Moment) {
        self.dispatch_releases();
        self.dispatch_acquires();
        self.fail_immediate_without_place();
        self.fail_rejected();
        self.finish_closing(now);
    }

    fn dispatch_releases(&mut self) {
        while self.release_places < RELEASE_PLACES
            && let Some(&id) = self.release_queue.first()
        {
            self.place_release(id);
        }
        if self.release_ready.is_empty() {
            return;
        }
        // Not all can go to every session, so one that must wait does not stop the others.
        let ready: Vec<ReleaseId> = self.release_ready.iter().copied().collect();
        for id in ready {
            let Some(session) = self.next_session(|s| self.releases[&id].may_go_to(s)) else {
                continue;
            };
            self.last_turn = session;
            self.assign_release(id, session);
            self.push(session, Item::Release(id));
        }
    }

    fn dispatch_acquires(&mut self) {
        if self.life != Life::Open {
            return;
        }
        let mut from = 0;
        while self.places < self.max_pending
            && let Some(&id) = self.ready.range(from..).next()
        {
            from = id + 1;
            let pin = self.pinned_to(id).expect("what is ready may go");
            let Some(session) = self.next_session(|s| pin.is_none_or(|p| p == s)) else {
                if pin.is_some() {
                    continue;
                }
                return;
            };
            self.last_turn = session;
            self.assign(id, session);
            self.push(session, Item::Acquire(id));
        }
    }

    /// The session whose turn it is among those that can take a request now.
    fn next_session(&self, may: impl Fn(SessionId) -> bool) -> Option<SessionId> {
        let able = |id: &SessionId| {
            self.sessions[id].is_writable() && self.takes_requests(*id) && may(*id)
        };
        let after = self
            .sessions
            .range(self.last_turn + 1..)
            .map(|(id, _)| *id)
            .find(able);
        after.or_else(|| self.sessions.keys().copied().find(able))
    }

    /// Whether anything waits for a session.
    pub(super) fn requests_wait(&self) -> bool {
        !self.release_ready.is_empty()
            || !self.release_queue.is_empty()
            || self.counters.waiting > 0
    }

    pub(super) fn releases_remain(&self) -> bool {
        !self.releases.is_empty()
    }

    /// A copy of the counters, with what is known only here.
    pub(crate) fn stats(&self) -> crate::Stats {
        let usable = self
            .sessions
            .keys()
            .filter(|id| self.takes_requests(**id))
            .count();
        self.counters.stats(usable, self.last_error.clone())
    }
}
