//! The completion queue: calls in under tags, completions out, each tag's exactly once.
//!
//! A call is a small future that is polled where its consumer takes completions, so a grant stays
//! with the client's state machine until the moment it is handed out: a cancel before that is the
//! client's own (C8–C10), and C16 is checked at that moment. Two locks, always in this order: the
//! calls, then the signal. Wakers take the second alone, so they may run under any other lock.

mod descriptor;
mod signal;
mod sync;
#[cfg(all(test, unix))]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use self::signal::{CallWaker, Key, Signal};
use self::sync::{Mutex, lock};

/// One submitted call.
pub(crate) trait Call: Send {
    /// How it ends.
    type End: End;

    /// Its end, once there is one; otherwise the waker is kept.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Self::End>;

    /// Gives it up. Never called after `poll` gave the end.
    fn cancel(&mut self) -> Self::End;
}

/// The end of a call, handed out as often as its consumer needs to see it.
pub(crate) trait End: Clone + Send {
    /// Before it is handed out a further time, or after it lay here: a grant that was cancelled
    /// meanwhile or went stale becomes its failure, and is released.
    fn look_again(&mut self, cancelled: bool);

    /// The call was submitted under a tag that another call still has.
    fn tag_in_use(tag: i64) -> Self;
}

/// One end, as the consumer sees it.
#[derive(Debug, Clone)]
pub(crate) struct Completion<E> {
    pub(crate) seq: i64,
    pub(crate) tag: i64,
    pub(crate) end: E,
}

/// See the module.
pub(crate) struct Queue<C: Call> {
    calls: Mutex<Calls<C>>,
    signal: Arc<Signal>,
}

struct Calls<C: Call> {
    pending: HashMap<Key, Pending<C>>,
    /// The calls that can be cancelled.
    by_tag: HashMap<i64, Key>,
    last_key: Key,
    last_seq: i64,
    /// Handed out, but not yet acted on for all that is known here; in the order of `seq`.
    handed: VecDeque<Handed<C::End>>,
    closed: bool,
}

struct Pending<C: Call> {
    tag: i64,
    waker: Arc<CallWaker>,
    stage: Stage<C>,
}

enum Stage<C: Call> {
    Runs(C),
    Ended(C::End),
}

struct Handed<E> {
    completion: Completion<E>,
    cancelled: bool,
}

impl<C: Call> Queue<C> {
    pub(crate) fn new() -> Self {
        Queue {
            calls: Mutex::new(Calls {
                pending: HashMap::new(),
                by_tag: HashMap::new(),
                last_key: 0,
                last_seq: 0,
                handed: VecDeque::new(),
                closed: false,
            }),
            signal: Arc::new(Signal::default()),
        }
    }

    /// Takes a call in. A closed queue drops it, which gives it up.
    pub(crate) fn submit(&self, tag: i64, call: C) {
        let mut calls = lock(&self.calls);
        if calls.closed {
            drop(calls); // the call is dropped after the lock
            return;
        }
        calls.last_key += 1;
        let key = calls.last_key;
        let waker = CallWaker::new(key, &self.signal);
        let stage = match calls.by_tag.contains_key(&tag) {
            true => Stage::Ended(C::End::tag_in_use(tag)),
            false => {
                calls.by_tag.insert(tag, key);
                Stage::Runs(call).poll(&waker)
            }
        };
        if let Stage::Ended(_) = stage {
            waker.wake_by_ref();
        }
        calls.pending.insert(key, Pending { tag, waker, stage });
    }

    /// No later `next` hands out a grant under this tag. The call's end is its failure, unless it
    /// was acted on already.
    pub(crate) fn cancel(&self, tag: i64) {
        let mut calls = lock(&self.calls);
        let calls = &mut *calls;
        if let Some(key) = calls.by_tag.get(&tag) {
            let pending = calls.pending.get_mut(key).expect("each tag has its call");
            match &mut pending.stage {
                Stage::Runs(call) => {
                    pending.stage = Stage::Ended(call.cancel());
                    pending.waker.wake_by_ref();
                }
                Stage::Ended(end) => end.look_again(true),
            }
            return;
        }
        let of_tag = |handed: &&mut Handed<C::End>| handed.completion.tag == tag;
        if let Some(handed) = calls.handed.iter_mut().rev().find(of_tag) {
            handed.cancelled = true;
        }
    }

