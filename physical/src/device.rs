//! Devices: memory plus the arithmetic on it.
//!
//! A buffer belongs to one [`Queue`] of a device; the host's is the simplest. Arithmetic is asked of views
//! ([`WriteView::reduce`](crate::memory::WriteView::reduce) and its like) and goes to the queue of what it writes.
//! Kernels *enqueue*: they return once the work is ordered behind earlier work on the same memory, which on the host
//! means done. Collectives and algorithms are written once against views, and never name a device.
//!
//! `arithmetic` has what can be asked and the host's way, `elsewhere` that of other devices, [`queue`] what such a
//! device implements, [`kernels`] and `host` the host's kernels, [`measure`] norms, [`unequal`] comparisons, [`Kernel`] kernels of your own, and
//! [`program`] what a device with compiled kernels runs. `testing::late` (feature `testing`) is a whole device in two pages.

mod apply;
mod arithmetic;
mod choice;
#[cfg(feature = "cuda")]
pub mod cuda;
mod elsewhere;
pub(crate) mod host;
mod kernel;
pub mod kernels;
mod meanwhile;
pub mod measure;
mod order;
mod place;
pub mod program;
pub mod queue;
mod reduce;
pub mod sums;
mod timestamp;
pub mod unequal;
mod waiting;
mod weighted;

pub use apply::{apply, apply_all};
pub use choice::DeviceChoice;
pub use kernel::{Kernel, Operands};
#[cfg(feature = "cuda")]
pub(crate) use meanwhile::{Meanwhile, go_on, go_on_meanwhile};
pub(crate) use order::Order;
#[cfg(feature = "cuda")]
pub(crate) use place::{WaitPlace, at};
pub use queue::{Allocation, DeviceQueue, Event, Failure, Queue};
pub use timestamp::Timestamp;

use crate::dtype::{DType, ReduceOp};
use crate::error::Result;

/// Memory of one kind, in which queues of work run. The host needs none: its [`Queue`] is always there.
pub trait Device: Send + Sync {
    /// Returns what to call the device in messages: `cuda:0`.
    fn name(&self) -> &str;

    /// Creates a queue.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if the device has no more.
    fn queue(&self) -> Result<Queue>;
}

/// Makes a sum a mean: `to ← to × (1 ÷ ranks)`, for float types.
pub(crate) fn divide(ranks: usize, dtype: DType, to: &mut [u8]) {
    reduce::scale(dtype, 1.0 / ranks as f64, to);
}

/// Makes every NaN the one that reductions here give, after somebody else's reduction of f32 or f64.
#[cfg(feature = "mpi")]
pub(crate) fn canonicalize(dtype: DType, to: &mut [u8]) {
    reduce::canonicalize(dtype, to);
}

/// Adds f32 that another process may write meanwhile, equally many and aligned.
pub(crate) fn add_shared(from: kernels::SharedFloats<'_>, to: &mut [u8]) {
    kernels::add_shared(from, bytemuck::cast_slice_mut(to));
}

/// Accumulates bytes that arrive from a transport; whole elements only, `from` at any alignment.
pub(crate) fn land(op: ReduceOp, dtype: DType, from: &[u8], to: &mut [u8]) {
    host::reduce(op, dtype, from, to);
}
