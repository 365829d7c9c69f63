//! The store that keeps nothing (`--memory`).

use super::{Batch, BoxFuture, CommitError, Store};

/// Keeps nothing: after a restart no grant is held and S3 rests on the wall clock alone.
#[derive(Debug, Default)]
pub struct MemoryStore;

impl Store for MemoryStore {
    fn commit(&mut self, mut batch: Batch) -> BoxFuture<'_, Result<Batch, CommitError>> {
        batch.clear();
        Box::pin(std::future::ready(Ok(batch)))
    }

    fn is_durable(&self) -> bool {
        false
    }
}
