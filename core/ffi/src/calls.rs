//! What a tag stands for: one operation of the client, and its end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use ticketing_client::{Acquiring, Leadership, TicketBroker, TicketError, TicketSet};
use tokio::task::JoinHandle;

use crate::library::{closed, library};
use crate::queue::{Call, End};
use crate::types::{Outcome, millis};

/// An operation under way.
pub(crate) enum Operation {
    /// The grant, and the validity that the caller needs.
    Acquire(Acquiring, Duration),
    /// One that goes on in the background when its tag is cancelled.
    GoesOn(Pin<Box<dyn Future<Output = Outcome> + Send>>),
    /// One that a cancel ends.
    Ends(Pin<Box<dyn Future<Output = Outcome> + Send>>),
    /// It moves by itself, whether or not its queue is drained.
    Campaign(Aborting<Result<Leadership, TicketError>>),
    /// It failed before it began.
    Failed(TicketError),
}

impl Operation {
    pub(crate) fn release(ticket: Arc<TicketSet>) -> Self {
        Operation::GoesOn(Box::pin(async move { ticket.release().await.into() }))
    }

    pub(crate) fn ready(broker: Arc<TicketBroker>, timeout: Duration) -> Self {
        Operation::Ends(Box::pin(async move {
            Outcome::Ready {
                usable: broker.wait_ready(timeout).await,
            }
        }))
    }

    pub(crate) fn close(broker: Arc<TicketBroker>) -> Self {
        Operation::GoesOn(Box::pin(async move {
            broker.close().await;
            Outcome::Closed
        }))
    }

    pub(crate) fn next_term(leadership: Arc<Leadership>, token: u64) -> Self {
        Operation::Ends(Box::pin(async move {
            match leadership.next_term(token).await {
                Some(token) => Outcome::Term { token },
                None => Outcome::Lost,
            }
        }))
    }

    pub(crate) fn resign(leadership: Arc<Leadership>) -> Self {
        Operation::GoesOn(Box::pin(async move { leadership.resign().await.into() }))
    }

    fn advance(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        let outcome = match self {
            Operation::Acquire(acquiring, min_work) => {
                return Pin::new(acquiring).poll(cx).map(|granted| match granted {
                    Ok(ticket) => Ended::granted(ticket, *min_work),
                    Err(e) => e.into(),
                });
            }
            Operation::GoesOn(future) | Operation::Ends(future) => ready!(future.as_mut().poll(cx)),
            Operation::Campaign(task) => match ready!(Pin::new(&mut task.0).poll(cx)) {
                Ok(Ok(leadership)) => return Poll::Ready(Ended::elected(leadership)),
                Ok(Err(e)) => e.into(),
                Err(e) if e.is_cancelled() => closed("the library was stopped").into(),
                Err(e) => internal(&e.to_string()).into(),
            },
            Operation::Failed(e) => e.clone().into(),
        };
        Poll::Ready(outcome.into())
    }

    fn give_up(&mut self) -> Ended {
        let error = match self {
            Operation::Acquire(acquiring, _) => match acquiring.cancel() {
                Some(e) => e,
                None => internal("an acquire was cancelled after its end"),
            },
            Operation::GoesOn(_) => TicketError::Indeterminate {
                detail: "given up by the caller; it goes on in the background".into(),
            },
            Operation::Ends(_) | Operation::Campaign(_) => TicketError::Cancelled {
                detail: "by the caller".into(),
            },
            Operation::Failed(e) => e.clone(),
        };
        error.into()
    }
}

/// Also where a call still waits for the next term: that learns of it.
pub(crate) fn resign_in_background(leadership: Arc<Leadership>) {
    let mut resign = Operation::resign(leadership);
    // The first poll sends it on its way; nobody waits for its outcome.
    let _ = resign.poll(&mut Context::from_waker(Waker::noop()));
}

impl Call for Operation {
    type End = Ended;

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        let polled = catch_unwind(AssertUnwindSafe(|| self.advance(cx)));
        polled.unwrap_or_else(|_| Poll::Ready(internal("a call panicked").into()))
    }

    fn cancel(&mut self) -> Ended {
        let cancelled = catch_unwind(AssertUnwindSafe(|| self.give_up()));
        cancelled.unwrap_or_else(|_| internal("a cancellation panicked").into())
    }
}

pub(crate) fn internal(detail: &str) -> TicketError {
    TicketError::Internal {
        detail: detail.into(),
    }
}

/// A task that ends with its handle.
pub(crate) struct Aborting<T>(pub(crate) JoinHandle<T>);

impl<T> Drop for Aborting<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// How an operation ended, and what C16 needs to be checked again.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    min_work: Duration,
}

impl Ended {
    fn granted(ticket: TicketSet, min_work: Duration) -> Self {
        let (token, valid_for_ms) = (ticket.token(), millis(ticket.remaining()));
        let ticket = library().tickets.insert(ticket);
        Ended {
            outcome: Outcome::Granted {
                ticket,
                token,
                valid_for_ms,
            },
            min_work,
        }
    }

    fn elected(leadership: Leadership) -> Self {
        let token = leadership.token();
        let leadership = library().leaderships.insert(leadership);
        Outcome::Elected { leadership, token }.into()
    }
}

impl<T: Into<Outcome>> From<T> for Ended {
    fn from(outcome: T) -> Self {
        Ended {
            outcome: outcome.into(),
            min_work: Duration::ZERO,
        }
    }
}

impl End for Ended {
    fn look_again(&mut self, cancelled: bool) {
        let failed = match &mut self.outcome {
            Outcome::Granted {
                ticket,
                valid_for_ms,
                ..
            } => {
                let remaining = library().tickets.get(*ticket).map(|t| t.remaining());
                match remaining {
                    _ if cancelled => {}
                    Some(left) if !left.is_zero() && left >= self.min_work => {
                        *valid_for_ms = millis(left);
                        return;
                    }
                    _ => {}
                }
                library().tickets.take(*ticket); // dropped, it is released
                match cancelled {
                    true => given_back(),
                    false => insufficient(remaining.unwrap_or_default(), self.min_work),
                }
            }
            Outcome::Elected { leadership, .. } if cancelled => {
                if let Some(leadership) = library().leaderships.take(*leadership) {
                    resign_in_background(leadership);
                }
                given_back()
            }
            _ => return,
        };
        self.outcome = failed.into();
    }

    fn tag_in_use(tag: i64) -> Self {
        TicketError::InvalidInput {
            argument: "tag",
            detail: format!("tag {tag} has not completed yet; choose another"),
        }
        .into()
    }
}

/// C10: a grant that nobody took.
fn given_back() -> TicketError {
    TicketError::Indeterminate {
        detail: "given up as the grant came; it is given back".into(),
    }
}

/// C16: a grant that lay too long.
fn insufficient(remaining: Duration, min_work: Duration) -> TicketError {
    let millis = |value: Duration| u64::try_from(value.as_millis()).unwrap_or(u64::MAX);
    TicketError::InsufficientLease {
        remaining_ms: millis(remaining),
        min_work_ms: millis(min_work),
        detail: "the grant was taken from its queue too late; it is given back".into(),
    }
}