    /// Completions for the one consumer: those above `seen` again, then new ones; `max` at most,
    /// and none before `timeout` has passed without any.
    pub(crate) fn next(&self, seen: i64, max: usize, timeout: Duration) -> Vec<Completion<C::End>> {
        let deadline = Deadline::after(timeout);
        loop {
            let taken = self.take(seen, max.max(1));
            if !taken.is_empty() || !deadline.wait(&self.signal) {
                return taken;
            }
        }
    }

    fn take(&self, seen: i64, max: usize) -> Vec<Completion<C::End>> {
        let mut calls = lock(&self.calls);
        if calls.closed {
            return Vec::new();
        }
        calls.acted_on(seen);
        let mut taken = calls.hand_out_again(max);
        let again_later = calls.handed.len() > taken.len();
        while taken.len() < max
            && let Some(key) = self.signal.pop()
        {
            taken.extend(calls.hand_out(key));
        }
        self.signal.settle(again_later);
        taken
    }

    /// Waits until `next` would have something, and takes nothing.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        self.signal.wait(Instant::now().checked_add(timeout))
    }

    /// Readable exactly while something is to be taken; −1 where there is none.
    pub(crate) fn descriptor(&self) -> i32 {
        self.signal.descriptor()
    }

    /// Gives up what is pending. What was handed out is its consumer's.
    pub(crate) fn close(&self) {
        let pending = {
            let mut calls = lock(&self.calls);
            calls.closed = true;
            calls.by_tag.clear();
            calls.handed.clear();
            // Under the same lock: a consumer that is woken by it finds the queue closed.
            self.signal.close();
            std::mem::take(&mut calls.pending)
        };
        for (_, pending) in pending {
            match pending.stage {
                Stage::Runs(call) => drop(call),
                Stage::Ended(mut end) => end.look_again(true),
            }
        }
    }
}

impl<C: Call> Drop for Queue<C> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<C: Call> Calls<C> {
    fn acted_on(&mut self, seen: i64) {
        while self
            .handed
            .front()
            .is_some_and(|h| h.completion.seq <= seen)
        {
            self.handed.pop_front();
        }
    }

    /// What nobody acted on, since a drain was torn.
    fn hand_out_again(&mut self, max: usize) -> Vec<Completion<C::End>> {
        let again = self.handed.iter_mut().take(max).map(|handed| {
            handed.completion.end.look_again(handed.cancelled);
            handed.completion.clone()
        });
        again.collect()
    }

    fn hand_out(&mut self, key: Key) -> Option<Completion<C::End>> {
        let pending = self.pending.get_mut(&key)?;
        pending.waker.popped();
        let lay_here = match &mut pending.stage {
            Stage::Ended(_) => true,
            runs @ Stage::Runs(_) => {
                runs.advance(&pending.waker);
                false
            }
        };
        if let Stage::Runs(_) = pending.stage {
            return None;
        }
        let pending = self.pending.remove(&key).expect("looked up above");
        let Stage::Ended(mut end) = pending.stage else {
            unreachable!("looked at above")
        };
        if lay_here {
            end.look_again(false);
        }
        if self.by_tag.get(&pending.tag) == Some(&key) {
            self.by_tag.remove(&pending.tag);
        }
        self.last_seq += 1;
        let completion = Completion {
            seq: self.last_seq,
            tag: pending.tag,
            end,
        };
        self.handed.push_back(Handed {
            completion: completion.clone(),
            cancelled: false,
        });
        Some(completion)
    }
}

impl<C: Call> Stage<C> {
    fn poll(mut self, waker: &Arc<CallWaker>) -> Self {
        self.advance(waker);
        self
    }

    fn advance(&mut self, waker: &Arc<CallWaker>) {
        if let Stage::Runs(call) = self {
            let waker = Waker::from(Arc::clone(waker));
            if let Poll::Ready(end) = call.poll(&mut Context::from_waker(&waker)) {
                *self = Stage::Ended(end);
            }
        }
    }
}

/// Until when to wait; the clock is not read for a wait of nothing.
enum Deadline {
    Now,
    At(Option<Instant>),
}

impl Deadline {
    fn after(timeout: Duration) -> Self {
        match timeout.is_zero() {
            true => Deadline::Now,
            false => Deadline::At(Instant::now().checked_add(timeout)),
        }
    }

    fn wait(&self, signal: &Signal) -> bool {
        match self {
            Deadline::Now => false,
            Deadline::At(at) => signal.wait(*at),
        }
    }
}
