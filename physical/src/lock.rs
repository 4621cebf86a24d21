//! Mutexes whose content is valid after every statement.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks what is valid after every statement, so that a panic elsewhere while it was held does not matter.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
