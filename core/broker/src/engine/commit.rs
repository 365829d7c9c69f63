//! The committer: one batch at a time to the store, then its replies to the connections.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::task::Waker;
use std::time::Duration;

use ticketing_wire::Reply;

use super::effects::Work;
use super::gather::Next;
use super::{Engine, Phase, State, Waiting};
use crate::store::{Batch, CommitError, Store};

/// Commits what the engine holds back. Owns the store.
pub(crate) struct Committer {
    engine: Arc<Engine>,
    store: Box<dyn Store>,
    /// Buffers of the last commit, for reuse.
    spare: Work,
}

impl Committer {
    pub(crate) fn new(engine: Arc<Engine>, store: Box<dyn Store>) -> Self {
        Committer {
            engine,
            store,
            spare: Work::default(),
        }
    }

    /// Runs until [`Engine::drain`]; then everything is on disk and the store closed.
    ///
    /// # Errors
    /// A commit failed (S7): all that was held back has been answered `I`, all waiters `E3`. A
    /// sync is never tried again.
    ///
    /// Blocks while the store does, also as it is closed: see
    /// [`CommitterThread`](super::CommitterThread).
    pub(crate) async fn run(mut self) -> Result<(), CommitError> {
        self.serve().await
    }

    async fn serve(&mut self) -> Result<(), CommitError> {
        while let Some(mut work) = self.engine.gather(std::mem::take(&mut self.spare)).await {
            let mut sync = None;
            if !work.batch.is_empty() {
                let started = self.engine.now();
                match self.store.commit(work.batch).await {
                    Ok(batch) => work.batch = batch,
                    Err(error) => {
                        work.batch = Batch::new();
                        self.engine.fail(work);
                        return Err(error);
                    }
                }
                sync = Some(self.engine.now().saturating_sub(started));
            }
            // Without a mutation nothing is pending: every earlier batch is on disk.
            self.engine.committed(&mut work, sync);
            self.spare = work;
        }
        Ok(())
    }
}

/// Tokio's timers count in milliseconds; a gather may last a fraction of one.
async fn sleep_precisely(time: Duration) {
    const COARSE: Duration = Duration::from_millis(8);
    if time >= COARSE {
        tokio::time::sleep(time).await;
    } else {
        // Fails only while the runtime shuts down.
        let _ = tokio::task::spawn_blocking(move || std::thread::sleep(time)).await;
    }
}

impl Engine {
    /// The open batch, once it is time for it; `spare` takes its place. `None` at the end.
    async fn gather(&self, spare: Work) -> Option<Work> {
        loop {
            let sleep = {
                let mut state = self.lock();
                let open = !state.effects.open.is_empty();
                let now = self.now();
                if state.drain && !open {
                    return None;
                }
                let hurry = state.drain || state.effects.open.is_full();
                let (waiting, sleep) = match state.gather.next(now, open) {
                    Next::Gather(until) if !hurry => {
                        (Waiting::Complete, Some(until.saturating_sub(now)))
                    }
                    Next::Idle => (Waiting::Any, None),
                    _ => return Some(self.take(state, spare)),
                };
                state.committer = waiting;
                sleep
            };
            match sleep {
                Some(sleep) => tokio::select! {
                    // First, since at the end of a runtime its timers are gone already.
                    biased;
                    () = self.committer.notified() => {}
                    () = sleep_precisely(sleep) => self.lock().gather.give_up(),
                },
                None => self.committer.notified().await,
            }
        }
    }

    fn take(&self, mut state: MutexGuard<'_, State>, spare: Work) -> Work {
        state.committer = Waiting::No;
        let work = std::mem::replace(&mut state.effects.open, spare);
        self.full.store(false, Ordering::Relaxed);
        for conn in std::mem::take(&mut state.paused) {
            state.effects.wake(conn);
        }
        let wakers = std::mem::take(&mut state.effects.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        work
    }

    /// Has the committer commit what is open, and end.
    pub(crate) fn drain(&self) {
        self.lock().drain = true;
        self.committer.notify_one();
    }

    /// `work` is on disk: its replies leave.
    fn committed(&self, work: &mut Work, sync: Option<Duration>) {
        self.change(|state, now| {
            state.gather.delivered(now, work.replies.len(), sync);
            for held in work.replies.drain(..) {
                state.effects.deliver(held.conn, held.reply);
            }
        });
    }

    /// S7: nobody can say what of `work` survives a crash, nor what of the later batch would.
    fn fail(&self, mut work: Work) {
        self.change(|state, now| {
            // A lease that has just run out may make room for a waiter. That grant is not on disk
            // either: while replies are held, its `I` is among those below.
            state.table.tick(now, &mut state.effects);
            let State {
                table,
                effects,
                phase,
                ..
            } = state;
            *phase = Phase::Failed;
            effects.hold = false;
            work.replies.append(&mut effects.open.replies);
            effects.open.batch.clear();
            for held in work.replies {
                let id = held
                    .reply
                    .id()
                    .expect("every reply of the table answers a request");
                effects.deliver(held.conn, Reply::Indeterminate { id });
            }
            table.refuse_waiters(now, None, effects);
            effects.wake_all();
        });
    }
}
