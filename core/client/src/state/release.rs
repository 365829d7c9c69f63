//! Releases: each repeats one token until a final answer or 5 s (C19).

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ticketing_wire::{KeySet, Token};

use super::*;
use crate::error::TicketError;
use crate::ticket::ReleaseOutcome;

/// Silence after which a release is repeated on another session.
const SILENCE: Duration = Duration::from_secs(2);
/// The first pause after an `I`; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Why a release is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The caller asked for it and gets the answer.
    Explicit,
    /// A ticket left its scope (C18); dropped when too many wait.
    Automatic,
    /// A grant came to nobody (C10). Never dropped: it takes its acquire's place over.
    Compensating,
}

/// The outcome of one release, shared by the ticket and the state machine.
#[derive(Debug, Default)]
pub(crate) struct ReleaseCell(Mutex<(Option<Released>, Vec<Waker>)>);

type Released = Result<ReleaseOutcome, TicketError>;

impl ReleaseCell {
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<ReleaseOutcome, TicketError>> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (outcome, wakers) = &mut *inner;
        if let Some(outcome) = outcome {
            return Poll::Ready(outcome.clone());
        }
        if !wakers.iter().any(|w| w.will_wake(cx.waker())) {
            wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }

    #[cfg(test)]
    pub(crate) fn get(&self) -> Option<Result<ReleaseOutcome, TicketError>> {
        self.0.lock().unwrap().0.clone()
    }

    /// Sets the outcome; hands back who waits for it.
    fn set(&self, outcome: Result<ReleaseOutcome, TicketError>) -> Vec<Waker> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        debug_assert!(inner.0.is_none(), "one outcome");
        inner.0 = Some(outcome);
        std::mem::take(&mut inner.1)
    }
}

/// A release that is not finished.
pub(super) struct Release {
    pub(super) keys: Arc<KeySet>,
    pub(super) token: Token,
    origin: Origin,
    cell: Arc<ReleaseCell>,
    /// 5 s after it was called; nothing extends that.
    deadline: Moment,
    timer: Option<Moment>,
    stage: Stage,
    ever_sent: bool,
    /// Has one of the release places.
    placed: bool,
    /// Every try that is unanswered: its session and its id there, the last try last.
    tries: Vec<(SessionId, u64)>,
    /// The pause after the next `I`.
    pause: Duration,
    /// Acquires that must not overtake it (C14).
    holds_back: Vec<AcquireId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Waits for one of the release places.
    Queued,
    /// May go to a session that has no unanswered try of it.
    Ready,
    /// In a session's outbox.
    Assigned(SessionId),
    /// Sent and within its silence.
    Resting,
    /// After an `I`; nothing shortens that.
    Pausing,
}

impl Release {
    /// Where it goes or went last, if that may still be answered: what follows it there cannot
    /// overtake it.
    pub(super) fn carrier(&self) -> Option<SessionId> {
        match self.stage {
            Stage::Assigned(session) => Some(session),
            _ => self.tries.last().map(|(session, _)| *session),
        }
    }

    #[cfg(test)]
    pub(super) fn is_compensating(&self) -> bool {
        self.origin == Origin::Compensating
    }

    /// Whether this session has no unanswered try of it.
    pub(super) fn may_go_to(&self, session: SessionId) -> bool {
        self.tries.iter().all(|(s, _)| *s != session)
    }
}

