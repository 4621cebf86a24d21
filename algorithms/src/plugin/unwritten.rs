//! Hooks that an algorithm leaves unwritten: how the engine tells them from those that have a body.
//!
//! A hook's default returns [`Unwritten`], and one that is written returns a future of another type. So what is written
//! is known before anything is called, and a hook that would never be called is refused at the start.

use crate::plugin::{Algorithm, Bucket, Context, Slots};
use hexagram_logical::{Buffer, Result};
use std::any::TypeId;
use std::pin::Pin;
use std::task::{Context as Polling, Poll};

/// Hooks around a step that an algorithm writes: what the engine has to call, and to wait for. An algorithm around
/// another adds what that one writes, by [`Algorithm::written`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// True if [`before_forward`](Algorithm::before_forward) is written.
    pub before_forward: bool,
    /// True if [`after_backward`](Algorithm::after_backward) is written.
    pub after_backward: bool,
    /// True if [`slots_ready`](Algorithm::slots_ready) or [`after_step`](Algorithm::after_step) is written.
    pub after_step: bool,
}

impl Written {
    /// Returns what an algorithm writes itself.
    pub fn of<A: Algorithm>() -> Self {
        Written {
            before_forward: writes_before_forward(A::before_forward),
            after_backward: writes_bucket_hook(A::after_backward),
            after_step: writes_slots_ready(A::slots_ready) || writes_bucket_hook(A::after_step),
        }
    }
}

/// Future of a hook that an algorithm does not write. It is ready at once.
pub(super) struct Unwritten;

impl Future for Unwritten {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, _: &mut Polling<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Returns the first hook of an algorithm that is written and needs parameters to be called.
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
    TypeId::of::<F>() != TypeId::of::<Unwritten>()
}

fn writes_bucket_hook<A: Algorithm, F: 'static>(
    _: impl FnOnce(&'static A, &'static Context, &'static mut A::State, &'static mut Bucket) -> F,
) -> bool {
    TypeId::of::<F>() != TypeId::of::<Unwritten>()
}

/// Returns true if the hook is written.
pub(super) fn writes_slots_ready<A: Algorithm, F: 'static>(
    _: impl FnOnce(
        &'static A,
        &'static Context,
        &'static mut A::State,
        &'static mut Bucket,
        &'static mut Slots,
    ) -> F,
) -> bool {
    TypeId::of::<F>() != TypeId::of::<Unwritten>()
}
