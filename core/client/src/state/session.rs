//! One session: an authenticated connection, from its hello to its end (C7, C10, C13, C13a).

mod ending;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use ticketing_wire::{KeySet, MAX_REPLY_LEN, Reply, Request, RequestId};

use super::*;

/// A connection that has been authenticated.
pub(super) struct Session {
    /// The link that replaces it when it ends; none once it is retired.
    pub(super) link: Option<LinkId>,
    pub(super) node: usize,
    pub(super) opened: Moment,
    phase: Phase,
    /// Cluster: not used before its first `L` (C14). Single: from the start.
    pub(super) told_leader: bool,
    /// Ended or ends through `M`, `E3` or `E4` (C14).
    pub(super) redirected: bool,
    next_id: u64,
    /// The bytes of a reply that is not whole yet.
    partial: Vec<u8>,
    /// Assigned, not yet handed to the transport.
    outbox: VecDeque<Item>,
    /// A write is under way; nothing more is assigned until it is done.
    writing: bool,
    outstanding: HashMap<u64, Pending>,
    /// How many of the outstanding are given-up acquires.
    given_up: usize,
    /// Those of the outstanding that are tries of finished releases, the longest overdue first.
    idle: BTreeSet<(Moment, u64)>,
    writer: Option<Waker>,
    ender: Option<Waker>,
}

/// A request in an outbox.
#[derive(Debug, Clone, Copy)]
pub(super) enum Item {
    Acquire(AcquireId),
    Release(ReleaseId),
}

/// A request that was sent and is not answered.
#[derive(Debug)]
pub(super) enum Pending {
    Acquire(AcquireId),
    /// Nobody waits for it any more; a grant is given back (C10).
    GivenUp(Arc<KeySet>),
    Release {
        id: ReleaseId,
        set: bool,
        due: Moment,
    },
    /// A try of a release that is finished.
    Idle {
        set: bool,
        due: Moment,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// Nothing new is sent; ends when only given-up acquires are unanswered (C9).
    Retired,
    /// C13a: half-closed, read until the end of stream or this moment.
    Ending {
        until: Moment,
        told: bool,
    },
    /// Over; the driver closes the socket.
    Over(SessionEnd),
}

/// How the driver closes a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionEnd {
    /// In the usual way.
    Close,
    /// With a reset: the peer ignored the half-close (C13a).
    Reset,
}

/// What the driver does next for a session's sending side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transmit {
    /// Write the buffer, then call `transmitted`.
    Write,
    /// Shut down the sending side; nothing follows.
    Shutdown,
}

impl Session {
    fn counted(&self) -> usize {
        self.outstanding.len() - self.given_up - self.idle.len()
    }

    pub(super) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    pub(super) fn is_retired(&self) -> bool {
        self.phase == Phase::Retired
    }

    pub(super) fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Ending { .. })
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over(_))
    }

    pub(super) fn has_given_up(&self) -> bool {
        self.given_up > 0
    }

    /// Whether it has owed the answer to a finished release for too long.
    pub(super) fn owes_answers(&self, now: Moment) -> bool {
        self.idle.first().is_some_and(|(due, _)| *due <= now)
    }

    /// Open and free to write.
    pub(super) fn is_writable(&self) -> bool {
        self.is_open() && !self.writing
    }

    /// Acquires that somebody still waits for (C9).
    pub(super) fn other_acquires(&self) -> usize {
        self.outstanding
            .values()
            .filter(|p| matches!(p, Pending::Acquire(_)))
            .count()
    }

    pub(super) fn pending(&self, id: RequestId) -> Option<&Pending> {
        self.outstanding.get(&id.get())
    }

    pub(super) fn take_pending(&mut self, id: RequestId) -> Pending {
        let pending = self
            .outstanding
            .remove(&id.get())
            .expect("looked up before");
        match pending {
            Pending::GivenUp(_) => self.given_up -= 1,
            Pending::Idle { due, .. } => {
                self.idle.remove(&(due, id.get()));
            }
            Pending::Acquire(_) | Pending::Release { .. } => {}
        }
        pending
    }

    #[cfg(test)]
    pub(super) fn unanswered(&self) -> usize {
        self.outstanding.len()
    }

    #[cfg(test)]
    pub(super) fn assert_idle(&self, id: SessionId) {
        assert!(self.outstanding.is_empty(), "{id}: {:?}", self.outstanding);
        assert!(self.outbox.is_empty() && self.partial.is_empty(), "{id}");
        assert_eq!((self.given_up, self.writing), (0, false), "{id}");
        assert!(self.idle.is_empty(), "{id}: {:?}", self.idle);
    }

    fn take_id(&mut self) -> RequestId {
        self.next_id += 1;
        RequestId::new(self.next_id).expect("counts from 1")
    }
}

