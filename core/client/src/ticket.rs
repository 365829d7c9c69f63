//! Tickets: what a granted acquire hands to the caller (C16–C18).

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use ticketing_wire::{Keys, Token};

use crate::TicketError;
use crate::clock::Moment;
use crate::fence::{FenceRows, FenceTransaction};
use crate::shared::Handle;
use crate::state::{Grant, Origin, ReleaseCell};

/// How a release ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReleaseOutcome {
    /// The grant was held and is gone now.
    Released,
    /// No such grant is held: the lease had run out, or an earlier try of the same release took
    /// effect and its answer was lost.
    NotCurrent,
}

/// What `Ticket` and `TicketSet` share.
pub(crate) struct Held {
    handle: Arc<Handle>,
    grant: Grant,
    phase: Mutex<Phase>,
}

enum Phase {
    Held,
    /// `keep()` was called: no automatic release.
    Kept,
    /// The explicit release, made once (C18).
    Released(Arc<ReleaseCell>),
}

impl Held {
    pub(crate) fn new(handle: Arc<Handle>, grant: Grant) -> Self {
        Held {
            handle,
            grant,
            phase: Mutex::new(Phase::Held),
        }
    }

    fn token(&self) -> Token {
        self.grant.token
    }

    fn keys(&self) -> Keys<'_> {
        self.grant.keys.as_keys()
    }

    fn remaining(&self) -> Duration {
        Moment::now().until(self.grant.valid_before)
    }

    async fn expired(&self) {
        let shared = &self.handle.shared;
        let mut end = pin!(shared.alarm.sleep_until(self.grant.valid_before));
        poll_fn(|cx| match shared.check_process() {
            Ok(()) => end.as_mut().poll(cx),
            Err(_) => Poll::Ready(()), // in a child it is nobody's
        })
        .await;
    }

    async fn release(&self) -> Result<ReleaseOutcome, TicketError> {
        self.handle.shared.check_process()?;
        let cell = {
            let mut phase = self.phase.lock().unwrap_or_else(PoisonError::into_inner);
            match &*phase {
                Phase::Released(cell) => Arc::clone(cell),
                Phase::Held | Phase::Kept => {
                    let cell = self.send_release(Origin::Explicit);
                    *phase = Phase::Released(Arc::clone(&cell));
                    cell
                }
            }
        };
        poll_fn(|cx| match self.handle.shared.check_process() {
            Ok(()) => cell.poll(cx),
            Err(e) => Poll::Ready(Err(e)),
        })
        .await
    }

    fn send_release(&self, origin: Origin) -> Arc<ReleaseCell> {
        let (keys, token) = (Arc::clone(&self.grant.keys), self.grant.token);
        self.handle
            .shared
            .with(|state, now| state.release(now, keys, token, origin))
    }

    /// One key and token for each fence row, in key order.
    fn fence_rows(&self) -> impl Iterator<Item = (&str, u64)> {
        self.keys()
            .iter()
            .map(|key| (key.as_str(), self.token().get()))
    }

    fn keep(&self) {
        let mut phase = self.phase.lock().unwrap_or_else(PoisonError::into_inner);
        if let Phase::Held = *phase {
            *phase = Phase::Kept;
        }
    }

    fn debug(&self, f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
        f.debug_struct(name)
            .field("keys", &self.grant.keys)
            .field("token", &self.token())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

impl Drop for Held {
    /// C18: the automatic release, in the background. Not in a child after `fork` (C30): the
    /// ticket is the parent's.
    fn drop(&mut self) {
        let phase = self.phase.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Phase::Held = phase
            && self.handle.shared.check_process().is_ok()
        {
            self.send_release(Origin::Automatic);
        }
    }
}

macro_rules! ticket_methods {
    ($name:ident) => {
        impl $name {
            /// The fencing token: it rises with every grant of every key, for ever. Stamp each
            /// protected write with it (C20); below 2^63 from a broker of ours.
            #[must_use]
            pub fn token(&self) -> u64 {
                self.0.token().get()
            }

            /// How long the ticket is valid for certain; zero once that has ended. Counted from
            /// before the request was sent, so it ends before the broker's lease does (C16).
            #[must_use]
            pub fn remaining(&self) -> Duration {
                self.0.remaining()
            }

            /// Ends when [`Self::remaining`] reaches zero: stop working then.
            pub async fn expired(&self) {
                self.0.expired().await;
            }

            /// Gives the grant back and says how that went. Repeated until the broker answers or
            /// 5 s have passed (C19), also if this future is dropped. A second call returns the
            /// first one's outcome and sends nothing (C18).
            ///
            /// # Errors
            /// `Indeterminate`: sent, but no answer within 5 s; the lease runs out by itself.
            /// `NotConnected`: it could not be sent within 5 s. `Closed`: the broker object has
            /// been closed. `Protocol`: the broker refused the request.
            pub async fn release(&self) -> Result<ReleaseOutcome, TicketError> {
                self.0.release().await
            }

            /// No automatic release when this is dropped: the lease runs out by itself, which
            /// makes a cool-down (run once per period).
            pub fn keep(&self) {
                self.0.keep();
            }

            /// Fences the caller's transaction (C20): call it first in the transaction, do the
            /// business write, commit; then release. A result for `rusqlite::Transaction` (begun
            /// with `BEGIN IMMEDIATE`), a future of one for `tokio_postgres::Transaction`. It
            /// allows one transaction per ticket; see [`Self::fence_again`].
            ///
            /// # Errors
            /// [`FenceError`](crate::FenceError): leave the transaction, so that it is rolled
            /// back.
            pub fn fence<'a, T: FenceTransaction>(&'a self, tx: &'a mut T) -> T::Fenced<'a> {
                tx.run(FenceRows::new(self.0.fence_rows(), false))
            }

            /// As [`Self::fence`], for a further transaction under the same ticket.
            pub fn fence_again<'a, T: FenceTransaction>(&'a self, tx: &'a mut T) -> T::Fenced<'a> {
                tx.run(FenceRows::new(self.0.fence_rows(), true))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.debug(f, stringify!($name))
            }
        }
    };
}

/// The right to work on one key until it is released or its validity ends.
///
/// It belongs to no thread. Dropped, it is released in the background (C18).
pub struct Ticket(Held);

/// The right to work on several keys at once, held under one token.
///
/// It belongs to no thread. Dropped, it is released in the background (C18).
pub struct TicketSet(Held);

ticket_methods!(Ticket);
ticket_methods!(TicketSet);

impl Ticket {
    pub(crate) fn new(held: Held) -> Self {
        Ticket(held)
    }

    pub(crate) fn valid_before(&self) -> Moment {
        self.0.grant.valid_before
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &str {
        self.0
            .keys()
            .iter()
            .next()
            .expect("a ticket has a key")
            .as_str()
    }
}

impl TicketSet {
    pub(crate) fn new(held: Held) -> Self {
        TicketSet(held)
    }

    /// The keys, sorted and without repetition.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &str> {
        let keys: Vec<&str> = self.0.keys().iter().map(|key| key.as_str()).collect();
        keys.into_iter()
    }
}
