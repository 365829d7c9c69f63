//! Leadership by fenced terms: one leader of a name at a time, for as long as it lives.
//!
//! A term is a ticket with a token of its own. A ticket cannot be renewed and is not re-entrant, so
//! a name has two keys, and whoever leads holds at least one of them at any moment: the next term
//! is asked for on the other key well before this one ends, and this one is given back once that
//! is granted. A candidate becomes leader by holding both at once, which nobody can while another
//! leads. So leadership goes on from term to term without a gap, with tokens that only rise.

use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::args::Terms;
use crate::clock::Moment;
use crate::fence::{FenceRows, FenceTransaction};
use crate::{ReleaseOutcome, Ticket, TicketBroker, TicketError};

const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// The two keys of a name are it and one of these.
const KEYS: [&str; 2] = [".term-a", ".term-b"];

/// How long a candidate's try holds the first key at most, should it die between the two: so long
/// a leader may have to wait for its next term.
const TRY: Duration = Duration::from_secs(5);

/// The pauses between tries: while another leads, and doubling to the longest after an error.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// The first pause of a leader that asks again for its next term.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Somebody who would lead: a broker object, the name, and how long a term is.
///
/// ```no_run
/// use std::time::Duration;
/// use ticketing_client::{Candidate, TicketBroker};
///
/// # async fn work_of_the_leader(token: u64) {}
/// # async fn example(broker: &TicketBroker) -> Result<(), Box<dyn std::error::Error>> {
/// let candidate = Candidate::new(broker, "reports").lease(Duration::from_secs(30));
/// loop {
///     let leadership = candidate.campaign().await?; // until this one leads
///     tokio::select! {
///         // Stamp each write with the token, or `leadership.fence(&mut tx)` it.
///         () = work_of_the_leader(leadership.token()) => {
///             leadership.resign().await?;
///             return Ok(());
///         }
///         // The work is dropped here, with `margin` to spare; then it stands again.
///         () = leadership.lost() => {}
///     }
/// }
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Candidate {
    broker: TicketBroker,
    name: String,
    lease: Duration,
    margin: Option<Duration>,
}

impl Candidate {
    /// A candidate for the leadership of `name`, which is at most 121 bytes of what a key may be.
    #[must_use]
    pub fn new(broker: &TicketBroker, name: impl Into<String>) -> Self {
        Candidate {
            broker: broker.clone(),
            name: name.into(),
            lease: DEFAULT_LEASE,
            margin: None,
        }
    }

    /// The lease of each term, 1–250 s (default 30 s): for so long at most nobody leads after a
    /// leader has died. A healthy leader begins a new term after less than half of it.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How long before the end of its last term a leader is told of the loss, so that it can stop
    /// its work: at most half of the lease (default a fifth of it).
    #[must_use]
    pub fn margin(mut self, margin: Duration) -> Self {
        self.margin = Some(margin);
        self
    }

