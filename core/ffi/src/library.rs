//! What the library holds for a process: the tables of numbers and the runtime (C30).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ticketing_client::{Leadership, TicketBroker, TicketError, TicketSet};
use tokio::runtime::Runtime;

use crate::calls::Operation;
use crate::logs::Logs;
use crate::queue::Queue;

/// Numbers are never used twice, in a child neither: this goes on from the parent's.
static LAST_NUMBER: AtomicI64 = AtomicI64::new(0);

/// The one of the process that this was last asked in.
static CURRENT: AtomicPtr<Library> = AtomicPtr::new(std::ptr::null_mut());

/// One for each process: a child begins with its own, and the parent's is never looked at again,
/// since a lock may have been held at the `fork`.
pub(crate) struct Library {
    process: u32,
    /// The last number that an ancestor gave out.
    inherited: i64,
    stopped: AtomicBool,
    runtime: Mutex<Option<Runtime>>,
    pub(crate) queues: Table<Queue<Operation>>,
    pub(crate) brokers: Table<TicketBroker>,
    pub(crate) tickets: Table<TicketSet>,
    pub(crate) leaderships: Table<Leadership>,
    pub(crate) logs: Logs,
}

/// This process's library. Never freed: threads of other languages may ask until the very end.
pub(crate) fn library() -> &'static Library {
    let process = std::process::id();
    let current = CURRENT.load(Ordering::Acquire);
    // SAFETY: the pointer is null or came from `Box::into_raw` below and is never freed.
    if let Some(library) = unsafe { current.as_ref() }
        && library.process == process
    {
        return library;
    }
    let made = Box::into_raw(Box::new(Library::new(process)));
    match CURRENT.compare_exchange(current, made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            crate::logs::install();
            // SAFETY: `made` came from `Box::into_raw` and is never freed from now on.
            unsafe { &*made }
        }
        Err(_) => {
            // SAFETY: another thread of this process was first, so nobody else has `made`.
            drop(unsafe { Box::from_raw(made) });
            library()
        }
    }
}

impl Library {
    fn new(process: u32) -> Self {
        Library {
            process,
            inherited: LAST_NUMBER.load(Ordering::Relaxed),
            stopped: AtomicBool::new(false),
            runtime: Mutex::new(None),
            queues: Table::default(),
            brokers: Table::default(),
            tickets: Table::default(),
            leaderships: Table::default(),
            logs: Logs::default(),
        }
    }

    /// Runs `action` where broker objects live: on the library's runtime, made for the first.
    pub(crate) fn on_runtime<T>(
        &self,
        action: impl FnOnce() -> Result<T, TicketError>,
    ) -> Result<T, TicketError> {
        let mut runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        if self.stopped.load(Ordering::Acquire) {
            return Err(closed("the library was stopped, since the process ends"));
        }
        if runtime.is_none() {
            let made = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .thread_name("ticketing")
                .enable_all()
                .build();
            let io = |e: std::io::Error| TicketError::Io {
                detail: format!("the library's threads can't be started: {e}"),
            };
            *runtime = Some(made.map_err(io)?);
        }
        let runtime = runtime.as_ref().expect("made above");
        let _guard = runtime.enter();
        action()
    }

    /// Why there is nothing under a number.
    pub(crate) fn unknown(&self, what: &str, number: i64) -> TicketError {
        if number <= self.inherited && number > 0 {
            closed("this object was made before fork(); make a new broker object in the child")
        } else {
            closed(&format!("this {what} was closed or given up"))
        }
    }

    pub(crate) fn broker(&self, number: i64) -> Result<Arc<TicketBroker>, TicketError> {
        let found = self.brokers.get(number);
        found.ok_or_else(|| self.unknown("broker object", number))
    }

    /// Closes all broker objects, then ends the threads; both within `timeout`.
    pub(crate) fn stop(&self, timeout: Duration) {
        let end = Instant::now().checked_add(timeout);
        let runtime = {
            let mut runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
            self.stopped.store(true, Ordering::Release);
            runtime.take()
        };
        let brokers = self.brokers.take_all();
        let Some(runtime) = runtime else { return };
        runtime.block_on(async {
            let closing: Vec<_> = brokers
                .into_iter()
                .map(|broker| tokio::spawn(async move { broker.close().await }))
                .collect();
            let closed = async {
                for broker in closing {
                    // It can't fail but by a bug that has been logged.
                    let _ = broker.await;
                }
            };
            let _ = tokio::time::timeout(timeout, closed).await;
        });
        let left = end.map_or(timeout, |end| end.saturating_duration_since(Instant::now()));
        runtime.shutdown_timeout(left);
    }
}

pub(crate) fn closed(detail: &str) -> TicketError {
    TicketError::Closed {
        detail: detail.into(),
    }
}

/// Objects under numbers. What leaves it is dropped outside of its lock.
pub(crate) struct Table<T>(Mutex<HashMap<i64, Arc<T>>>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table(Mutex::default())
    }
}

impl<T> Table<T> {
    pub(crate) fn insert(&self, object: T) -> i64 {
        let number = LAST_NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
        self.with(|objects| objects.insert(number, Arc::new(object)));
        number
    }

    pub(crate) fn get(&self, number: i64) -> Option<Arc<T>> {
        self.with(|objects| objects.get(&number).cloned())
    }

    pub(crate) fn take(&self, number: i64) -> Option<Arc<T>> {
        self.with(|objects| objects.remove(&number))
    }

    fn take_all(&self) -> Vec<Arc<T>> {
        let all = self.with(std::mem::take);
        all.into_values().collect()
    }

    fn with<R>(&self, use_it: impl FnOnce(&mut HashMap<i64, Arc<T>>) -> R) -> R {
        use_it(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
