//! Work that a thread continues while it waits for a device.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::time::Duration;

/// Longest time between two checks of a thread that does other work while it waits for a device.
pub(crate) const PAUSE: Duration = Duration::from_micros(100);

/// A call continues the work of a thread, and returns true if there was any progress.
pub(crate) type ProgressFn = dyn Fn() -> bool;

thread_local! {
    /// Work of this thread that other ranks may wait for, and through them their devices and this one.
    static MEANWHILE: RefCell<Vec<Weak<ProgressFn>>> = const { RefCell::new(Vec::new()) };
}

/// Makes this thread continue `work` whenever it waits for a device, until the caller drops `work`.
#[cfg(feature = "cuda")]
pub(crate) fn go_on_meanwhile(work: &Rc<ProgressFn>) {
    MEANWHILE.with_borrow_mut(|works| {
        works.retain(|work| work.strong_count() > 0);
        works.push(Rc::downgrade(work));
    });
}

/// Continues once all such work of this thread except `own`; returns true if any made progress.
pub(crate) fn go_on(own: Option<&Rc<ProgressFn>>) -> bool {
    let mut has_moved = false;
    // One after another, since the list must not be borrowed while one of them runs.
    for at in 0.. {
        let Some(work) = MEANWHILE.with_borrow(|works| works.get(at).map(Weak::upgrade)) else { break };
        if let Some(work) = work.filter(|work| own.is_none_or(|own| !Rc::ptr_eq(own, work))) {
            has_moved |= work();
        }
    }
    has_moved
}

/// Returns true if this thread has such work.
pub(crate) fn has_work() -> bool {
    MEANWHILE.with_borrow(|works| works.iter().any(|work| work.strong_count() > 0))
}