    /// Stands until this candidate leads. Tries again about every second while another leads, and
    /// with a growing pause of up to 8 s after `Busy`, `ClientCapacity`, `NotConnected`,
    /// `Indeterminate` and `InsufficientLease`. Dropping the future withdraws the candidate.
    ///
    /// # Errors
    /// `InvalidInput` and `UnsupportedDuration` for the name, lease and margin; `Closed`, `Auth`
    /// and `Protocol` as [`TicketBroker::acquire`].
    pub async fn campaign(&self) -> Result<Leadership, TicketError> {
        let terms = self.terms()?;
        let mut pause = PAUSE;
        loop {
            match terms.elect().await {
                Ok((ticket, on)) => return Ok(Leadership::begin(terms, ticket, on)),
                Err(TicketError::Timeout { .. }) => pause = PAUSE,
                Err(e) if passes(&e) => {
                    tracing::debug!(name = self.name, error = %e, "not elected");
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                Err(e) => return Err(e),
            }
            terms.pause(pause).await;
        }
    }

    fn terms(&self) -> Result<LeaderTerms, TicketError> {
        let lease = Duration::from_secs(
            Terms::new(Duration::ZERO, self.lease, Duration::ZERO)?
                .lease
                .into(),
        );
        let margin = self.margin.unwrap_or(lease / 5);
        if margin > lease / 2 {
            let detail = format!("{margin:?} is more than half of the lease of {lease:?}");
            return Err(TicketError::invalid("margin", detail));
        }
        Ok(LeaderTerms {
            broker: self.broker.clone(),
            name: self.name.clone(),
            keys: KEYS.map(|key| format!("{}{key}", self.name)),
            lease,
            margin,
            resigned: AtomicBool::new(false),
        })
    }
}

/// Whether an error of an acquire may have passed when it is made again.
fn passes(error: &TicketError) -> bool {
    matches!(
        error,
        TicketError::Timeout { .. }
            | TicketError::Busy { .. }
            | TicketError::ClientCapacity { .. }
            | TicketError::NotConnected { .. }
            | TicketError::Indeterminate { .. }
            | TicketError::InsufficientLease { .. }
    )
}

/// A candidate's terms, checked.
struct LeaderTerms {
    broker: TicketBroker,
    name: String,
    keys: [String; 2],
    lease: Duration,
    margin: Duration,
    resigned: AtomicBool,
}

impl LeaderTerms {
    fn resigned(&self) -> bool {
        self.resigned.load(Ordering::Acquire)
    }

    /// Takes both keys: then nobody leads. Which ticket is the first term, and on which key.
    async fn elect(&self) -> Result<(Ticket, usize), TicketError> {
        let (first, second) = (&self.keys[0], &self.keys[1]);
        let short = TRY.min(self.lease);
        let proof = self
            .broker
            .acquire(first, Duration::ZERO, short, Duration::ZERO);
        let proof = proof.await?;
        let term = self
            .broker
            .acquire(second, Duration::ZERO, self.lease, self.margin);
        let term = term.await?;
        if proof.remaining().is_zero() {
            return Err(TicketError::Timeout {
                detail: "the second key came too late".into(),
            });
        }
        Ok((term, 1))
    }

    /// When a leader is told that it loses a term that no other followed.
    fn lost_at(&self, term: &Ticket) -> Moment {
        term.valid_before() - self.margin
    }

    /// When the next term is asked for: half-way between the start and the loss.
    fn ask_at(&self, term: &Ticket) -> Moment {
        self.lost_at(term) - (self.lease - self.margin) / 2
    }

    /// The next term, asked for until this one is lost.
    async fn next(&self, term: &Ticket, on: usize) -> Result<Ticket, TicketError> {
        let mut pause = FIRST_PAUSE;
        loop {
            let wait = Moment::now().until(self.lost_at(term));
            let next = self
                .broker
                .acquire(&self.keys[on], wait, self.lease, self.margin);
            match next.await {
                Err(e) if passes(&e) => {
                    tracing::debug!(name = self.name, error = %e, "no next term yet")
                }
                decided => return decided,
            }
            self.pause(pause).await;
            pause = (pause * 2).min(PAUSE);
        }
    }

    async fn pause(&self, most: Duration) {
        let pause = most.mul_f64(rand::random_range(0.5..=1.0));
        let alarm = &self.broker.handle().shared.alarm;
        alarm.sleep_until(Moment::now() + pause).await;
    }

