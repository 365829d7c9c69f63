//! The state machine behind its lock, shared by the broker object, its tickets and its driver.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime;

use crate::TicketError;
use crate::alarm::Alarm;
use crate::clock::Moment;
use crate::state::State;

pub(crate) struct Shared {
    state: Mutex<State>,
    pub(crate) alarm: Alarm,
    /// The process that made it (C30).
    home: u32,
    process_id: fn() -> u32,
}

impl Shared {
    pub(crate) fn new(state: State, process_id: fn() -> u32) -> Self {
        Shared {
            state: Mutex::new(state),
            alarm: Alarm::default(),
            home: process_id(),
            process_id,
        }
    }

    /// Runs one input, then wakes whom it concerns, after the lock is dropped.
    pub(crate) fn with<R>(&self, input: impl FnOnce(&mut State, Moment) -> R) -> R {
        let (out, wakers) = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let out = input(&mut state, Moment::now());
            (out, state.take_wakers())
        };
        for waker in wakers {
            waker.wake();
        }
        out
    }

    /// C30: in a child, what was inherited fails before any lock is touched: another thread of
    /// the parent may have held it at the `fork`.
    pub(crate) fn check_process(&self) -> Result<(), TicketError> {
        if (self.process_id)() == self.home {
            return Ok(());
        }
        Err(TicketError::Closed {
            detail: "this object was made before fork(); make a new broker object in the child"
                .into(),
        })
    }
}

/// What broker objects and tickets hold: when the last of them is gone, the broker object closes
/// in the background, with the automatic release of that last ticket before it.
pub(crate) struct Handle {
    pub(crate) shared: Arc<Shared>,
    /// Where its driver lives.
    pub(crate) runtime: runtime::Handle,
    /// The advice of C16 was given.
    pub(crate) advised: AtomicBool,
}

impl Handle {
    pub(crate) fn new(shared: Arc<Shared>, runtime: runtime::Handle) -> Self {
        Handle {
            shared,
            runtime,
            advised: AtomicBool::new(false),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.shared.check_process().is_ok() {
            self.shared.with(|state, now| state.close(now));
        }
    }
}
