//! Where grants are kept: one trait, several makes.
//!
//! The engine gathers what the lock table changed into a [`Batch`] and commits one batch at a
//! time; while a commit is under way the next batch gathers. A store knows nothing of waiters,
//! connections or clocks.

mod batch;
mod embedded;
mod memory;

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;

pub use batch::{Batch, BatchRecords, Record};
pub use embedded::{EmbeddedStore, OpenError};
pub use memory::MemoryStore;

use ticketing_wire::{KeySet, Token};

/// A boxed future that may move between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Keeps grants and the token mark.
///
/// One caller, one commit at a time (`&mut self`), so that commits form a chain: each stands on
/// all that were acknowledged before it.
///
/// # A replicated make
///
/// The trait is shaped so that a store in a consensus service (S11) is a third make:
///
/// - *Opening* is where an election goes: a make's constructor is async or not as it likes and
///   returns the store beside its [`Recovered`], so winning a term, reading its state and getting
///   a store that writes under exactly that term are one step. A new term is a new store.
/// - *Committing* is a future, so it may take a network round trip; its caller keeps gathering.
///   A commit without an answer must first be settled by the make itself (a fencing transaction);
///   only when that is impossible does it resolve to [`CommitError::Unknown`].
/// - *Losing the leadership* shows in a commit as [`CommitError::Lost`]. While no commit is under
///   way, the make's constructor hands out a watch beside the store (a future, or a deadline to
///   check before replies leave); it is not a method here, because only the front of a cluster
///   node needs it.
pub trait Store: Send {
    /// Makes `batch` durable: atomically, after every earlier batch, in the order of its records.
    /// Resolves to the same buffer, cleared, for reuse.
    ///
    /// It may block: the broker commits, and drops the store, on a thread that has nothing else to
    /// do.
    ///
    /// The future must be driven to its end. After any error the store is broken: the caller
    /// commits nothing more and drops it (S7).
    ///
    /// # Errors
    /// [`CommitError`] says whether the batch can have taken effect.
    fn commit(&mut self, batch: Batch) -> BoxFuture<'_, Result<Batch, CommitError>>;

    /// Whether a commit survives the process. If not, replies need not wait for it.
    fn is_durable(&self) -> bool;
}

/// Why a batch was not acknowledged. In every case its requests are answered `I`.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The write or the sync failed. What of the batch survives a crash is not known, and a later
    /// sync that succeeds would prove nothing about it; so nothing is tried again and the broker
    /// stops (S7).
    #[error(
        "cannot write to the store: {0}; whatever was answered is safe: mend the cause, then start \
         the broker again"
    )]
    Failed(#[source] io::Error),
    /// The batch may or may not have taken effect and nothing can tell any more (a replicated
    /// store without an answer).
    #[error("the store cannot say whether the last commit took effect: {0}")]
    Unknown(String),
    /// This node no longer leads; the batch has not taken effect.
    #[error("this node is no longer the leader")]
    Lost,
}

/// What a store held when it was opened.
#[derive(Debug, Default)]
pub struct Recovered {
    /// No token above this was issued before (S3). 0: none ever.
    pub mark: u64,
    /// The grants that were held, by ascending token. Each is held again for its full lease (S7).
    pub grants: Vec<StoredGrant>,
}

/// A grant as it was stored.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredGrant {
    /// The grant's fencing token.
    pub token: Token,
    /// Its lease in seconds, 1–250.
    pub lease: u8,
    /// Its keys.
    pub keys: KeySet,
}

impl fmt::Debug for StoredGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:?}/{}s", self.token, self.keys, self.lease)
    }
}