impl State {
    /// A connection is authenticated; its hello has been checked by the driver. `None` if it is
    /// not wanted any more.
    pub(crate) fn connected(&mut self, now: Moment, link: LinkId) -> Option<SessionId> {
        let wanted = match self.life {
            Life::Open => true,
            Life::Closing => self.releases_remain(),
            Life::Closed => false,
        };
        if !wanted {
            self.link_unwanted(link);
            self.dispatch(now);
            return None;
        }
        let id = self.number();
        let node = self.links[link].node;
        let session = Session {
            link: Some(link),
            node,
            opened: now,
            phase: Phase::Open,
            told_leader: self.topology.is_single(),
            redirected: false,
            next_id: 0,
            partial: Vec::new(),
            outbox: VecDeque::new(),
            writing: false,
            outstanding: HashMap::new(),
            given_up: 0,
            idle: BTreeSet::new(),
            writer: None,
            ender: None,
        };
        self.sessions.insert(id, session);
        self.link_up(link, id);
        self.usable_changed();
        self.dispatch(now);
        Some(id)
    }

    /// Waits until [`State::transmit`] may have something to do.
    pub(crate) fn poll_sendable(&mut self, id: SessionId, cx: &mut Context<'_>) -> Poll<()> {
        let Some(session) = self.sessions.get_mut(&id) else {
            return Poll::Pending;
        };
        if !session.outbox.is_empty() || matches!(session.phase, Phase::Ending { told: false, .. })
        {
            return Poll::Ready(());
        }
        session.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    /// What to send now. `Write` fills `buf`: from then on those requests count as sent (C7).
    pub(crate) fn transmit(
        &mut self,
        now: Moment,
        id: SessionId,
        buf: &mut Vec<u8>,
    ) -> Option<Transmit> {
        buf.clear();
        while let Some(item) = self
            .sessions
            .get_mut(&id)
            .and_then(|s| s.outbox.pop_front())
        {
            let sent = match item {
                Item::Acquire(acquire) => self.send_acquire(now, id, acquire, buf),
                Item::Release(release) => self.send_release(now, id, release, buf),
            };
            if !sent {
                self.dispatch(now); // its place is free for another
            }
        }
        let session = self.sessions.get_mut(&id)?;
        if !buf.is_empty() {
            session.writing = true;
            return Some(Transmit::Write);
        }
        match &mut session.phase {
            Phase::Ending {
                told: told @ false, ..
            } => {
                *told = true;
                Some(Transmit::Shutdown)
            }
            _ => None,
        }
    }

    /// `false` if it does not go out.
    fn send_acquire(
        &mut self,
        now: Moment,
        sid: SessionId,
        id: AcquireId,
        buf: &mut Vec<u8>,
    ) -> bool {
        // Cancelled or failed meanwhile: it is simply not there any more (C8).
        let assigned = |a: &Acquire| matches!(a.stage, acquire::Stage::Assigned(s) if s == sid);
        if !self.acquires.get(&id).is_some_and(assigned) {
            return false;
        }
        // The release before it, which was sent here, may have come to nothing meanwhile (C14).
        if !matches!(self.pinned_to(id), Some(pin) if pin.is_none_or(|p| p == sid)) {
            self.unassign(id);
            return false;
        }
        let Some(wait) = self.wire_wait(now, id) else {
            let error = self.unconnected_error();
            self.finish_acquire(id, Err(error));
            return false;
        };
        let session = self.sessions.get_mut(&sid).expect("it transmits");
        let wire = session.take_id();
        session.outstanding.insert(wire.get(), Pending::Acquire(id));
        self.sent(now, id, sid, wire.get(), wait);
        let acquire = &self.acquires[&id];
        let (lease, keys) = (acquire.terms.lease, acquire.keys.as_keys());
        Request::Acquire {
            id: wire,
            wait,
            lease,
            keys,
        }
        .encode(buf);
        true
    }

    /// `false` if it does not go out.
    fn send_release(
        &mut self,
        now: Moment,
        sid: SessionId,
        id: ReleaseId,
        buf: &mut Vec<u8>,
    ) -> bool {
        let session = self.sessions.get_mut(&sid).expect("it transmits");
        let wire = session.take_id();
        let Some((keys, token)) = self.release_sent(now, id, sid, wire.get()) else {
            return false;
        };
        let keys = keys.as_keys();
        let session = self.sessions.get_mut(&sid).expect("it transmits");
        session.outstanding.insert(
            wire.get(),
            Pending::Release {
                id,
                set: keys.len() > 1,
                due: now + RELEASE_TIME,
            },
        );
        Request::Release {
            id: wire,
            token,
            keys,
        }
        .encode(buf);
        true
    }

    /// The last `Write` has left.
    pub(crate) fn transmitted(&mut self, now: Moment, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.writing = false;
        }
        self.dispatch(now);
    }

