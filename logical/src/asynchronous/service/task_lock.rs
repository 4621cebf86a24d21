//! State shared by the program and the service thread of a rank, under a lock that a task awaits without blocking its
//! thread.

use std::future::poll_fn;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, Waker};

/// A lock that is held for work in memory only, never across an await.
///
/// The service thread takes it with [`TaskLock::lock`], and may block for the duration of one such piece of work. The
/// program of this rank takes it with [`TaskLock::enter`], which leaves its thread free in the meantime.
#[derive(Default)]
pub(crate) struct TaskLock<T> {
    value: Mutex<T>,
    /// Tasks that wait for the lock.
    waiting: Mutex<Vec<Waker>>,
}

/// The guard of the lock. Dropping it wakes the waiting tasks.
pub(crate) struct SharedGuard<'a, T> {
    /// Dropped before the tasks are woken.
    value: MutexGuard<'a, T>,
    _wakes: WakeOnDrop<'a>,
}

struct WakeOnDrop<'a>(&'a Mutex<Vec<Waker>>);

impl<T> TaskLock<T> {
    pub(crate) fn new(value: T) -> Self {
        TaskLock { value: Mutex::new(value), waiting: Mutex::default() }
    }

    /// Takes the lock, and blocks this thread until it is free.
    pub(crate) fn lock(&self) -> SharedGuard<'_, T> {
        self.guard(self.value.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the lock once it is free.
    pub(crate) async fn enter(&self) -> SharedGuard<'_, T> {
        poll_fn(|context| self.poll_enter(context)).await
    }

    /// Takes the lock if it is free; otherwise wakes the task when it may be free.
    pub(crate) fn poll_enter(&self, context: &Context<'_>) -> Poll<SharedGuard<'_, T>> {
        if let Some(guard) = self.try_lock() {
            return Poll::Ready(guard);
        }
        let mut waiting = lock(&self.waiting);
        if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            waiting.push(context.waker().clone());
        }
        drop(waiting);
        // The lock may have been released before this task was registered.
        self.try_lock().map_or(Poll::Pending, Poll::Ready)
    }

    fn try_lock(&self) -> Option<SharedGuard<'_, T>> {
        match self.value.try_lock() {
            Ok(value) => Some(self.guard(value)),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.guard(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn guard<'a>(&'a self, value: MutexGuard<'a, T>) -> SharedGuard<'a, T> {
        SharedGuard { value, _wakes: WakeOnDrop(&self.waiting) }
    }
}

impl<T> Deref for SharedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for SharedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl Drop for WakeOnDrop<'_> {
    fn drop(&mut self) {
        let waiting = std::mem::take(&mut *lock(self.0));
        waiting.into_iter().for_each(Waker::wake);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct WakeCount(AtomicU32);

    impl Wake for WakeCount {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_task_that_finds_the_lock_taken_leaves_its_thread_and_is_woken() {
        let shared = TaskLock::new(1);
        let count = Arc::new(WakeCount::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut context = Context::from_waker(&waker);
        let mut entering = pin!(shared.enter());
        let held = shared.lock();
        for _ in 0..2 {
            assert!(entering.as_mut().poll(&mut context).is_pending());
        }
        assert_eq!(lock(&shared.waiting).len(), 1, "a task waits once, however often it is polled");
        drop(held);
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        assert!(matches!(entering.as_mut().poll(&mut context), Poll::Ready(guard) if *guard == 1));
    }

    #[test]
    fn threads_that_wait_in_either_way_all_have_their_turn() {
        let shared = TaskLock::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let shared = &shared;
                scope.spawn(move || {
                    for _ in 0..500 {
                        if thread % 2 == 0 {
                            *shared.lock() += 1;
                        } else {
                            runtime::block_on(async { *shared.enter().await += 1 });
                        }
                    }
                });
            }
        });
        assert_eq!(*shared.lock(), 2000);
    }
}
