//! Devices: memory plus the arithmetic on it.
//!
//! A buffer belongs to one [`Queue`] of a device; that of the host is the simplest. Methods of views perform
//! arithmetic ([`WriteView::reduce`](crate::memory::WriteView::reduce) and others), on the queue of the written view.
//! Kernels *enqueue*: they return once the work is ordered after earlier work on the same memory; on the host, it is
//! then complete. Collectives and algorithms are written once against views, and never name a device.
//!
//! `operations` has the arithmetic and its host form, and that of other devices (`cross_device`), [`queue`] the interface of
//! such a device, [`kernels`] and `host` the host kernels, [`measure`] norms, [`unequal`] comparisons, [`Kernel`]
//! user kernels, and [`program`] the programs of a device with compiled kernels. `testing::late` (feature `testing`)
//! is a complete device in two pages.

mod choice;
pub mod codec;
#[cfg(feature = "cuda")]
pub mod cuda;
pub(crate) mod host;
pub mod kernels;
pub(crate) mod operations;
pub mod queue;

pub use choice::DeviceChoice;
pub use operations::apply::{apply, apply_all};
pub use operations::kernel::{Kernel, Operands};
pub use operations::{measure, program, sums, unequal};
#[cfg(feature = "cuda")]
pub(crate) use queue::meanwhile::{ProgressFn, go_on, go_on_meanwhile};
pub(crate) use queue::order::AccessOrder;
#[cfg(feature = "cuda")]
pub(crate) use queue::sync_point::{SyncPoint, at};
pub use queue::timestamp::Timestamp;
pub use queue::{Allocation, DeviceQueue, Event, Failure, Queue};

use crate::error::Result;
use crate::memory::dtype::{DType, ReduceOp};

/// Memory of one kind, with queues of work. The host needs no `Device`: its [`Queue`] always exists.
pub trait Device: Send + Sync {
    /// Returns the name of the device in messages: `cuda:0`.
    fn name(&self) -> &str;

    /// Creates a queue.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if the device has no more queues.
    fn queue(&self) -> Result<Queue>;
}

/// Turns a sum into a mean: `to ← to × (1 ÷ ranks)`, for float types.
pub(crate) fn divide(ranks: usize, dtype: DType, to: &mut [u8]) {
    operations::reduce::scale(dtype, 1.0 / ranks as f64, to);
}

/// Replaces every NaN by the NaN that reductions return, after a reduction of f32 or f64 by another library.
#[cfg(feature = "mpi")]
pub(crate) fn canonicalize(dtype: DType, to: &mut [u8]) {
    operations::reduce::canonicalize(dtype, to);
}

/// Adds f32 numbers that another process may write at the same time. Both sides are aligned, and equally long.
pub(crate) fn add_shared(from: kernels::SharedFloats<'_>, to: &mut [u8]) {
    kernels::add_shared(from, bytemuck::cast_slice_mut(to));
}

/// Accumulates bytes from a transport; whole elements only, `from` at any alignment.
pub(crate) fn land(op: ReduceOp, dtype: DType, from: &[u8], to: &mut [u8]) {
    host::reduce(op, dtype, from, to);
}
