//! Which calls are to be looked at, and who is told of it: the descriptor and a waiting consumer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Wake;
use std::time::Instant;

use super::descriptor::Descriptor;
use super::sync::{AtomicBool, Condvar, Mutex, lock};

/// Locked after the queue's calls, never before them; nothing is called under it.
#[derive(Default)]
pub(super) struct Signal {
    ready: Mutex<Ready>,
    changed: Condvar,
}

#[derive(Default)]
struct Ready {
    /// Calls that were woken, each once.
    woken: VecDeque<Key>,
    /// Completions that were handed out before and are to be taken again.
    again: bool,
    closed: bool,
    /// Made when it is first asked for.
    descriptor: Option<Descriptor>,
}

/// A call's number within its queue.
pub(super) type Key = u64;

impl Ready {
    fn to_be_taken(&self) -> bool {
        self.again || !self.woken.is_empty()
    }

    fn show(&mut self) {
        let readable = self.to_be_taken();
        if let Some(descriptor) = &mut self.descriptor {
            descriptor.set(readable);
        }
    }
}

impl Signal {
    fn push(&self, key: Key) {
        let mut ready = lock(&self.ready);
        if !ready.closed {
            ready.woken.push_back(key);
            ready.show();
            self.changed.notify_all();
        }
    }

    /// The next call to look at. `settle` comes after the last one.
    pub(super) fn pop(&self) -> Option<Key> {
        lock(&self.ready).woken.pop_front()
    }

    /// The end of a taking: `again` says whether some of what was handed out before is left.
    pub(super) fn settle(&self, again: bool) {
        let mut ready = lock(&self.ready);
        ready.again = again;
        ready.show();
    }

    /// Waits until something is to be taken; false at the deadline, or when closed.
    pub(super) fn wait(&self, deadline: Option<Instant>) -> bool {
        let mut ready = lock(&self.ready);
        while !ready.to_be_taken() && !ready.closed {
            let left = match deadline {
                Some(at) => at.saturating_duration_since(Instant::now()),
                None => std::time::Duration::MAX,
            };
            if left.is_zero() {
                return false;
            }
            ready = match self.changed.wait_timeout(ready, left) {
                Ok((ready, _)) => ready,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        !ready.closed
    }

    /// The descriptor's number, or −1 where there is none.
    pub(super) fn descriptor(&self) -> i32 {
        let mut ready = lock(&self.ready);
        if ready.descriptor.is_none() && !ready.closed {
            match Descriptor::new() {
                Ok(descriptor) => ready.descriptor = Some(descriptor),
                Err(e) => tracing::debug!(error = %e, "no descriptor for this queue"),
            }
            ready.show();
        }
        ready.descriptor.as_ref().map_or(-1, Descriptor::number)
    }

    #[cfg(all(test, unix))]
    pub(super) fn view(&self) -> View {
        let ready = lock(&self.ready);
        View {
            standing: ready.woken.len(),
            to_be_taken: ready.to_be_taken(),
            readable: ready.descriptor.as_ref().map(Descriptor::readable),
        }
    }

    /// Nothing is taken any more: lets a waiting consumer go and closes the descriptor.
    pub(super) fn close(&self) {
        let mut ready = lock(&self.ready);
        ready.closed = true;
        ready.woken.clear();
        ready.descriptor = None;
        self.changed.notify_all();
    }
}

/// What a test sees of a signal at one moment.
#[cfg(all(test, unix))]
pub(super) struct View {
    pub(super) standing: usize,
    pub(super) to_be_taken: bool,
    pub(super) readable: Option<bool>,
}

/// What wakes one call. It stands in the line once, however often it is woken.
pub(super) struct CallWaker {
    key: Key,
    standing: AtomicBool,
    signal: Arc<Signal>,
}

impl CallWaker {
    pub(super) fn new(key: Key, signal: &Arc<Signal>) -> Arc<Self> {
        Arc::new(CallWaker {
            key,
            standing: AtomicBool::new(false),
            signal: Arc::clone(signal),
        })
    }

    /// It was popped: wakes from now on count anew. Before the call is looked at.
    pub(super) fn popped(&self) {
        self.standing.store(false, Ordering::SeqCst);
    }
}

impl Wake for CallWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.standing.swap(true, Ordering::SeqCst) {
            self.signal.push(self.key);
        }
    }
}
