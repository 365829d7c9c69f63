//! Acquires: from the call to the one outcome (C8–C12, C16, C25, C26).

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ticketing_wire::{KeySet, Token};

use super::*;
use crate::args::{Terms, millis, millis_up};
use crate::error::TicketError;

/// One acquire that the caller still waits for.
pub(super) struct Acquire {
    pub(super) keys: Arc<KeySet>,
    pub(super) terms: Terms,
    /// The end of the caller's wait.
    wait_until: Moment,
    /// When its timer is set to go off.
    timer: Option<Moment>,
    pub(super) stage: Stage,
    /// Unfinished releases of its keys that were called before it (C14).
    pub(super) after: Vec<ReleaseId>,
    waker: Option<Waker>,
}

impl Acquire {
    /// Unsent and in no session's outbox.
    pub(super) fn is_placeable(&self) -> bool {
        matches!(self.stage, Stage::Ready | Stage::Held)
    }
}

/// How far an acquire has come.
#[derive(Debug)]
pub(super) enum Stage {
    /// Unsent, in `ready`.
    Ready,
    /// Unsent, behind releases of its own keys.
    Held,
    /// Unsent, in a session's outbox; has a place.
    Assigned(SessionId),
    /// Handed to the transport (C7); has a place.
    Sent {
        session: SessionId,
        id: u64,
        valid_before: Moment,
    },
    /// Finished; waits to be taken.
    Done(Result<Grant, TicketError>),
}

/// Who ended the wait before the answer came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The caller cancelled.
    Cancelled,
    /// The caller's own deadline passed.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "the deadline of a context, for bindings")
    )]
    Deadline,
}

impl State {
    /// Takes an acquire in. Its outcome is fetched with `poll_acquire`.
    pub(crate) fn acquire(&mut self, now: Moment, keys: KeySet, terms: Terms) -> AcquireId {
        let id = self.number();
        let wait = match terms.wait {
            0 => IMMEDIATE_SESSION_WAIT,
            wait => Duration::from_secs(wait.into()),
        };
        let after = self.releases_of(id, &keys);
        let acquire = Acquire {
            keys: Arc::new(keys),
            terms,
            wait_until: now + wait,
            timer: None,
            stage: Stage::Held,
            after,
            waker: None,
        };
        self.acquires.insert(id, acquire);
        self.counters.waiting += 1;
        if self.life != Life::Open {
            self.finish_acquire(id, Err(TicketError::closed()));
        } else {
            self.set_acquire_timer(id, Some(now + wait));
            self.hasten_links(now);
            self.place(id);
            self.dispatch(now);
        }
        id
    }

