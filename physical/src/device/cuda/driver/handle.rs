//! Handles of the driver as values that any thread may use; the handles of cudarc are bare pointers.

use cudarc::driver::sys::{CUctx_st, CUevent_st, CUfunc_st, CUmemPoolHandle_st, CUmod_st, CUstream_st};
use std::fmt;
use std::ptr::null_mut;

/// Handle of an object of the driver.
#[repr(transparent)]
pub(crate) struct Handle<T>(pub(crate) *mut T);

/// Context: the state of a process on a GPU.
pub(crate) type ContextHandle = Handle<CUctx_st>;
/// Event.
pub(crate) type EventHandle = Handle<CUevent_st>;
/// Entry of a module.
pub(crate) type FunctionHandle = Handle<CUfunc_st>;
/// Module: kernels that are loaded together.
pub(crate) type ModuleHandle = Handle<CUmod_st>;
/// Pool of a device's memory.
pub(crate) type PoolHandle = Handle<CUmemPoolHandle_st>;
/// Stream. `NONE` is the default one.
pub(crate) type StreamHandle = Handle<CUstream_st>;

// SAFETY: only the driver dereferences a handle, and its functions may be called on any thread.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

impl<T> Handle<T> {
    /// A null handle, to be overwritten by the driver.
    pub(crate) const NONE: Self = Handle(null_mut());
}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T> PartialEq for Handle<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
