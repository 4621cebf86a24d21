//! Fibers: threads of a simulated world, with their own stacks, that share one thread of the system.
//!
//! A rank of a simulated world runs the same code as any other, which waits deep within calls. So it cannot be a future; and
//! thousands of threads of the system take longer to hand the turn over than most of them work. Switching to a fiber takes some
//! nanoseconds.

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::{io, ptr};

/// Address space for the stack of a fiber, in bytes; it uses memory only as far as it is written.
const STACK: usize = 1 << 20;

thread_local! {
    /// The way out of the fiber that runs on this thread; null while none does.
    static WAY_OUT: Cell<*const Yielder<(), ()>> = const { Cell::new(ptr::null()) };
}

/// A suspended thread of a simulated world. A fiber dropped before its end never continues, and its stack is leaked:
/// unwinding could not complete, since other stacks hold values that it waits for.
pub(crate) struct Fiber(ManuallyDrop<Coroutine<(), (), (), DefaultStack>>);

impl Drop for Fiber {
    fn drop(&mut self) {
        if self.0.done() {
            // SAFETY: it is not used after this.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}

impl Fiber {
    /// Creates a fiber that will run `work`, which must catch its panics.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub(crate) fn new(work: impl FnOnce() + 'static) -> io::Result<Self> {
        let run = move |way_out: &Yielder<(), ()>, ()| {
            WAY_OUT.set(way_out);
            work();
        };
        Ok(Fiber(ManuallyDrop::new(Coroutine::with_stack(DefaultStack::new(STACK)?, run))))
    }

    /// Runs the fiber until it suspends itself or ends; returns true if it has ended.
    pub(crate) fn resume(&mut self) -> bool {
        let outer = WAY_OUT.get();
        let result = self.0.resume(());
        WAY_OUT.set(outer);
        matches!(result, CoroutineResult::Return(()))
    }
}

/// Suspends the fiber that is running, until it is resumed. Returns false without any effect outside of fibers.
pub(crate) fn suspend() -> bool {
    let way_out = WAY_OUT.get();
    if way_out.is_null() {
        return false;
    }
    // SAFETY: it was set when the running fiber began or continued, and lives on the stack of that fiber until it
    // ends.
    unsafe { &*way_out }.suspend(());
    WAY_OUT.set(way_out);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    #[test]
    fn fibers_take_turns_wherever_they_suspend_themselves() {
        let log: Rc<RefCell<Vec<(usize, usize)>>> = Rc::default();
        let mut fibers: Vec<_> = (0..3)
            .map(|number| {
                let log = Rc::clone(&log);
                let deep = move || {
                    for turn in 0..2 {
                        log.borrow_mut().push((number, turn));
                        assert!(suspend());
                    }
                };
                Fiber::new(deep).unwrap()
            })
            .collect();
        while !fibers.is_empty() {
            fibers.retain_mut(|fiber| !fiber.resume());
        }
        assert_eq!(*log.borrow(), [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]);
        assert!(!suspend(), "no fiber runs here");
    }

    #[test]
    fn what_has_not_ended_is_left_as_it_is() {
        let kept = Rc::new(());
        let on_stack = Rc::clone(&kept);
        let mut fiber = Fiber::new(move || {
            let _on_stack = on_stack;
            suspend();
        });
        assert!(!fiber.as_mut().unwrap().resume());
        drop(fiber);
        assert_eq!(Rc::strong_count(&kept), 2);
    }
}
