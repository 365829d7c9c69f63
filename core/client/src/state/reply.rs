//! What the broker says, and what follows from it (C10, C12, C13, C15, C19).

use std::sync::Arc;

use ticketing_wire::{ErrorCode, Reply};

use super::session::Pending;
use super::*;
use crate::error::TicketError;
use crate::ticket::ReleaseOutcome;

impl State {
    /// Handles one reply. `false` ends the reading: the session is over.
    pub(super) fn handle(&mut self, now: Moment, sid: SessionId, reply: Reply) -> bool {
        if let Reply::Moved {
            slot: Some(slot), ..
        }
        | Reply::Leader { slot: Some(slot) } = reply
            && !self.topology.has(slot)
        {
            self.malformed(now, sid, "it names a slot outside the address list");
            return false;
        }
        let Some(id) = reply.id() else {
            if let Reply::Leader { slot } = reply {
                self.told_leader(sid, slot);
            }
            return true;
        };
        // C15: matched by the id alone. C13: uncorrelated, or of another kind, ends the session.
        let fits = match self.sessions[&sid].pending(id) {
            None => None,
            Some(Pending::Acquire(a)) => Some(fits_acquire(
                &reply,
                self.acquires[a].keys.as_keys().len() > 1,
            )),
            Some(Pending::GivenUp(keys)) => Some(fits_acquire(&reply, keys.as_keys().len() > 1)),
            Some(Pending::Release { set, .. } | Pending::Idle { set, .. }) => {
                Some(fits_release(&reply, *set))
            }
        };
        match fits {
            None => {
                self.malformed(now, sid, "it answers a request that is not outstanding");
                return false;
            }
            Some(false) => {
                self.malformed(now, sid, "a reply does not fit the kind of its request");
                return false;
            }
            Some(true) => {}
        }
        self.mark_ending(sid, &reply);
        let session = self.sessions.get_mut(&sid).expect("it was read from");
        match session.take_pending(id) {
            Pending::Acquire(acquire) => self.answer_acquire(now, acquire, &reply),
            Pending::GivenUp(keys) => self.answer_given_up(now, keys, &reply),
            Pending::Release { id: release, .. } => {
                self.answer_release(now, sid, id.get(), release, &reply);
            }
            Pending::Idle { .. } => {}
        }
        if matches!(reply, Reply::Moved { .. } | Reply::Error { .. }) {
            self.begin_ending(now, sid);
        }
        self.maybe_end_retired(now, sid);
        true
    }

    /// Notes what an `M` or an `E` says of the node, before its request is made anew.
    fn mark_ending(&mut self, sid: SessionId, reply: &Reply) {
        let redirects = match reply {
            Reply::Moved { slot, .. } => {
                let node = self.sessions[&sid].node;
                self.topology.moved(node, *slot);
                self.usable_changed();
                true
            }
            Reply::Error { code, .. } => matches!(code, ErrorCode::NotActive | ErrorCode::NoLeader),
            _ => return,
        };
        let session = self.sessions.get_mut(&sid).expect("it was read from");
        if session.is_open() {
            session.redirected = redirects;
            self.last_error = Some(match reply {
                Reply::Error { code, .. } => format!("the broker answered {}", code.name()),
                _ => "the broker is not the leader".to_owned(),
            });
        }
    }

    fn answer_acquire(&mut self, now: Moment, id: AcquireId, reply: &Reply) {
        let error = match *reply {
            Reply::Acquired { token, .. } | Reply::SetAcquired { token, .. } => {
                self.granted(now, id, token);
                return;
            }
            Reply::Moved { .. }
            | Reply::Error {
                code: ErrorCode::NotActive | ErrorCode::NoLeader,
                ..
            } => {
                self.remake(now, id);
                return;
            }
            Reply::TimedOut { .. } => TicketError::Timeout {
                detail: "the key was not free within the wait".into(),
            },
            Reply::Busy { .. } => TicketError::Busy {
                detail: "back off, then ask anew".into(),
            },
            Reply::Error { code, .. } => protocol(code),
            _ => TicketError::indeterminate("the broker cannot say whether it was granted"),
        };
        self.finish_acquire(id, Err(error));
    }

    fn answer_given_up(&mut self, now: Moment, keys: Arc<KeySet>, reply: &Reply) {
        self.given_up_resolved();
        if let Reply::Acquired { token, .. } | Reply::SetAcquired { token, .. } = *reply {
            self.compensate(now, keys, token);
        }
    }

    fn answer_release(
        &mut self,
        now: Moment,
        sid: SessionId,
        wire: u64,
        id: ReleaseId,
        reply: &Reply,
    ) {
        let outcome = match *reply {
            Reply::Released { .. } | Reply::SetReleased { .. } => Ok(ReleaseOutcome::Released),
            Reply::NotCurrent { .. } => Ok(ReleaseOutcome::NotCurrent),
            Reply::Moved { .. }
            | Reply::Error {
                code: ErrorCode::NotActive | ErrorCode::NoLeader,
                ..
            } => {
                self.try_failed(id, sid, wire);
                return;
            }
            Reply::Error { code, .. } => Err(protocol(code)),
            _ => {
                self.try_indeterminate(now, id, sid, wire);
                return;
            }
        };
        self.finish_release(now, id, outcome);
    }
}

fn protocol(code: ErrorCode) -> TicketError {
    TicketError::Protocol {
        code: code.name().into(),
        detail: "the broker refused the request as wrong; nothing took effect".into(),
    }
}

fn fits_acquire(reply: &Reply, set: bool) -> bool {
    match reply {
        Reply::Acquired { .. } => !set,
        Reply::SetAcquired { .. } => set,
        Reply::TimedOut { .. }
        | Reply::Busy { .. }
        | Reply::Moved { .. }
        | Reply::Indeterminate { .. } => true,
        Reply::Error { code, .. } => match code {
            ErrorCode::GroupMismatch | ErrorCode::BadToken => false,
            ErrorCode::BadKeySet => set,
            _ => true,
        },
        _ => false,
    }
}

fn fits_release(reply: &Reply, set: bool) -> bool {
    match reply {
        Reply::Released { .. } => !set,
        Reply::SetReleased { .. } => set,
        Reply::NotCurrent { .. } | Reply::Moved { .. } | Reply::Indeterminate { .. } => true,
        Reply::Error { code, .. } => match code {
            ErrorCode::BadLease => false,
            ErrorCode::BadKeySet => set,
            _ => true,
        },
        _ => false,
    }
}
