//! Where the lock table's effects go: into the open batch, or straight to the connections.

use std::task::Waker;

use hashbrown::{HashMap, HashSet};
use ticketing_wire::{ErrorCode, Keys, Reply, RequestId, Token};

use super::outbox::Outbox;
use crate::store::Batch;
use crate::table::{ConnId, Sink};

/// What the engine knows of one connection.
#[derive(Debug, Default)]
pub(super) struct Conn {
    /// Replies that its task has not fetched yet.
    pub(super) outbox: Outbox,
    /// Requests without a reply in the outbox: waiting, or in a batch.
    pub(super) outstanding: HashSet<RequestId>,
    pub(super) waker: Option<Waker>,
    /// Its task has been woken and has not come by since.
    pub(super) woken: bool,
    /// The client has ended its sending side.
    pub(super) half_closed: bool,
}

/// How many outstanding requests a connection has room for when it has none: after a burst it is
/// as small again as before (S6).
const KEPT: usize = 16;

/// A reply that leaves once its batch is on disk.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) conn: ConnId,
    pub(super) reply: Reply,
}

/// Mutations and the replies that depend on them.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) batch: Batch,
    pub(super) replies: Vec<Held>,
}

impl Work {
    pub(super) fn is_empty(&self) -> bool {
        self.batch.is_empty() && self.replies.is_empty()
    }

    /// Whether connections should stop reading until the batch is taken: a stalled disk must not
    /// let it grow without bound (S6).
    pub(super) fn is_full(&self) -> bool {
        const MAX_REPLIES: usize = 64 * 1024;
        const MAX_BYTES: usize = 8 * 1024 * 1024;
        self.replies.len() >= MAX_REPLIES || self.batch.as_bytes().len() >= MAX_BYTES
    }
}

/// The connection whose task is calling the engine: its replies need no wake-up and no detour.
#[derive(Debug, Default)]
pub(super) struct Caller {
    conn: Option<ConnId>,
    /// Taken out of its [`Conn`] for the call.
    outstanding: HashSet<RequestId>,
    /// The request being applied, until it is answered.
    request: Option<RequestId>,
    outbox: Outbox,
}

/// The table's [`Sink`].
#[derive(Debug, Default)]
pub(super) struct Effects {
    /// Replies wait for a commit (durable mode).
    pub(super) hold: bool,
    pub(super) open: Work,
    pub(super) conns: HashMap<ConnId, Conn>,
    pub(super) caller: Caller,
    /// To be woken once the lock is free.
    pub(super) wakers: Vec<Waker>,
    /// Grants whose connection has ended: to be undone (S5).
    pub(super) undeliverable: Vec<Token>,
}

impl Effects {
    /// From here to [`leave`](Effects::leave), `conn` is the caller.
    pub(super) fn enter(&mut self, id: ConnId, waker: &Waker) {
        let conn = self
            .conns
            .get_mut(&id)
            .expect("a connection calls before it ends");
        conn.woken = false;
        if !conn.waker.as_ref().is_some_and(|w| w.will_wake(waker)) {
            conn.waker = Some(waker.clone());
        }
        let caller = &mut self.caller;
        caller.conn = Some(id);
        std::mem::swap(&mut caller.outstanding, &mut conn.outstanding);
        if !conn.outbox.is_empty() {
            caller.outbox.append(&mut conn.outbox);
        }
    }

    /// Ends the call and moves the caller's replies into `out`, which is empty. Says whether the
    /// caller still has unanswered requests.
    pub(super) fn leave(&mut self, out: &mut Outbox) -> bool {
        let caller = &mut self.caller;
        let id = caller.conn.take().expect("entered before");
        caller.request = None;
        let conn = self
            .conns
            .get_mut(&id)
            .expect("it can't end while it calls");
        std::mem::swap(&mut caller.outstanding, &mut conn.outstanding);
        std::mem::swap(&mut caller.outbox, out);
        if conn.outstanding.is_empty() && conn.outstanding.capacity() > KEPT {
            conn.outstanding = HashSet::new();
        }
        !conn.outstanding.is_empty()
    }

    /// A request of the caller is about to be applied. False if its id is still outstanding.
    pub(super) fn begin(&mut self, id: RequestId) -> bool {
        let caller = &mut self.caller;
        caller.request = Some(id);
        caller.outstanding.is_empty() || !caller.outstanding.contains(&id)
    }

    /// The request is applied; without an answer so far, its id is outstanding.
    pub(super) fn end(&mut self) {
        if let Some(id) = self.caller.request.take() {
            self.caller.outstanding.insert(id);
        }
    }

    /// Gives a reply to its connection.
    pub(super) fn deliver(&mut self, id: ConnId, reply: Reply) {
        let answered = reply
            .id()
            .expect("every reply of the table answers a request");
        let caller = &mut self.caller;
        if caller.conn == Some(id) {
            if caller.request == Some(answered) {
                caller.request = None;
            } else {
                caller.outstanding.remove(&answered);
            }
            caller.outbox.push(&reply);
        } else if let Some(conn) = self.conns.get_mut(&id) {
            conn.outstanding.remove(&answered);
            conn.outbox.push(&reply);
            wake(conn, &mut self.wakers);
        } else if let Reply::Acquired { token, .. } | Reply::SetAcquired { token, .. } = reply {
            self.undeliverable.push(token);
        }
    }

    pub(super) fn error(&mut self, conn: ConnId, id: RequestId, code: ErrorCode) {
        self.reply(conn, Reply::Error { id, code });
    }

    pub(super) fn wake_all(&mut self) {
        for conn in self.conns.values_mut() {
            wake(conn, &mut self.wakers);
        }
    }

    /// Wakes the connection's task even if it has no reply for it.
    pub(super) fn wake(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get_mut(&id) {
            wake(conn, &mut self.wakers);
        }
    }
}

fn wake(conn: &mut Conn, wakers: &mut Vec<Waker>) {
    // A task that has not called yet finds everything when it does.
    if let (false, Some(waker)) = (conn.woken, &conn.waker) {
        conn.woken = true;
        wakers.push(waker.clone());
    }
}

impl Sink for Effects {
    fn reply(&mut self, conn: ConnId, reply: Reply) {
        if self.hold {
            self.open.replies.push(Held { conn, reply });
        } else {
            self.deliver(conn, reply);
        }
    }

    fn granted(&mut self, conn: ConnId, id: RequestId, token: Token, keys: Keys<'_>, lease: u8) {
        if self.hold {
            self.open.batch.grant(token, lease, keys);
        }
        self.reply(
            conn,
            match keys {
                Keys::One(_) => Reply::Acquired { id, token },
                Keys::Set(_) => Reply::SetAcquired { id, token },
            },
        );
    }

    fn ended(&mut self, token: Token) {
        if self.hold {
            self.open.batch.end(token);
        }
    }

    fn mark(&mut self, mark: u64) {
        if self.hold {
            self.open.batch.mark(mark);
        }
    }
}
