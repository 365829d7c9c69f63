//! The end of a broker object (C27).

use super::*;
use crate::error::TicketError;

impl State {
    /// Begins the end: new and unsent acquires get `Closed`, sent ones are given up, releases go
    /// on for up to 5 s. Doing it twice is fine.
    pub(crate) fn close(&mut self, now: Moment) {
        if self.life != Life::Open {
            return;
        }
        self.life = Life::Closing;
        self.fail_unsent(&TicketError::closed());
        let mut sent: Vec<AcquireId> = self
            .acquires
            .iter()
            .filter(|(_, a)| matches!(a.stage, acquire::Stage::Sent { .. }))
            .map(|(id, _)| *id)
            .collect();
        sent.sort_unstable();
        for id in sent {
            self.mark_given_up(id);
            let error = TicketError::indeterminate("closed before the broker answered");
            self.finish_acquire(id, Err(error));
        }
        self.stop_links();
        // The sessions of the given-up end by C13a, whatever the ration of C9.
        let ending: Vec<SessionId> = self
            .sessions
            .iter()
            .filter(|(_, s)| s.has_given_up() && !s.is_over())
            .map(|(id, _)| *id)
            .collect();
        for id in ending {
            self.begin_ending(now, id);
        }
        self.set_timer(Timer::Close, None, Some(now + CLOSE_TIME));
        self.readiness.send_replace(Readiness::Closed);
        self.wake_driver();
        self.dispatch(now);
    }

    /// After each input while closing: opens a session for remaining releases, or ends.
    pub(super) fn finish_closing(&mut self, now: Moment) {
        if self.life == Life::Closing {
            self.wind_down(now);
        }
    }

    fn wind_down(&mut self, now: Moment) {
        if self.releases_remain() {
            if !self.has_usable_session() {
                self.open_for_releases(now);
            }
            return;
        }
        self.stop_links();
        // Nothing can come any more but the grants of ending sessions; those may still make
        // compensating releases, so the sessions that could carry them stay until then.
        let grants_may_come = self
            .sessions
            .values()
            .any(|s| s.is_ending() && s.has_given_up());
        if grants_may_come {
            return;
        }
        let open: Vec<SessionId> = self
            .sessions
            .iter()
            .filter(|(_, s)| s.is_open() || s.is_retired())
            .map(|(id, _)| *id)
            .collect();
        if !open.is_empty() {
            for id in open {
                self.begin_ending(now, id);
            }
            return;
        }
        if self.sessions.is_empty() {
            self.closed();
        }
    }

    /// Time is up: everything ends now.
    pub(super) fn close_due(&mut self, now: Moment) {
        self.life = Life::Closed;
        self.abandon_releases(now);
        let open: Vec<SessionId> = self
            .sessions
            .iter()
            .filter(|(_, s)| !s.is_over())
            .map(|(id, _)| *id)
            .collect();
        for id in open {
            self.end(now, id, SessionEnd::Close);
        }
        self.closed();
    }

    fn closed(&mut self) {
        self.life = Life::Closed;
        self.stop_links();
        self.timers.clear();
        self.wake_driver();
    }

    /// The driver has ended: everything is gone. If it ended by itself (its runtime was shut
    /// down), nothing waits for it for ever.
    pub(crate) fn driver_gone(&mut self, now: Moment) {
        if self.life != Life::Closed {
            self.close(now);
            self.close_due(now);
        }
        self.gone.send_replace(true);
    }

    /// Whether the driver can stop: closed, and every socket is gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.life == Life::Closed
    }
}
