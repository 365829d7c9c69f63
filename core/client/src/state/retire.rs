//! The rationing of retirements (C9).

use std::time::Duration;

use super::*;

/// At most so many sessions are retired or ending.
const MAX_RETIRED: usize = 8;
/// At most one retirement in so long.
const RETIRE_EVERY: Duration = Duration::from_millis(100);

impl State {
    /// Looked at after each giving up, when an answer is overdue, and when a session or a ration
    /// comes free.
    pub(super) fn ration_retirements(&mut self, now: Moment) {
        self.retire_as_allowed(now);
        self.relieve_places(now);
    }

    /// Retires sessions that hold given-up requests, as far as the ration allows; what it does
    /// not allow now is looked at again when it may.
    fn retire_as_allowed(&mut self, now: Moment) {
        while let Some(id) = self.retirable(now) {
            let leaving = self
                .sessions
                .values()
                .filter(|s| s.is_retired() || s.is_ending())
                .count();
            if leaving >= MAX_RETIRED {
                return; // looked at again when one of them is forgotten
            }
            if let Some(last) = self.last_retired {
                let next = last + RETIRE_EVERY;
                if now < next {
                    self.set_timer(Timer::Retire, None, Some(next));
                    return;
                }
            }
            self.last_retired = Some(now);
            self.retire(now, id);
        }
    }

    /// The first open session that holds a given-up acquire, or has owed the answer to a finished
    /// release for too long, if any.
    fn retirable(&self, now: Moment) -> Option<SessionId> {
        self.sessions
            .iter()
            .find(|(_, s)| s.is_open() && (s.has_given_up() || s.owes_answers(now)))
            .map(|(id, _)| *id)
    }

    /// When given-up requests hold half of the places, the retired session with the fewest other
    /// acquires ends early.
    fn relieve_places(&mut self, now: Moment) {
        if self.given_up * 2 < self.max_pending {
            return;
        }
        let fewest = self
            .sessions
            .iter()
            .filter(|(_, s)| s.is_retired())
            .min_by_key(|(_, s)| s.other_acquires())
            .map(|(id, _)| *id);
        if let Some(id) = fewest {
            self.begin_ending(now, id);
        }
    }
}
