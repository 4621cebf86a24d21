//! Mutexes whose content is valid after every statement.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks data that is valid after every statement, so that a panic of another thread that held the lock is harmless.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
