//! Deferral of the drop of keepers.
//!
//! A keeper belongs to another library. Its drop code may take a lock, such as that of the Python interpreter, and
//! the lock's holder may wait for this library. Therefore a thread that drops views while it holds a lock collects
//! their keepers, and drops them after it has released the lock.

use super::Keeper;
use std::cell::RefCell;

thread_local! {
    /// Keepers of released memory, whose drop this thread defers.
    static KEPT: RefCell<Option<Vec<Keeper>>> = const { RefCell::new(None) };
}

/// Does work that may drop the last view of some memory, and returns the keepers of that memory instead of dropping them.
#[cfg(any(test, feature = "cuda"))]
pub(crate) fn collect(work: impl FnOnce()) -> Vec<Keeper> {
    let before = KEPT.replace(Some(Vec::new()));
    /// Restores the state of the thread, even if the work panics.
    struct Collecting(Option<Vec<Keeper>>);
    impl Drop for Collecting {
        fn drop(&mut self) {
            KEPT.set(self.0.take());
        }
    }
    let _collecting = Collecting(before);
    work();
    KEPT.take().unwrap_or_default()
}

/// Defers the drop of a keeper if this thread defers drops.
pub(super) fn keep(keeper: &Keeper) {
    // A thread that ends no longer has a list.
    let _ = KEPT.try_with(|kept| {
        if let Some(kept) = &mut *kept.borrow_mut() {
            kept.push(Keeper::clone(keeper));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::super::dtype::DType;
    use super::*;
    use crate::device::Queue;
    use crate::memory::Buffer;
    use std::ptr::NonNull;
    use std::sync::Arc;

    #[test]
    fn a_keeper_goes_when_whoever_collects_lets_it_go() {
        let memory = [1.0f32, 2.0];
        let keeper: Keeper = Arc::new(());
        let foreign = || {
            let address = NonNull::from(&memory).cast();
            // SAFETY: the numbers are valid until the end of this test, and no thread writes them.
            unsafe { Buffer::over_foreign(&Queue::host(), address, DType::F32, 2, Arc::clone(&keeper)) }
                .unwrap()
        };
        let first = foreign();
        let view = first.read_all().unwrap();
        let collected = collect(|| drop(first));
        assert_eq!((collected.len(), Arc::strong_count(&keeper)), (0, 2), "a view is left");
        let collected = collect(|| drop(view));
        assert_eq!((collected.len(), Arc::strong_count(&keeper)), (1, 2));
        drop(collected);
        assert_eq!(Arc::strong_count(&keeper), 1);
        drop(foreign());
        assert_eq!(Arc::strong_count(&keeper), 1, "at once where nobody collects");
    }
}