impl State {
    /// Takes a release in; its outcome appears in the cell.
    pub(crate) fn release(
        &mut self,
        now: Moment,
        keys: Arc<KeySet>,
        token: Token,
        origin: Origin,
    ) -> Arc<ReleaseCell> {
        let cell = Arc::<ReleaseCell>::default();
        if self.life == Life::Closed {
            self.wakers.extend(cell.set(Err(TicketError::closed())));
            return cell;
        }
        if origin == Origin::Automatic {
            if self.automatic_waiting >= AUTOMATIC_QUEUE {
                self.counters.automatic_dropped += 1;
                self.wakers
                    .extend(cell.set(Err(self.not_connected("the queue is full"))));
                return cell;
            }
            self.automatic_waiting += 1;
        }
        let needs_place = origin != Origin::Compensating;
        if !needs_place {
            self.places += 1;
        }
        let id = self.number();
        for key in keys.as_keys() {
            self.releasing
                .entry(key.as_str().into())
                .or_default()
                .push(id);
        }
        let release = Release {
            keys,
            token,
            origin,
            cell: Arc::clone(&cell),
            deadline: now + RELEASE_TIME,
            timer: None,
            stage: if needs_place {
                Stage::Queued
            } else {
                Stage::Ready
            },
            ever_sent: false,
            placed: false,
            tries: Vec::new(),
            pause: FIRST_PAUSE,
            holds_back: Vec::new(),
        };
        self.releases.insert(id, release);
        let queue = if needs_place {
            &mut self.release_queue
        } else {
            &mut self.release_ready
        };
        queue.insert(id);
        self.set_release_timer(id, now + RELEASE_TIME);
        self.hasten_links(now);
        self.dispatch(now);
        cell
    }

    /// Gives back a grant that nobody takes (C10).
    pub(super) fn compensate(&mut self, now: Moment, keys: Arc<KeySet>, token: Token) {
        self.counters.compensated += 1;
        self.release(now, keys, token, Origin::Compensating);
    }

    /// The unfinished releases of these keys; each is told that an acquire waits for it.
    pub(super) fn releases_of(&mut self, acquire: AcquireId, keys: &KeySet) -> Vec<ReleaseId> {
        if self.releasing.is_empty() {
            return Vec::new();
        }
        let mut found: Vec<ReleaseId> = Vec::new();
        for key in keys.as_keys() {
            found.extend(self.releasing.get(key.as_str()).into_iter().flatten());
        }
        found.sort_unstable();
        found.dedup();
        for release in &found {
            let release = self.releases.get_mut(release).expect("unfinished");
            release.holds_back.push(acquire);
        }
        found
    }

    /// Gives it one of the release places.
    pub(super) fn place_release(&mut self, id: ReleaseId) {
        let release = self.releases.get_mut(&id).expect("queued");
        release.placed = true;
        release.stage = Stage::Ready;
        self.release_places += 1;
        self.release_queue.remove(&id);
        self.release_ready.insert(id);
    }

    pub(super) fn assign_release(&mut self, id: ReleaseId, session: SessionId) {
        self.releases.get_mut(&id).expect("ready").stage = Stage::Assigned(session);
        self.release_ready.remove(&id);
        self.replace_held_back(id);
    }

    /// Takes it back from a session that will not send it.
    pub(super) fn unassign_release(&mut self, id: ReleaseId) {
        if let Some(release) = self.releases.get_mut(&id)
            && matches!(release.stage, Stage::Assigned(_))
        {
            release.stage = Stage::Ready;
            self.release_ready.insert(id);
            self.replace_held_back(id);
        }
    }

    /// Marks it as handed to the transport; `None` if it was finished or taken back meanwhile.
    pub(super) fn release_sent(
        &mut self,
        now: Moment,
        id: ReleaseId,
        session: SessionId,
        wire: u64,
    ) -> Option<(Arc<KeySet>, Token)> {
        let release = self.releases.get_mut(&id)?;
        if release.stage != Stage::Assigned(session) {
            return None;
        }
        if release.deadline <= now {
            self.expire_release(now, id);
            return None;
        }
        if release.origin == Origin::Automatic && !release.ever_sent {
            self.automatic_waiting -= 1;
        }
        release.stage = Stage::Resting;
        release.ever_sent = true;
        release.tries.push((session, wire));
        let out = (Arc::clone(&release.keys), release.token);
        self.set_release_timer(id, now + SILENCE);
        self.replace_held_back(id);
        Some(out)
    }

    /// A try ended without a final answer: its session ended, or `M`, `E3`, `E4` came. The next
    /// one goes out at once.
    pub(super) fn try_failed(&mut self, id: ReleaseId, session: SessionId, wire: u64) {
        let Some(release) = self.releases.get_mut(&id) else {
            return;
        };
        release.tries.retain(|t| *t != (session, wire));
        if release.stage == Stage::Resting {
            release.stage = Stage::Ready;
            self.release_ready.insert(id);
        }
        self.replace_held_back(id);
    }

