//! The commit pipeline: lock table, open batch and the connections' outboxes behind one lock.
//!
//! A connection's task calls the engine once with all that it has read. Without a durable store
//! its replies come back from the same call; with one they are held with the open batch until the
//! committer has it on disk (S7). Everything that happened before a reply is in the same batch or
//! an earlier one.

mod commit;
mod effects;
mod gather;
mod outbox;
#[cfg(test)]
pub(crate) mod tests;
mod thread;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::task::Waker;
use std::time::Duration;

use ticketing_wire::{ErrorCode, Incoming, Reply, Request, RequestId, Violation};
use tokio::sync::Notify;
use tokio::time::Instant;

use effects::{Conn, Effects};
use gather::Gather;

pub(crate) use commit::Committer;
pub(crate) use outbox::Outbox;
pub(crate) use thread::{CommitterThread, Panicked};

use crate::table::{ConnId, LockTable, TableStats};

/// The part of a broker that all connections share.
pub(crate) struct Engine {
    state: Mutex<State>,
    origin: Instant,
    /// The open batch takes no more: connections don't read.
    full: AtomicBool,
    /// Wakes the timer: the table has an earlier deadline than it knows of.
    timer: Notify,
    /// Wakes the committer.
    committer: Notify,
}

struct State {
    table: LockTable,
    effects: Effects,
    phase: Phase,
    next_conn: u64,
    /// When the timer looks at the table next.
    timer_at: Option<Duration>,
    gather: Gather,
    /// What the committer is waiting for.
    committer: Waiting,
    /// Connections that read on once the open batch is taken.
    paused: Vec<ConnId>,
    /// Commit what is open, then end.
    drain: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Serving,
    /// S10: acquires are answered `E3`, releases are taken.
    Stopping,
    /// Every connection ends once its requests are answered.
    Finishing,
    /// S7: a commit has failed, nothing is known of what it held.
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    /// Not waiting.
    No,
    /// For anything in the open batch.
    Any,
    /// For [`Gather::is_complete`].
    Complete,
}

/// What follows the bytes that a connection has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    /// More may come.
    Open,
    /// The client has ended its sending side and still reads.
    HalfClosed,
    /// The connection is gone.
    Broken,
}

/// What a connection does after a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Write the replies, go on. `used` bytes of the input are dealt with; the rest is the
    /// beginning of a frame.
    Continue { used: usize },
    /// Read no more; write the replies and wait for the others.
    Deliver,
    /// Nothing is unanswered: write the replies, then close.
    Finish,
    /// Close at once.
    Close(Fault),
}

/// What a client did that ends its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("protocol violation: {0}")]
    Violation(#[from] Violation),
    #[error("protocol violation: request id {0} is still outstanding")]
    DuplicateId(RequestId),
}

impl Engine {
    /// An engine on `table`; `hold`: replies wait for a [`Committer`].
    pub(crate) fn new(table: LockTable, origin: Instant, hold: bool) -> Self {
        let timer_at = table.next_deadline();
        Engine {
            state: Mutex::new(State {
                table,
                effects: Effects {
                    hold,
                    ..Effects::default()
                },
                phase: Phase::Serving,
                next_conn: 0,
                timer_at,
                gather: Gather::default(),
                committer: Waiting::No,
                paused: Vec::new(),
                drain: false,
            }),
            origin,
            full: AtomicBool::new(false),
            timer: Notify::new(),
            committer: Notify::new(),
        }
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .expect("no panic has left the lock table half-changed")
    }