    /// Bytes that were read. Says whether a reply is half there, so that the driver can time it.
    pub(crate) fn received(&mut self, now: Moment, id: SessionId, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let Some(session) = self.sessions.get_mut(&id) else {
                return false;
            };
            if session.is_over() {
                return false;
            }
            // Bytes join a partial frame only as far as it can reach; the rest is decoded in place.
            let joined = !session.partial.is_empty();
            let taken = if joined {
                let room = MAX_REPLY_LEN - session.partial.len();
                let taken = room.min(bytes.len());
                session.partial.extend_from_slice(&bytes[..taken]);
                taken
            } else {
                0
            };
            let before = session.partial.len() - taken;
            let source = if joined {
                session.partial.as_slice()
            } else {
                bytes
            };
            match Reply::decode(source) {
                Ok(Some((reply, used))) => {
                    bytes = &bytes[used - before..];
                    session.partial.clear();
                    if !self.handle(now, id, reply) {
                        break;
                    }
                }
                Ok(None) if joined => bytes = &bytes[taken..],
                Ok(None) => {
                    session.partial.extend_from_slice(bytes);
                    bytes = &[];
                }
                Err(violation) => {
                    self.malformed(now, id, &violation.to_string());
                    break;
                }
            }
        }
        self.dispatch(now);
        self.sessions
            .get(&id)
            .is_some_and(|s| !s.is_over() && !s.partial.is_empty())
    }

    /// A sent acquire's caller is gone: its id stays outstanding (C10), its session is retired
    /// when the ration allows (C9).
    pub(super) fn give_up(&mut self, now: Moment, id: AcquireId) {
        if let Some(session) = self.mark_given_up(id) {
            self.maybe_end_retired(now, session);
            self.ration_retirements(now);
        }
    }

    /// The bookkeeping of `give_up` alone: its session, if it was sent.
    pub(super) fn mark_given_up(&mut self, id: AcquireId) -> Option<SessionId> {
        let acquire = &self.acquires[&id];
        let acquire::Stage::Sent {
            session: sid,
            id: wire,
            ..
        } = acquire.stage
        else {
            return None;
        };
        let keys = Arc::clone(&acquire.keys);
        let session = self
            .sessions
            .get_mut(&sid)
            .expect("it ends its requests when it ends");
        session.outstanding.insert(wire, Pending::GivenUp(keys));
        session.given_up += 1;
        self.given_up += 1;
        // `finish_acquire` frees the caller's place; the given-up request keeps one (C26).
        self.places += 1;
        self.counters.given_up += 1;
        Some(sid)
    }

    pub(super) fn given_up_resolved(&mut self) {
        self.given_up -= 1;
        self.places -= 1;
    }

    /// A try of a finished release holds no session back. It is given up (C19): if it stays
    /// unanswered for as long as a release has, its session is retired (C9).
    pub(super) fn idle_try(&mut self, now: Moment, sid: SessionId, wire: u64) {
        let Some(session) = self.sessions.get_mut(&sid) else {
            return;
        };
        if let Some(pending) = session.outstanding.get_mut(&wire)
            && let Pending::Release { set, due, .. } = *pending
        {
            *pending = Pending::Idle { set, due };
            session.idle.insert((due, wire));
            self.set_timer(Timer::Retire, None, Some(due));
            self.maybe_end_retired(now, sid);
        }
    }

    pub(super) fn push(&mut self, id: SessionId, item: Item) {
        let session = self
            .sessions
            .get_mut(&id)
            .expect("chosen among the open ones");
        session.outbox.push_back(item);
        self.wakers.extend(session.writer.take());
    }
}
