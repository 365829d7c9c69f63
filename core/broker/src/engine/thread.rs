//! The thread of the committer: a store may block it, and nothing else waits behind it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::{Committer, Engine};
use crate::store::{CommitError, Store};

/// A running committer; resolves when it ends. Once this is dropped, the committer commits what is
/// open, closes the store and ends.
pub(crate) struct CommitterThread {
    engine: Arc<Engine>,
    outcome: oneshot::Receiver<Result<(), CommitError>>,
}

/// The committer's thread has panicked.
#[derive(Debug)]
pub(crate) struct Panicked;

impl CommitterThread {
    /// Starts a committer for `engine`.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub(crate) fn start(engine: Arc<Engine>, store: Box<dyn Store>) -> io::Result<Self> {
        let committer = Committer::new(engine.clone(), store);
        let runtime = Handle::current();
        let (ended, outcome) = oneshot::channel();
        thread::Builder::new()
            .name("ticketing-commit".to_owned())
            .spawn(move || ended.send(runtime.block_on(committer.run())))?;
        Ok(CommitterThread { engine, outcome })
    }
}

impl Future for CommitterThread {
    type Output = Result<Result<(), CommitError>, Panicked>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = Pin::new(&mut self.outcome);
        outcome.poll(cx).map(|ended| ended.map_err(|_| Panicked))
    }
}

impl Drop for CommitterThread {
    fn drop(&mut self) {
        self.engine.drain();
    }
}