    /// `I`: tried again, not before a pause that doubles.
    pub(super) fn try_indeterminate(
        &mut self,
        now: Moment,
        id: ReleaseId,
        session: SessionId,
        wire: u64,
    ) {
        let Some(release) = self.releases.get_mut(&id) else {
            return;
        };
        release.tries.retain(|t| *t != (session, wire));
        let pause = release.pause;
        release.pause = pause * 2;
        release.stage = Stage::Pausing;
        self.release_ready.remove(&id);
        self.set_release_timer(id, now + pause);
        self.replace_held_back(id);
    }

    /// The one outcome. Its other tries count as given up.
    pub(super) fn finish_release(
        &mut self,
        now: Moment,
        id: ReleaseId,
        outcome: Result<ReleaseOutcome, TicketError>,
    ) {
        let Some(release) = self.releases.remove(&id) else {
            return;
        };
        if let Some(at) = release.timer {
            self.set_timer(Timer::Release(id), Some(at), None);
        }
        self.release_queue.remove(&id);
        self.release_ready.remove(&id);
        if release.origin == Origin::Automatic && !release.ever_sent {
            self.automatic_waiting -= 1;
        }
        if release.placed {
            self.release_places -= 1;
        }
        if release.origin == Origin::Compensating {
            self.places -= 1;
        }
        for key in release.keys.as_keys() {
            if let Some(ids) = self.releasing.get_mut(key.as_str()) {
                ids.retain(|r| *r != id);
                if ids.is_empty() {
                    self.releasing.remove(key.as_str());
                }
            }
        }
        if outcome.is_ok() {
            self.counters.released += 1;
        }
        let waiting = release.cell.set(outcome);
        self.wakers.extend(waiting);
        for (session, wire) in release.tries {
            self.idle_try(now, session, wire);
        }
        for acquire in release.holds_back {
            self.replace(acquire);
        }
    }

    /// Its timer went off: the 5 s, the silence or the pause.
    pub(super) fn release_due(&mut self, now: Moment, id: ReleaseId) {
        let Some(release) = self.releases.get_mut(&id) else {
            return;
        };
        release.timer = None;
        if release.deadline <= now {
            self.expire_release(now, id);
            return;
        }
        if matches!(release.stage, Stage::Resting | Stage::Pausing) {
            release.stage = Stage::Ready;
            self.release_ready.insert(id);
        }
        let deadline = release.deadline;
        self.set_release_timer(id, deadline);
    }

    /// Its 5 s are over.
    fn expire_release(&mut self, now: Moment, id: ReleaseId) {
        let outcome = if self.releases[&id].ever_sent {
            TicketError::indeterminate("the broker did not confirm the release within 5 s")
        } else {
            self.not_connected("the release could not be sent within 5 s")
        };
        self.finish_release(now, id, Err(outcome));
    }

    /// Ends every release: `close` has run out of time (C27).
    pub(super) fn abandon_releases(&mut self, now: Moment) {
        let mut ids: Vec<_> = self.releases.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            let outcome = if self.releases[&id].ever_sent {
                TicketError::indeterminate("the client closed before the broker confirmed it")
            } else {
                self.not_connected("the client closed before the release could be sent")
            };
            self.finish_release(now, id, Err(outcome));
        }
    }

    fn replace_held_back(&mut self, id: ReleaseId) {
        let held = match self.releases.get(&id) {
            Some(release) if !release.holds_back.is_empty() => release.holds_back.clone(),
            _ => return,
        };
        for acquire in held {
            self.replace(acquire);
        }
    }

    /// Sets when it is looked at next, never after its deadline.
    fn set_release_timer(&mut self, id: ReleaseId, at: Moment) {
        let Some(release) = self.releases.get_mut(&id) else {
            return;
        };
        let at = at.min(release.deadline);
        let old = release.timer.replace(at);
        self.set_timer(Timer::Release(id), old, Some(at));
    }
}