    /// Runs `f` under the lock, then wakes whom its effects concern.
    fn change<R>(&self, f: impl FnOnce(&mut State, Duration) -> R) -> R {
        let mut wakers = Vec::new();
        let mut state = self.lock();
        // Read under the lock, so that the table never sees time go back.
        let now = self.now();
        let result = f(&mut state, now);
        self.settle(&mut state, now, &mut wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        result
    }

    /// What every change of the state is followed by. `wakers` are for when the lock is free.
    fn settle(&self, state: &mut State, now: Duration, wakers: &mut Vec<Waker>) {
        let State { table, effects, .. } = state;
        while let Some(token) = effects.undeliverable.pop() {
            table.undo(now, token, effects);
        }
        let deadline = table.next_deadline();
        if let Some(at) = deadline
            && state.timer_at.is_none_or(|known| at < known)
        {
            state.timer_at = deadline;
            self.timer.notify_one();
        }
        if effects.hold {
            let wanted = match state.committer {
                Waiting::No => false,
                Waiting::Any => !effects.open.is_empty(),
                Waiting::Complete => effects.open.is_full() || state.gather.is_complete(),
            };
            if wanted {
                state.committer = Waiting::No;
                self.committer.notify_one();
            }
            if effects.open.is_full() {
                self.full.store(true, Ordering::Relaxed);
            }
        }
        std::mem::swap(&mut effects.wakers, wakers);
    }

    /// A new connection.
    pub(crate) fn connect(&self) -> ConnId {
        let mut state = self.lock();
        state.next_conn += 1;
        let id = ConnId(state.next_conn);
        state.effects.conns.insert(id, Conn::default());
        id
    }

    /// Applies what connection `conn` has read, and moves its replies into `out` (empty before).
    /// `wakers` is scratch space. `waker` is woken when there are replies for the connection.
    pub(crate) fn drive(
        &self,
        conn: ConnId,
        bytes: &[u8],
        input: Input,
        waker: &Waker,
        out: &mut Outbox,
        wakers: &mut Vec<Waker>,
    ) -> Step {
        let mut state = self.lock();
        let now = self.now();
        state.effects.enter(conn, waker);
        if input != Input::Open {
            state.half_close(now, conn);
        }
        let applied = state.apply(now, conn, bytes, input);
        self.settle(&mut state, now, wakers);
        let unanswered = state.effects.leave(out);
        let ending = input != Input::Open || state.phase >= Phase::Finishing;
        drop(state);
        wakers.drain(..).for_each(Waker::wake);
        match applied {
            Err(fault) => Step::Close(fault),
            Ok(used) if !ending => Step::Continue { used },
            Ok(_) if unanswered => Step::Deliver,
            Ok(_) => Step::Finish,
        }
    }

    /// Connection `conn` has ended; no write was begun that holds the grants of `unsent` (S5).
    pub(crate) fn disconnect(&self, conn: ConnId, unsent: &Outbox) {
        if self.state.is_poisoned() {
            // This is the way out of the panic that did it; the supervisor ends the broker.
            return;
        }
        self.change(|state, now| {
            let State {
                table,
                effects,
                phase,
                ..
            } = state;
            let Some(gone) = effects.conns.remove(&conn) else {
                return;
            };
            table.disconnect(now, conn, effects);
            if *phase != Phase::Failed {
                for token in gone.outbox.grants().chain(unsent.grants()) {
                    table.undo(now, token, effects);
                }
            }
        });
    }

    /// Whether connections should not read for now; see [`pause`](Engine::pause).
    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    /// Has `conn` woken once the open batch is taken. False if that has happened already.
    pub(crate) fn pause(&self, conn: ConnId) -> bool {
        let mut state = self.lock();
        let full = state.effects.hold && state.effects.open.is_full();
        if full {
            state.paused.push(conn);
        }
        full
    }

    /// S10: answers waiters and from now on new acquires `E3`; goes on taking releases.
    pub(crate) fn stop(&self) {
        self.change(|state, now| {
            state.phase = state.phase.max(Phase::Stopping);
            state.table.refuse_waiters(now, None, &mut state.effects);
        });
    }

    /// Has every connection end once its requests are answered.
    pub(crate) fn finish(&self) {
        self.change(|state, _| {
            state.phase = state.phase.max(Phase::Finishing);
            state.effects.wake_all();
        });
    }

    /// What the table holds.
    pub(crate) fn stats(&self) -> TableStats {
        self.lock().table.stats()
    }

    /// Ends leases and waits in time (S2). Runs until it is dropped.
    pub(crate) async fn run_timer(&self) {
        loop {
            let at = self.change(|state, now| {
                state.table.tick(now, &mut state.effects);
                state.timer_at = state.table.next_deadline();
                state.timer_at
            });
            match at {
                Some(at) => tokio::select! {
                    () = tokio::time::sleep_until(self.origin + at) => {}
                    () = self.timer.notified() => {}
                },
                None => self.timer.notified().await,
            }
        }
    }
}

impl State {
    /// The client sends no more: its waiters leave the line, told so if it still reads (S5).
    fn half_close(&mut self, now: Duration, id: ConnId) {
        let State { table, effects, .. } = self;
        let conn = effects.conns.get_mut(&id).expect("it is calling");
        if !std::mem::replace(&mut conn.half_closed, true) {
            table.refuse_waiters(now, Some(id), effects);
        }
    }

    /// Applies frame by frame; says how many bytes the whole frames took.
    fn apply(
        &mut self,
        now: Duration,
        conn: ConnId,
        bytes: &[u8],
        input: Input,
    ) -> Result<usize, Fault> {
        let State {
            table,
            effects,
            phase,
            gather,
            ..
        } = self;
        let mut used = 0;
        while let Some((frame, len)) = Incoming::decode(&bytes[used..])? {
            used += len;
            let id = frame_id(&frame);
            if !effects.begin(id) {
                return Err(Fault::DuplicateId(id));
            }
            match frame {
                _ if *phase == Phase::Failed => effects.deliver(conn, Reply::Indeterminate { id }),
                Incoming::Refused { code, .. } => effects.error(conn, id, code),
                Incoming::Request(Request::Acquire {
                    wait, lease, keys, ..
                }) => {
                    if *phase == Phase::Serving && input == Input::Open {
                        table.acquire(now, conn, id, wait, lease, keys, effects);
                    } else {
                        effects.error(conn, id, ErrorCode::NotActive);
                    }
                }
                Incoming::Request(Request::Release { token, keys, .. }) => {
                    table.release(now, conn, id, token, keys, effects);
                }
            }
            effects.end();
            gather.arrived(1);
        }
        Ok(used)
    }
}

fn frame_id(frame: &Incoming<'_>) -> RequestId {
    match *frame {
        Incoming::Refused { id, .. }
        | Incoming::Request(Request::Acquire { id, .. } | Request::Release { id, .. }) => id,
    }
}
