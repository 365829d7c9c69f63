//! The ends of a session: lost, retired (C9), ending (C13a), over.

use super::*;
use crate::error::TicketError;

impl State {
    /// The peer closed its sending side.
    pub(crate) fn end_of_stream(&mut self, now: Moment, id: SessionId) {
        self.lost(now, id, "the broker closed the connection");
    }

    /// The connection broke, stalled or was closed.
    pub(crate) fn lost(&mut self, now: Moment, id: SessionId, why: &str) {
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        if !session.is_over() {
            if session.is_open() {
                self.last_error = Some(why.to_owned());
            }
            self.end(now, id, SessionEnd::Close);
        }
        self.dispatch(now);
    }

    /// Writing failed. What the peer said before it closed is still read: replies to what was sent
    /// before may be among it (C13a).
    pub(crate) fn write_failed(&mut self, now: Moment, id: SessionId, why: &str) {
        if self.sessions.get(&id).is_some_and(Session::is_open) {
            self.last_error = Some(why.to_owned());
        }
        self.begin_ending(now, id);
        self.dispatch(now);
    }

    /// A frame that no broker sends: close at once, read nothing more (C13).
    pub(in crate::state) fn malformed(&mut self, now: Moment, id: SessionId, what: &str) {
        tracing::warn!(
            what,
            "the broker's bytes are not the protocol's; closing the connection"
        );
        self.last_error = Some(format!("protocol violation by the broker: {what}"));
        self.end(now, id, SessionEnd::Close);
    }

    /// Ready when the session is over; the driver then closes the socket and calls `forget`.
    pub(crate) fn poll_over(&mut self, id: SessionId, cx: &mut Context<'_>) -> Poll<SessionEnd> {
        let Some(session) = self.sessions.get_mut(&id) else {
            return Poll::Ready(SessionEnd::Close);
        };
        if let Phase::Over(end) = session.phase {
            return Poll::Ready(end);
        }
        session.ender = Some(cx.waker().clone());
        Poll::Pending
    }

    /// The socket is closed.
    pub(crate) fn forget(&mut self, now: Moment, id: SessionId) {
        if self.sessions.get(&id).is_some_and(|s| !s.is_over()) {
            self.end(now, id, SessionEnd::Close);
        }
        self.sessions.remove(&id);
        self.ration_retirements(now);
        self.dispatch(now);
    }

    /// Nothing new is sent on it; its link opens a replacement at once (C9).
    pub(in crate::state) fn retire(&mut self, now: Moment, id: SessionId) {
        self.leave_open(now, id, Phase::Retired, link::Leave::Retired);
        self.maybe_end_retired(now, id);
    }

    /// C13a: send nothing more, half-close, read on for at most 1 s.
    pub(in crate::state) fn begin_ending(&mut self, now: Moment, id: SessionId) {
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        if session.is_over() || session.is_ending() {
            return;
        }
        let leave = if session.redirected {
            link::Leave::Redirected
        } else if self.life != Life::Open {
            // Its own close is no fault: what must still be released connects at once (C27).
            link::Leave::Retired
        } else {
            link::Leave::Fault
        };
        let until = now + ENDING_TIME;
        self.leave_open(now, id, Phase::Ending { until, told: false }, leave);
        self.set_timer(Timer::Session(id), None, Some(until));
        let session = self.sessions.get_mut(&id).expect("just seen");
        self.wakers.extend(session.writer.take());
    }

    /// Moves a session out of `Open` (or on from `Retired`): what it has not sent goes elsewhere.
    fn leave_open(&mut self, now: Moment, id: SessionId, phase: Phase, leave: link::Leave) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        session.phase = phase;
        let unsent = std::mem::take(&mut session.outbox);
        let (link, opened) = (session.link.take(), session.opened);
        if let Some(link) = link {
            self.link_down(now, link, opened, leave);
        }
        for item in unsent {
            match item {
                Item::Acquire(acquire) => self.unassign(acquire),
                Item::Release(release) => self.unassign_release(release),
            }
        }
        self.usable_changed();
    }

    /// The session is over: what is unresolved is `Indeterminate`, releases are tried elsewhere.
    pub(in crate::state) fn end(&mut self, now: Moment, id: SessionId, how: SessionEnd) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if let Phase::Ending { until, .. } = session.phase {
            self.set_timer(Timer::Session(id), Some(until), None);
        }
        let session = self.sessions.get_mut(&id).expect("just seen");
        let leave = if session.redirected {
            link::Leave::Redirected
        } else {
            link::Leave::Fault
        };
        self.leave_open(now, id, Phase::Over(how), leave);
        let session = self.sessions.get_mut(&id).expect("just seen");
        session.partial = Vec::new();
        self.wakers.extend(session.ender.take());
        session.writer = None;
        let mut unresolved: Vec<_> = session.outstanding.drain().collect();
        session.given_up = 0;
        session.idle.clear();
        // In the order they were sent, so that a replay is the same.
        unresolved.sort_unstable_by_key(|(wire, _)| *wire);
        for (wire, pending) in unresolved {
            match pending {
                Pending::Acquire(acquire) => {
                    let e = TicketError::indeterminate(
                        "the connection ended before the broker answered",
                    );
                    self.finish_acquire(acquire, Err(e));
                }
                Pending::GivenUp(_) => self.given_up_resolved(),
                Pending::Release { id: release, .. } => self.try_failed(release, id, wire),
                Pending::Idle { .. } => {}
            }
        }
        self.usable_changed();
    }

    /// The second of C13a is over: close with a reset.
    pub(in crate::state) fn session_due(&mut self, now: Moment, id: SessionId) {
        self.end(now, id, SessionEnd::Reset);
    }

    /// A retired session ends as soon as only given-up acquires are unanswered on it (C9).
    pub(in crate::state) fn maybe_end_retired(&mut self, now: Moment, id: SessionId) {
        if self
            .sessions
            .get(&id)
            .is_some_and(|s| s.is_retired() && s.counted() == 0)
        {
            self.begin_ending(now, id);
        }
    }
}