    /// Goes from term to term until one is lost.
    async fn lead(&self, current: watch::Sender<Arc<Ticket>>, mut on: usize) {
        let alarm = &self.broker.handle().shared.alarm;
        loop {
            let term = Arc::clone(&current.borrow());
            alarm.sleep_until(self.ask_at(&term)).await;
            on = 1 - on;
            let next = alarm.until(self.lost_at(&term), self.next(&term, on)).await;
            let next = match next {
                Some(Ok(next)) => next,
                Some(Err(e)) => {
                    return tracing::warn!(name = self.name, error = %e, "no next term");
                }
                None => return tracing::warn!(name = self.name, "no next term in time"),
            };
            // Told of the loss, or stopped for so long: another may lead by now.
            if self.lost_at(&term) <= Moment::now() {
                return;
            }
            tracing::debug!(name = self.name, token = next.token(), "a new term");
            // The term before it is released when its last user drops it; one that crossed the
            // resignation is dropped here.
            let next = Arc::new(next);
            let goes_on = current.send_if_modified(|term| {
                let goes_on = !self.resigned();
                if goes_on {
                    *term = next;
                }
                goes_on
            });
            if !goes_on {
                return;
            }
        }
    }
}

/// The leadership of a name, from an election until it is lost or resigned.
///
/// It goes from term to term in the background. Dropped, it is resigned without waiting for the
/// outcome: end the work first.
pub struct Leadership {
    terms: Arc<LeaderTerms>,
    current: watch::Receiver<Arc<Ticket>>,
    background: AbortHandle,
}

impl Leadership {
    fn begin(terms: LeaderTerms, first: Ticket, on: usize) -> Self {
        let (sender, current) = watch::channel(Arc::new(first));
        let terms = Arc::new(terms);
        let leading = Arc::clone(&terms);
        let task = async move { leading.lead(sender, on).await };
        let background = terms.broker.handle().runtime.spawn(task).abort_handle();
        Leadership {
            terms,
            current,
            background,
        }
    }

    /// The name that is led.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.terms.name
    }

    /// The fencing token of the current term. Those of later terms and of later leaders are
    /// higher. Work that can't be told of a new term may go on under the token that it began with
    /// until the leadership is lost: nobody but this leader gets a higher one before.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.current.borrow().token()
    }

    /// For how long this leads for certain if no further term follows; zero once that has ended.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        match self.terms.resigned() {
            true => Duration::ZERO,
            false => self.current.borrow().remaining(),
        }
    }

    /// Waits for the term after the one with `token` and gives its token; `None` once the
    /// leadership is lost, `margin` before its end: stop the work then.
    pub async fn next_term(&self, token: u64) -> Option<u64> {
        let shared = &self.terms.broker.handle().shared;
        if shared.check_process().is_err() {
            return None; // in a child nobody leads
        }
        let mut current = self.current.clone();
        loop {
            let (now, lost_at) = {
                let term = current.borrow_and_update();
                (term.token(), self.terms.lost_at(&term))
            };
            // The clock decides, whatever became of the background task.
            if self.terms.resigned() || lost_at <= Moment::now() {
                return None;
            }
            if now != token {
                return Some(now);
            }
            let changed = async {
                if current.changed().await.is_err() && !self.terms.resigned() {
                    pending().await
                }
            };
            shared.alarm.until(lost_at, changed).await;
        }
    }

    /// Ends when the leadership is lost, `margin` before its end: stop the work then.
    pub async fn lost(&self) {
        let mut token = self.token();
        while let Some(next) = self.next_term(token).await {
            token = next;
        }
    }

    /// Fences the caller's transaction under the current term's token, in the row of the name: as
    /// [`Ticket::fence_again`], for any number of transactions.
    pub fn fence<'a, T: FenceTransaction>(&'a self, tx: &'a mut T) -> T::Fenced<'a> {
        let row = (self.name(), self.token());
        tx.run(FenceRows::new(std::iter::once(row), true))
    }

    /// Lets go at once, so that another can lead; end the work first. [`Self::lost`] ends, and
    /// nothing remains. Says how the release of the last term went, also when called again.
    ///
    /// # Errors
    /// As [`Ticket::release`]; the last term then runs out by itself.
    pub async fn resign(&self) -> Result<ReleaseOutcome, TicketError> {
        self.terms.broker.handle().shared.check_process()?;
        self.terms.resigned.store(true, Ordering::Release);
        // Its end wakes who waits for the next term.
        self.background.abort();
        let last = Arc::clone(&self.current.borrow());
        last.release().await
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        // In a child the task is the parent's (C30).
        if self.terms.broker.handle().shared.check_process().is_ok() {
            self.background.abort();
        }
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership")
            .field("name", &self.name())
            .field("token", &self.token())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
