//! An acquire under way (C7–C10).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ticketing_wire::KeySet;

use crate::args::Terms;
use crate::shared::Handle;
use crate::state::{AcquireId, Cause};
use crate::ticket::{Held, TicketSet};
use crate::{TicketBroker, TicketError};

/// An acquire that has begun, from [`TicketBroker::begin_acquire`]: a future of its ticket.
///
/// For callers that must know how a cancelled request stands; [`TicketBroker::acquire`] is for
/// all others. Dropped, it is cancelled; a grant that crosses this is given back.
#[must_use = "dropping it cancels the acquire"]
pub struct Acquiring {
    handle: Arc<Handle>,
    /// `None` once its outcome has been taken.
    id: Option<AcquireId>,
}

impl Acquiring {
    pub(crate) fn begin(handle: &Arc<Handle>, keys: KeySet, terms: Terms) -> Self {
        let id = handle
            .shared
            .with(|state, now| state.acquire(now, keys, terms));
        Acquiring {
            handle: Arc::clone(handle),
            id: Some(id),
        }
    }

    /// Gives the request up, without I/O. `Cancelled`: it was never sent (C8). `Indeterminate`:
    /// it was sent, or a grant is there and goes back (C9, C10). The outcome itself, if the
    /// request had failed already. `None`: the outcome had been taken before.
    pub fn cancel(&mut self) -> Option<TicketError> {
        let id = self.id.take()?;
        match self.handle.shared.check_process() {
            Ok(()) => self
                .handle
                .shared
                .with(|state, now| state.cancel(now, id, Cause::Cancelled)),
            Err(e) => Some(e),
        }
    }

    pub(crate) fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<Result<Held, TicketError>> {
        let shared = &self.handle.shared;
        let Some(id) = self.id else {
            return Poll::Ready(Err(TicketError::closed()));
        };
        let outcome = match shared.check_process() {
            Ok(()) => std::task::ready!(shared.with(|state, now| state.poll_acquire(now, id, cx))),
            Err(e) => Err(e),
        };
        self.id = None;
        Poll::Ready(outcome.map(|grant| Held::new(Arc::clone(&self.handle), grant)))
    }
}

impl Future for Acquiring {
    type Output = Result<TicketSet, TicketError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_held(cx).map_ok(TicketSet::new)
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl std::fmt::Debug for Acquiring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Acquiring").finish_non_exhaustive()
    }
}

impl TicketBroker {
    /// Begins what [`TicketBroker::acquire_set`] does: the request is on its way when this
    /// returns, whether or not the future is polled.
    ///
    /// # Errors
    /// The kinds for wrong arguments (C1–C5), and `Closed` in a child after `fork` (C30).
    pub fn begin_acquire<S: AsRef<str>>(
        &self,
        keys: impl IntoIterator<Item = S>,
        wait: std::time::Duration,
        lease: std::time::Duration,
        min_work: std::time::Duration,
    ) -> Result<Acquiring, TicketError> {
        let terms = Terms::new(wait, lease, min_work)?;
        self.begin(crate::args::key_set(keys)?, terms)
    }
}
