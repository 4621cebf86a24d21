//! Hooks that an algorithm does not implement: how the engine distinguishes them from those with a body.
//!
//! The default of a hook returns [`NotImplemented`]; an implemented hook returns a future of another type. So the engine has
//! this information before any call, and refuses a hook that would never be called at the start.

use crate::plugin::{Algorithm, Bucket, Context, Slots};
use hexagram_logical::{Buffer, Result};
use std::any::TypeId;
use std::pin::Pin;
use std::task::{Context as Polling, Poll};

/// Hooks around a step that an algorithm implements: the engine must call and wait for them. A wrapper of another
/// algorithm adds the hooks of the inner one, by [`Algorithm::written`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImplementedHooks {
    /// True if [`before_forward`](Algorithm::before_forward) is implemented.
    pub before_forward: bool,
    /// True if [`after_backward`](Algorithm::after_backward) is implemented.
    pub after_backward: bool,
    /// True if [`slots_ready`](Algorithm::slots_ready) or [`after_step`](Algorithm::after_step) is implemented.
    pub after_step: bool,
    /// True if [`settle`](Algorithm::settle) is implemented: the algorithm has background work.
    pub settle: bool,
}

impl ImplementedHooks {
    /// Returns the hooks that an algorithm implements itself.
    pub fn of<A: Algorithm>() -> Self {
        ImplementedHooks {
            before_forward: writes_before_forward(A::before_forward),
            after_backward: writes_bucket_hook(A::after_backward),
            after_step: writes_slots_ready(A::slots_ready) || writes_bucket_hook(A::after_step),
            settle: writes_bucket_hook(A::settle),
        }
    }
}

/// Future of a hook that an algorithm does not implement. It is ready immediately.
pub(super) struct NotImplemented;

impl Future for NotImplemented {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, _: &mut Polling<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Returns the first implemented hook of an algorithm that needs parameters.
pub(super) fn hook_on_parameters<A: Algorithm>() -> Option<&'static str> {
    if writes_before_forward(A::before_forward) {
        return Some("before_forward");
    }
    if writes_bucket_hook(A::evaluated) {
        return Some("evaluated");
    }
    if writes_slots_ready(A::slots_ready) {
        return Some("slots_ready");
    }
    writes_bucket_hook(A::after_step).then_some("after_step")
}

fn writes_before_forward<A: Algorithm, F: 'static>(
    _: impl FnOnce(&'static A, &'static Context, &'static mut A::State, &'static Buffer) -> F,
) -> bool {
    TypeId::of::<F>() != TypeId::of::<NotImplemented>()
}

fn writes_bucket_hook<A: Algorithm, F: 'static>(
    _: impl FnOnce(&'static A, &'static Context, &'static mut A::State, &'static mut Bucket) -> F,
) -> bool {
    TypeId::of::<F>() != TypeId::of::<NotImplemented>()
}

/// Returns true if the hook is implemented.
pub(super) fn writes_slots_ready<A: Algorithm, F: 'static>(
    _: impl FnOnce(
        &'static A,
        &'static Context,
        &'static mut A::State,
        &'static mut Bucket,
        &'static mut Slots,
    ) -> F,
) -> bool {
    TypeId::of::<F>() != TypeId::of::<NotImplemented>()
}
