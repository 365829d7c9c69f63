//! The locks of the queue: `std`'s, or shuttle's where its interleavings are explored.

#[cfg(not(test))]
pub(super) use std::sync::{Condvar, Mutex, MutexGuard, atomic::AtomicBool};

#[cfg(test)]
pub(super) use shuttle::sync::{Condvar, Mutex, MutexGuard, atomic::AtomicBool};

use std::sync::PoisonError;

/// What is behind these locks is whole at each unlock, so a panic elsewhere poisons nothing.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