    /// The outcome, once there is one. A grant is checked against the clock once more (C16).
    pub(crate) fn poll_acquire(
        &mut self,
        now: Moment,
        id: AcquireId,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Grant, TicketError>> {
        let Some(acquire) = self.acquires.get_mut(&id) else {
            return Poll::Ready(Err(TicketError::closed()));
        };
        if !matches!(acquire.stage, Stage::Done(_)) {
            acquire.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let acquire = self.acquires.remove(&id).expect("looked up above");
        let Stage::Done(outcome) = acquire.stage else {
            unreachable!("checked above")
        };
        Poll::Ready(outcome.and_then(|grant| {
            if let Err(e) = sufficient(now, grant.valid_before, acquire.terms.min_work) {
                self.compensate(now, grant.keys, grant.token);
                return Err(e);
            }
            self.counters.granted += 1;
            Ok(grant)
        }))
    }

    /// Ends the caller's part in it (C8–C10): withdrawn if unsent, given up if sent, and a grant
    /// that waits to be taken is released. `None` if its outcome had been taken before.
    pub(crate) fn cancel(
        &mut self,
        now: Moment,
        id: AcquireId,
        cause: Cause,
    ) -> Option<TicketError> {
        let acquire = self.acquires.get_mut(&id)?;
        let unanswered = || TicketError::indeterminate("given up before the broker answered");
        let error = match &acquire.stage {
            Stage::Ready | Stage::Held | Stage::Assigned(_) => match cause {
                Cause::Cancelled => TicketError::Cancelled {
                    detail: "by the caller".into(),
                },
                Cause::Deadline => TicketError::Timeout {
                    detail: "the caller's deadline passed".into(),
                },
            },
            Stage::Sent { .. } => unanswered(),
            Stage::Done(Err(e)) => e.clone(),
            Stage::Done(Ok(_)) => {
                let acquire = self.acquires.remove(&id).expect("looked up above");
                if let Stage::Done(Ok(grant)) = acquire.stage {
                    self.compensate(now, grant.keys, grant.token);
                }
                return Some(unanswered());
            }
        };
        if let Stage::Sent { .. } = acquire.stage {
            self.give_up(now, id);
        }
        self.finish_acquire(id, Err(error.clone()));
        self.acquires.remove(&id);
        self.dispatch(now);
        Some(error)
    }

    /// Puts an unsent acquire where it belongs: in `ready`, or behind its releases.
    pub(super) fn place(&mut self, id: AcquireId) {
        let releases = &self.releases;
        let acquire = self.acquires.get_mut(&id).expect("unfinished");
        acquire.after.retain(|r| releases.contains_key(r));
        let may_go = self.pinned_to(id).is_some();
        let acquire = self.acquires.get_mut(&id).expect("unfinished");
        acquire.stage = if may_go { Stage::Ready } else { Stage::Held };
        let immediate = acquire.terms.wait == 0;
        if may_go {
            self.ready.insert(id);
            if immediate {
                self.ready_immediate.insert(id);
            }
        } else {
            self.not_ready(id);
        }
    }

    fn not_ready(&mut self, id: AcquireId) {
        self.ready.remove(&id);
        self.ready_immediate.remove(&id);
    }

    /// As `place`, after one of its releases moved on.
    pub(super) fn replace(&mut self, id: AcquireId) {
        if self.acquires.get(&id).is_some_and(Acquire::is_placeable) {
            self.place(id);
        }
    }

    /// Where C14 lets it go: `Some(None)` anywhere, `Some(session)` only behind the releases that
    /// were sent there, `None` nowhere yet.
    pub(super) fn pinned_to(&self, id: AcquireId) -> Option<Option<SessionId>> {
        let mut pin = None;
        for release in self.acquires[&id]
            .after
            .iter()
            .filter_map(|r| self.releases.get(r))
        {
            let session = release.carrier()?;
            if pin.is_some_and(|p| p != session) || !self.takes_requests(session) {
                return None;
            }
            pin = Some(session);
        }
        Some(pin)
    }

    pub(super) fn assign(&mut self, id: AcquireId, session: SessionId) {
        self.acquires.get_mut(&id).expect("ready").stage = Stage::Assigned(session);
        self.not_ready(id);
        self.places += 1;
    }

    /// Takes an unsent acquire back from a session that will not send it.
    pub(super) fn unassign(&mut self, id: AcquireId) {
        if let Some(acquire) = self.acquires.get_mut(&id)
            && matches!(acquire.stage, Stage::Assigned(_))
        {
            acquire.stage = Stage::Held;
            self.places -= 1;
            self.place(id);
        }
    }

    /// The wait that is left, on the wire: rounded up, at least 1 if there was one (C13).
    /// `None` when it has ended.
    pub(super) fn wire_wait(&self, now: Moment, id: AcquireId) -> Option<u8> {
        let acquire = &self.acquires[&id];
        let left = now.until(acquire.wait_until);
        if left.is_zero() {
            return None;
        }
        if acquire.terms.wait == 0 {
            return Some(0);
        }
        Some(
            u8::try_from(crate::args::seconds_up(left))
                .expect("at most the first wait")
                .max(1),
        )
    }

    /// Marks an acquire as handed to the transport at `now` (C7, C16).
    pub(super) fn sent(
        &mut self,
        now: Moment,
        id: AcquireId,
        session: SessionId,
        wire: u64,
        wait: u8,
    ) {
        let acquire = self
            .acquires
            .get_mut(&id)
            .expect("in the outbox, so unfinished");
        let valid_before = now + Duration::from_secs(acquire.terms.lease.into());
        acquire.stage = Stage::Sent {
            session,
            id: wire,
            valid_before,
        };
        self.counters.waiting -= 1;
        self.counters.sent += 1;
        let due = now + Duration::from_secs(wait.into()) + ANSWER_GRACE;
        self.set_acquire_timer(id, Some(due));
    }

    /// A request that `M`, `E3` or `E4` named was not accepted: it is made anew (C13).
    pub(super) fn remake(&mut self, now: Moment, id: AcquireId) {
        let acquire = self.acquires.get_mut(&id).expect("it was outstanding");
        let wait_until = acquire.wait_until;
        acquire.stage = Stage::Held;
        self.places -= 1;
        self.counters.sent -= 1;
        self.counters.waiting += 1;
        if wait_until <= now {
            let e = self.not_connected("the broker did not accept the request within its wait");
            self.finish_acquire(id, Err(e));
        } else {
            self.set_acquire_timer(id, Some(wait_until));
            self.place(id);
        }
    }

    /// The broker granted it: to the caller if the validity suffices, else back (C16).
    pub(super) fn granted(&mut self, now: Moment, id: AcquireId, token: Token) {
        let acquire = &self.acquires[&id];
        let Stage::Sent { valid_before, .. } = acquire.stage else {
            unreachable!("only a sent acquire is outstanding")
        };
        let keys = Arc::clone(&acquire.keys);
        match sufficient(now, valid_before, acquire.terms.min_work) {
            Ok(()) => {
                let grant = Grant {
                    keys,
                    token,
                    valid_before,
                };
                self.finish_acquire(id, Ok(grant));
            }
            Err(e) => {
                self.finish_acquire(id, Err(e));
                self.compensate(now, keys, token);
            }
        }
    }

    /// Ends an acquire with its one outcome and frees what it held. A second outcome is a bug.
    pub(super) fn finish_acquire(&mut self, id: AcquireId, outcome: Result<Grant, TicketError>) {
        self.set_acquire_timer(id, None);
        let Some(acquire) = self.acquires.get_mut(&id) else {
            return;
        };
        match acquire.stage {
            Stage::Done(_) => return,
            Stage::Ready | Stage::Held => self.counters.waiting -= 1,
            Stage::Assigned(_) => {
                self.places -= 1;
                self.counters.waiting -= 1;
            }
            Stage::Sent { .. } => {
                self.places -= 1;
                self.counters.sent -= 1;
            }
        }
        acquire.stage = Stage::Done(outcome);
        self.wakers.extend(acquire.waker.take());
        self.not_ready(id);
    }

    /// Its timer went off: the wait ended unsent (C8, C25), or the broker never answered (C9).
    pub(super) fn acquire_due(&mut self, now: Moment, id: AcquireId) {
        let usable = self.has_usable_session();
        let Some(acquire) = self.acquires.get_mut(&id) else {
            return;
        };
        acquire.timer = None;
        let error = match acquire.stage {
            Stage::Done(_) => return,
            Stage::Sent { .. } => {
                self.give_up(now, id);
                TicketError::indeterminate("the broker did not answer within the wait and 3 s")
            }
            Stage::Held if usable => TicketError::Timeout {
                detail: "earlier releases of the same key were not answered within the wait".into(),
            },
            Stage::Ready => self.unsent_error(),
            Stage::Held | Stage::Assigned(_) => self.unconnected_error(),
        };
        self.finish_acquire(id, Err(error));
    }

    /// Why an acquire could not be sent: want of a place, else want of a session (C8).
    fn unsent_error(&self) -> TicketError {
        if self.has_usable_session() && self.places >= self.max_pending {
            TicketError::ClientCapacity {
                detail: format!(
                    "{} acquires are outstanding (max_pending); wait for some or raise it",
                    self.places
                ),
            }
        } else {
            self.unconnected_error()
        }
    }

    pub(super) fn unconnected_error(&self) -> TicketError {
        self.not_connected("no connection was usable within the wait")
    }

    /// `wait` 0 never queues: with a session but no place it fails at once (C1, C26).
    pub(super) fn fail_immediate_without_place(&mut self) {
        if self.ready_immediate.is_empty()
            || self.places < self.max_pending
            || !self.has_usable_session()
        {
            return;
        }
        while let Some(&id) = self.ready_immediate.first() {
            let error = self.unsent_error();
            self.finish_acquire(id, Err(error));
        }
    }

    /// Fails every unsent acquire.
    pub(super) fn fail_unsent(&mut self, error: &TicketError) {
        let unsent = |a: &Acquire| !matches!(a.stage, Stage::Sent { .. } | Stage::Done(_));
        let ids: Vec<_> = self
            .acquires
            .iter()
            .filter(|(_, a)| unsent(a))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            self.finish_acquire(id, Err(error.clone()));
        }
    }

    pub(super) fn not_connected(&self, what: &str) -> TicketError {
        let detail = match &self.last_error {
            Some(error) => format!("{what}; last connection error: {error}"),
            None => what.to_owned(),
        };
        TicketError::NotConnected { detail }
    }

    fn set_acquire_timer(&mut self, id: AcquireId, at: Option<Moment>) {
        let Some(acquire) = self.acquires.get_mut(&id) else {
            return;
        };
        let old = std::mem::replace(&mut acquire.timer, at);
        self.set_timer(Timer::Acquire(id), old, at);
    }
}

/// C16: more than nothing is left, and at least `min_work`.
fn sufficient(now: Moment, valid_before: Moment, min_work: Duration) -> Result<(), TicketError> {
    let left = now.until(valid_before);
    if !left.is_zero() && left >= min_work {
        return Ok(());
    }
    Err(TicketError::InsufficientLease {
        remaining_ms: millis(left),
        min_work_ms: millis_up(min_work),
        detail: "the grant came too late and was given back; ask for a longer lease".into(),
    })
}
